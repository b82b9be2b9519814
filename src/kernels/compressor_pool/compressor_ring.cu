#include "base/check.h"
#include "device/launch.h"
#include "kernels/compressor_pool/compressor_checks.h"
#include "kernels/ptx/pdl.cuh"

namespace baleen::kernels {
namespace {

constexpr int kThreads = 128;

/// One block per token; a thread moves 16 bytes at a time.
__global__ void __launch_bounds__(kThreads)
    ring_write_kernel(const __grid_constant__ CompressorRingParams params, int width, int ratio) {
  ptx::wait_for_predecessor();
  const auto index = static_cast<int32_t>(blockIdx.x);
  if (params.num_writes != nullptr && index >= *params.num_writes) {
    return;
  }
  const RingWriteEntry write = params.writes[index];
  if (write.ring_row < 0) {
    return;
  }
  const int64_t from = static_cast<int64_t>(write.row) * params.row_stride;
  const auto* values = reinterpret_cast<const float4*>(params.rows + from);
  const auto* scores = reinterpret_cast<const float4*>(params.rows + from + width);
  const auto* bias = reinterpret_cast<const float4*>(
      params.ape == nullptr ? nullptr : params.ape + write.position % ratio * width);
  auto* out =
      reinterpret_cast<float4*>(params.ring + static_cast<int64_t>(write.ring_row) * 2 * width);
  const int quads = width / 4;
  for (int i = static_cast<int>(threadIdx.x); i < quads; i += kThreads) {
    const float4 u = values[i];
    float4 z = scores[i];
    if (bias != nullptr) {
      const float4 b = bias[i];
      z = make_float4(
          __fadd_rn(z.x, b.x), __fadd_rn(z.y, b.y), __fadd_rn(z.z, b.z), __fadd_rn(z.w, b.w));
    }
    out[i] = u;
    out[quads + i] = z;
  }
}

}  // namespace

void compressor_ring_write(const CompressorRingParams& p, device::StreamHandle stream) {
  const int width = compressor_row_width(p.kind);
  BALEEN_CHECK(p.max_writes >= 0, "max_writes={}", p.max_writes);
  if (p.max_writes == 0) {
    return;
  }
  BALEEN_CHECK(p.row_stride % 4 == 0 && p.row_stride >= 2 * width,
               "row_stride={} width={}",
               p.row_stride,
               width);
  BALEEN_CHECK(p.rows != nullptr && p.ring != nullptr && p.writes != nullptr);
  BALEEN_CHECK(is_aligned_16(p.rows) && is_aligned_16(p.ape) && is_aligned_16(p.ring) &&
               is_aligned_16(p.writes));
  device::launch(stream,
                 {.grid = dim3(static_cast<unsigned>(p.max_writes)), .block = dim3(kThreads)},
                 ring_write_kernel,
                 p,
                 width,
                 compressor_ratio(p.kind));
}

}  // namespace baleen::kernels
