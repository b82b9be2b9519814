// The obvious form: one warp per token for latent, kv and weights, then the compressors' own
// kernels, pools before ring writes.

#include "base/check.h"
#include "device/launch.h"
#include "kernels/after_projection/token_roles.cuh"

namespace baleen::kernels {
namespace {

__global__ void __launch_bounds__(32) token_roles_kernel(AfterProjectionParams params) {
  const int64_t token = blockIdx.x;
  if (params.latent.rows != nullptr) {
    if (params.latent.width == 4 * kLatentChunk) {
      latent_token<4>(params, token, false);
    } else {
      latent_token<6>(params, token, false);
    }
  }
  if (params.kv.rows != nullptr) {
    kv_token(params, token, false);
  }
  if (params.index_weights.rows != nullptr) {
    index_weights_token(params, token, false);
  }
}

}  // namespace

void after_projection_portable(const AfterProjectionParams& params, device::StreamHandle stream) {
  BALEEN_CHECK(params.num_tokens >= 0, "num_tokens={}", params.num_tokens);
  if (params.num_tokens > 0) {
    device::launch(stream,
                   {.grid = dim3(static_cast<unsigned>(params.num_tokens)), .block = dim3(32)},
                   token_roles_kernel,
                   params);
  }
  if (params.main.plan != nullptr) {
    compressor_pool_portable(params.main, stream);
  }
  if (params.index.plan != nullptr) {
    compressor_pool_portable(params.index, stream);
  }
  if (params.main_ring.writes != nullptr) {
    compressor_ring_write(params.main_ring, stream);
  }
  if (params.index_ring.writes != nullptr) {
    compressor_ring_write(params.index_ring, stream);
  }
}

}  // namespace baleen::kernels
