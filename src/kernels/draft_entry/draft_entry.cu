#include "base/check.h"
#include "device/launch.h"
#include "kernels/cache_entry/row_math.cuh"
#include "kernels/draft_entry/draft_entry.h"
#include "kernels/ptx/convert.cuh"

namespace baleen::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kPerLoad = 8;                  // elements
constexpr int kChunk = kThreads * kPerLoad;  // of a block's load
constexpr int kMostChunks = 4;
constexpr int kMostWidth = kMostChunks * kChunk;
constexpr int kCodeBlock = 128;  // elements that share a scale
constexpr int kStreams = 4;

__device__ __forceinline__ void unpack_eight(uint4 packed, float (&out)[kPerLoad]) {
  const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    out[2 * i] = ptx::low_bf16(words[i]);
    out[2 * i + 1] = ptx::high_bf16(words[i]);
  }
}

/// Sum over the block in one order: chunks of a thread, lanes as a tree, warps ascending.
__device__ __forceinline__ float block_sum(float value) {
  __shared__ float of_warp[kThreads / 32];
  const float sum = warp_sum(value);
  if (threadIdx.x % 32 == 0) {
    of_warp[threadIdx.x / 32] = sum;
  }
  __syncthreads();
  float total = of_warp[0];
#pragma unroll
  for (int w = 1; w < kThreads / 32; ++w) {
    total = __fadd_rn(total, of_warp[w]);
  }
  return total;
}

__global__ void __launch_bounds__(kThreads) norm_codes_kernel(NormCodesParams params) {
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * params.width;
  const int32_t first = static_cast<int32_t>(threadIdx.x) * kPerLoad;
  float v[kMostChunks][kPerLoad];
  float sum = 0.0F;
#pragma unroll
  for (int c = 0; c < kMostChunks; ++c) {
    const int32_t at = c * kChunk + first;
    // Widths are multiples of 256: a warp's elements are all inside or all outside.
    if (at < params.width) {
      unpack_eight(*reinterpret_cast<const uint4*>(params.rows + begin + at), v[c]);
      sum = __fadd_rn(sum, square_tree(v[c]));
    }
  }
  const float rho = inverse_rms(block_sum(sum), params.width, params.eps);
#pragma unroll
  for (int c = 0; c < kMostChunks; ++c) {
    const int32_t at = c * kChunk + first;
    if (at < params.width) {
      const float4 low = *reinterpret_cast<const float4*>(params.weight + at);
      const float4 high = *reinterpret_cast<const float4*>(params.weight + at + 4);
      const float g[kPerLoad] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (int i = 0; i < kPerLoad; ++i) {
        v[c][i] = to_bf16(__fmul_rn(g[i], __fmul_rn(v[c][i], rho)));
      }
      const float scale = numerics::q8_scale(group_amax<kCodeBlock / kPerLoad>(largest(v[c])));
      const float inverse = inverse_pow2(scale);
      *reinterpret_cast<uint2*>(params.codes + begin + at) = make_uint2(
          ptx::pack_e4m3(
              v[c][0] * inverse, v[c][1] * inverse, v[c][2] * inverse, v[c][3] * inverse),
          ptx::pack_e4m3(
              v[c][4] * inverse, v[c][5] * inverse, v[c][6] * inverse, v[c][7] * inverse));
      if (at % kCodeBlock == 0) {
        params.scales[(begin + at) / kCodeBlock] = numerics::ue8m0_from_pow2(scale);
      }
    }
  }
}

__global__ void __launch_bounds__(kThreads) join_streams_kernel(JoinStreamsParams params) {
  const int64_t row = blockIdx.x;  // of a token's stream
  const int64_t from = row / kStreams * params.width;
  const int64_t at = row * params.width;
  for (int32_t i = static_cast<int32_t>(threadIdx.x) * kPerLoad; i < params.width; i += kChunk) {
    float a[kPerLoad];
    float b[kPerLoad];
    unpack_eight(*reinterpret_cast<const uint4*>(params.token + from + i), a);
    unpack_eight(*reinterpret_cast<const uint4*>(params.streams + at + i), b);
    uint32_t pairs[kPerLoad / 2];
#pragma unroll
    for (int p = 0; p < kPerLoad / 2; ++p) {
      pairs[p] =
          ptx::pack_bf16(__fadd_rn(a[2 * p], b[2 * p]), __fadd_rn(a[2 * p + 1], b[2 * p + 1]));
    }
    *reinterpret_cast<uint4*>(params.out + at + i) =
        make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
  }
}

void check_rows(int32_t rows, int32_t width) {
  BALEEN_CHECK(rows >= 0 && width > 0 && width % 256 == 0 && width <= kMostWidth,
               "rows={} width={}",
               rows,
               width);
}

}  // namespace

void norm_codes(const NormCodesParams& params, device::StreamHandle stream) {
  check_rows(params.num_rows, params.width);
  if (params.num_rows > 0) {
    device::launch(stream,
                   {.grid = dim3(static_cast<unsigned>(params.num_rows)), .block = dim3(kThreads)},
                   norm_codes_kernel,
                   params);
  }
}

void join_streams(const JoinStreamsParams& params, device::StreamHandle stream) {
  check_rows(params.num_tokens, params.width);
  if (params.num_tokens > 0) {
    device::launch(stream,
                   {.grid = dim3(static_cast<unsigned>(kStreams * params.num_tokens)),
                    .block = dim3(kThreads)},
                   join_streams_kernel,
                   params);
  }
}

}  // namespace baleen::kernels
