#pragma once
// Pool of ratio-4 compressors on Hopper: four warps of a block take one entry of 512 channels, or
// an index key each. A lane has four channels and asks for all values and scores of its window at
// once, by plain loads past L1; while it computes, other blocks of the multiprocessor keep the
// memory busy. Blocks are short and as many as the entries need: the card deals them out itself.
// Each element is read once: a window takes the carry half of the group before and the own half of
// its own.
//
//   overlap_pool_kernel<512><<<overlap_blocks<512>(entries), kOverlapThreads>>>(params);

#include "kernels/compressor_pool/pool_math.cuh"
#include "kernels/compressor_pool/pool_tail.cuh"
#include "kernels/ptx/pdl.cuh"
#include "kernels/ptx/read_only_load.cuh"

namespace baleen::kernels {

inline constexpr int kGroupTokens = 4;
inline constexpr int kOverlapSlots = 2 * kGroupTokens;
inline constexpr int kOverlapThreads = 128;
inline constexpr int kOverlapResident = 4;  // blocks of a multiprocessor: 128 KB asked for at once

/// Warps of one entry, 128 channels each.
template <int kDims>
inline constexpr int overlap_entry_warps = kDims / 128;

template <int kDims>
constexpr int overlap_blocks(int entries) {
  constexpr int kEntries = kOverlapThreads / 32 / overlap_entry_warps<kDims>;
  return (entries + kEntries - 1) / kEntries;
}

/// A slot's score and the position bias of its token and half.
__device__ __forceinline__ void add_bias(float4& score, const float* bias) {
  const float4 b = __ldg(reinterpret_cast<const float4*>(bias));
  score.x = __fadd_rn(score.x, b.x), score.y = __fadd_rn(score.y, b.y);
  score.z = __fadd_rn(score.z, b.z), score.w = __fadd_rn(score.w, b.w);
}

/// Four channels of a window, position bias in. A token's row is [carry value | own value | carry
/// score | own score], and a slot of the first group takes the carry halves. A slot that does not
/// exist has score -inf and value 0.
template <int kDims>
__device__ __forceinline__ void load_window(const CompressorPoolParams& params,
                                            const CompressorPlanEntry& record,
                                            int channel,
                                            float4 (&scores)[kOverlapSlots],
                                            float4 (&values)[kOverlapSlots]) {
  const auto half = [](int slot) { return slot < kGroupTokens ? 0 : kDims; };
  const auto bias = [&](int slot) {
    return params.ape + slot % kGroupTokens * 2 * kDims + half(slot) + channel;
  };
  if (record.rows_from_pass >= kOverlapSlots) {
    const float* first =
        params.rows + (record.end_row - (kOverlapSlots - 1)) * params.row_stride + channel;
#pragma unroll
    for (int s = 0; s < kOverlapSlots; ++s) {
      scores[s] = ptx::load_static(first + s * params.row_stride + 2 * kDims + half(s));
    }
#pragma unroll
    for (int s = 0; s < kOverlapSlots; ++s) {
      values[s] = ptx::load_static(first + s * params.row_stride + half(s));
    }
    if (params.ape != nullptr) {
#pragma unroll
      for (int s = 0; s < kOverlapSlots; ++s) {
        add_bias(scores[s], bias(s));
      }
    }
    return;
  }
  const bool has_carry = record.end_position >= kOverlapSlots - 1;
  const float none = -__int_as_float(0x7F800000);
#pragma unroll
  for (int s = 0; s < kOverlapSlots; ++s) {
    const int behind = kOverlapSlots - 1 - s;  // tokens before the window's last
    scores[s] = make_float4(none, none, none, none);
    values[s] = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
    if (s < kGroupTokens && !has_carry) {
      continue;
    }
    const bool from_pass = behind < record.rows_from_pass;
    const float* row;
    if (from_pass) {
      row = params.rows + (record.end_row - behind) * params.row_stride;
    } else {
      const int32_t base = s < kGroupTokens ? record.carry_ring_base : record.own_ring_base;
      const int32_t place = base + (record.end_position - behind) % params.ring_size;
      row = params.ring + static_cast<int64_t>(place) * (4 * kDims);
    }
    row += channel + half(s);
    values[s] = ptx::load_static(row);
    scores[s] = ptx::load_static(row + 2 * kDims);
    if (from_pass && params.ape != nullptr) {
      add_bias(scores[s], bias(s));
    }
  }
}

template <int kDims>
__global__ void __launch_bounds__(kOverlapThreads, kOverlapResident)
    overlap_pool_kernel(const __grid_constant__ CompressorPoolParams params) {
  constexpr int kWarps = overlap_entry_warps<kDims>;
  __shared__ __align__(16) float squares[kWarps];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int part = warp % kWarps;
  const int channel = part * 128 + lane * 4;
  const int entry = static_cast<int>(blockIdx.x) * (kOverlapThreads / 32 / kWarps) + warp / kWarps;
  ptx::wait_for_predecessor();
  if (entry >= entry_count(params)) {
    return;
  }
  const auto* plan = reinterpret_cast<const int4*>(params.plan + entry);
  const int4 low = __ldg(plan);
  const int4 high = __ldg(plan + 1);
  const CompressorPlanEntry record = {low.x, low.y, low.z, low.w, high.x, high.y, 0, 0};
  if (record.destination < 0) {
    return;
  }
  const float frequency = __ldg(params.frequencies + lane);
  float result[4];
  {
    float4 scores[kOverlapSlots];
    float4 values[kOverlapSlots];
    load_window<kDims>(params, record, channel, scores, values);
    float z[4][kOverlapSlots];
    float u[4][kOverlapSlots];
#pragma unroll
    for (int s = 0; s < kOverlapSlots; ++s) {
      z[0][s] = scores[s].x, z[1][s] = scores[s].y, z[2][s] = scores[s].z, z[3][s] = scores[s].w;
      u[0][s] = values[s].x, u[1][s] = values[s].y, u[2][s] = values[s].z, u[3][s] = values[s].w;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      result[i] = pool_window8(z[i], u[i]);
    }
  }
  if (params.pooled != nullptr) {
    *reinterpret_cast<float4*>(params.pooled + static_cast<int64_t>(entry) * kDims + channel) =
        make_float4(result[0], result[1], result[2], result[3]);
  }
  if constexpr (kWarps == 1) {
    store_pooled_index_key(params, result, frequency, record.end_position, record.destination);
  } else {
    store_pooled_kv_part<kWarps>(
        params, result, frequency, record.end_position, record.destination, part, squares);
  }
}

}  // namespace baleen::kernels
