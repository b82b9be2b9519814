#include "base/check.h"
#include "device/launch.h"
#include "kernels/ptx/pdl.cuh"
#include "kernels/token_rows/token_rows.h"

namespace baleen::kernels {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) token_rows_kernel(TokenRowsParams params) {
  ptx::release_successor();
  ptx::wait_for_predecessor();
  const int64_t token = blockIdx.x;
  const int32_t id = params.ids[token];
  const bool known = id >= 0 && id < params.vocab;
  const int32_t words = params.width / 8;
  const auto* from =
      reinterpret_cast<const uint4*>(params.table) + (known ? id : 0) * int64_t{words};
  auto* to = reinterpret_cast<uint4*>(params.out) + token * words;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < words; i += kThreads) {
    to[i] = known ? from[i] : make_uint4(0, 0, 0, 0);
  }
}

}  // namespace

void token_rows(const TokenRowsParams& params, device::StreamHandle stream) {
  BALEEN_CHECK(params.num_tokens >= 0 && params.width > 0 && params.width % 8 == 0,
               "num_tokens={} width={}",
               params.num_tokens,
               params.width);
  if (params.num_tokens == 0) {
    return;
  }
  device::launch(stream,
                 {.grid = dim3(static_cast<unsigned>(params.num_tokens)),
                  .block = dim3(kThreads),
                  .programmatic = params.programmatic},
                 token_rows_kernel,
                 params);
}

}  // namespace baleen::kernels
