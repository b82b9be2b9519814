#include "base/check.h"
#include "device/launch.h"
#include "kernels/cache_entry/cache_entry.cuh"
#include "kernels/ptx/pdl.cuh"
#include "kernels/query_finish/query_finish.h"

namespace baleen::kernels {
namespace {

constexpr int kWarps = 4;

__device__ inline float low_half(uint32_t pair) {
  return __uint_as_float(pair << 16);
}
__device__ inline float high_half(uint32_t pair) {
  return __uint_as_float(pair & 0xFFFF0000U);
}
/// Both are bf16 values.
__device__ inline uint32_t bf16_pair(float low, float high) {
  return (__float_as_uint(low) >> 16) | (__float_as_uint(high) & 0xFFFF0000U);
}

__device__ void finish_head(const QueryHeadsRole& role, int64_t head, int32_t position) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float2 turn = rotation(position, role.frequencies[lane]);
  const auto* in = reinterpret_cast<const uint4*>(role.rows + head * kKvDims) + lane * 2;
  const uint4 first = in[0];
  const uint4 second = in[1];
  const uint32_t pairs[8] = {
      first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w};
  float v[kKvLaneDims];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    v[2 * i] = low_half(pairs[i]);
    v[2 * i + 1] = high_half(pairs[i]);
  }
  const float rho = inverse_rms(warp_sum(square_tree(v)), kKvDims, role.eps);
#pragma unroll
  for (int i = 0; i < kKvLaneDims; ++i) {
    v[i] = to_bf16(__fmul_rn(v[i], rho));
  }
  warp_rotate(v, turn);
  auto* out = reinterpret_cast<uint4*>(role.out + head * kKvDims) + lane * 2;
  out[0] = make_uint4(
      bf16_pair(v[0], v[1]), bf16_pair(v[2], v[3]), bf16_pair(v[4], v[5]), bf16_pair(v[6], v[7]));
  out[1] = make_uint4(bf16_pair(v[8], v[9]),
                      bf16_pair(v[10], v[11]),
                      bf16_pair(v[12], v[13]),
                      bf16_pair(v[14], v[15]));
}

__device__ void finish_index_head(const IndexHeadsRole& role, int64_t head, int32_t position) {
  constexpr int kGroupLanes = kIndexFp4Group / kIndexLaneDims;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float2 turn = rotation(position, role.frequencies[lane]);
  const uint2 pairs = *(reinterpret_cast<const uint2*>(role.rows + head * kIndexDims) + lane);
  float v[kIndexLaneDims] = {
      low_half(pairs.x), high_half(pairs.x), low_half(pairs.y), high_half(pairs.y)};
  warp_rotate(v, turn);
  warp_hadamard(v);
  const float scale = numerics::q4_scale(group_amax<kGroupLanes>(largest(v)));
  const float inverse = inverse_pow2(scale);
  const float largest_scale = group_amax<32>(scale);
  // The quotient of the two scales is an exact power of two.
  const float to_codes = scale * inverse_pow2(largest_scale) * 64.0F;
  float x[kIndexLaneDims];
#pragma unroll
  for (int i = 0; i < kIndexLaneDims; ++i) {
    x[i] = numerics::e2m1_to_float(numerics::e2m1_from_float(v[i] * inverse)) * to_codes;
  }
  *(reinterpret_cast<uint32_t*>(role.codes + head * kIndexDims) + lane) =
      ptx::pack_e4m3(x[0], x[1], x[2], x[3]);
  if (lane == 0) {
    role.weights_out[head] = role.weights[head] * (largest_scale * 0.015625F);
  }
}

__global__ void __launch_bounds__(kWarps * 32) query_finish_kernel(QueryFinishParams params) {
  ptx::release_successor();
  ptx::wait_for_predecessor();
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int64_t heads = params.heads.rows == nullptr
                            ? 0
                            : static_cast<int64_t>(params.num_tokens) * params.heads.num_heads;
  if (warp < heads) {
    finish_head(params.heads, warp, params.positions[warp / params.heads.num_heads]);
    return;
  }
  const int64_t index = warp - heads;
  if (params.index.rows != nullptr &&
      index < static_cast<int64_t>(params.num_tokens) * params.index.num_heads) {
    finish_index_head(params.index, index, params.positions[index / params.index.num_heads]);
  }
}

}  // namespace

void query_finish(const QueryFinishParams& params, device::StreamHandle stream) {
  const bool heads = params.heads.rows != nullptr;
  const bool index = params.index.rows != nullptr;
  BALEEN_CHECK(params.num_tokens >= 0 && (!heads || params.heads.num_heads > 0) &&
                   (!index || params.index.num_heads > 0),
               "num_tokens={} heads={} index heads={}",
               params.num_tokens,
               params.heads.num_heads,
               params.index.num_heads);
  const int64_t warps =
      static_cast<int64_t>(params.num_tokens) *
      ((heads ? params.heads.num_heads : 0) + (index ? params.index.num_heads : 0));
  if (warps == 0) {
    return;
  }
  device::launch(stream,
                 {.grid = dim3(static_cast<unsigned>((warps + kWarps - 1) / kWarps)),
                  .block = dim3(kWarps * 32),
                  .programmatic = params.programmatic},
                 query_finish_kernel,
                 params);
}

}  // namespace baleen::kernels
