#pragma once
// Last steps of the form for few queries: every block of the cluster pushes its heads' maxima and
// sums to all blocks and its partial output, rounded to f16, to the blocks that own it, straight
// from registers; every thread joins two dims of a head in the order of ranks.
//
//   push_totals(...); accumulate_few_rows(...); push_output(...);
//   FewFactors factors; ... wait ... factors.read(shared, head, sink); join_pair(...);
//
// Unit u of 16 dims belongs to rank u * kCluster / 32. Unit 4 w + d of lane l: dims 64 w +
// few_dim(l / 8, d / 2) + 4 (d % 2) + 2 (l / 4 % 2) and + 1, of heads 2 (l % 4) and + 1.

#include <cstdint>

#include "kernels/cache_entry/row_math.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/push_to_peer.cuh"
#include "kernels/ptx/role_registers.cuh"
#include "kernels/sparse_attention/few_products.cuh"

namespace baleen::kernels {

/// Bytes of partial outputs that a block gets from all blocks of its cluster, its own included.
template <class Shared>
inline constexpr uint32_t kPushedBytes = sizeof(Shared::inbox) + sizeof(Shared::output_scales);

/// Maxima and sums of this warp's heads to all blocks.
template <int kCluster, class Shared, int kOwn>
__device__ __forceinline__ void push_totals(Shared& shared,
                                            const float (&maximum)[kOwn],
                                            const float (&sum)[kOwn]) {
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const auto rank = static_cast<int>(ptx::cluster_rank());
  float whole[kOwn];
#pragma unroll
  for (int h = 0; h < kOwn; ++h) {
    whole[h] = warp_sum(sum[h]);
  }
#pragma unroll
  for (int h = 0; h < kOwn; ++h) {
    const uint64_t packed = static_cast<uint64_t>(__float_as_uint(maximum[h])) |
                            (static_cast<uint64_t>(__float_as_uint(whole[h])) << 32);
    if (lane < kCluster) {
      const auto owner = static_cast<uint32_t>(lane);
      ptx::store_async_8(ptx::peer_address(&shared.totals[rank][warp * kOwn + h], owner),
                         packed,
                         ptx::peer_address(&shared.totals_received, owner));
    }
  }
}

/// Makes every head's part of the output as large as f16 holds; the result is what the head of lane
/// l % kHeads is to be multiplied with.
template <int kHeads>
__device__ __forceinline__ float enlarge_heads(FewOutput<kHeads>& output, float scale) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  float of_lane = scale;
#pragma unroll
  for (int c = 0; c < kHeads / 8; ++c) {
#pragma unroll
    for (int parity = 0; parity < 2; ++parity) {
      float most = 0;
#pragma unroll
      for (int d = 0; d < 4; ++d) {
        const float(&o)[4] = output.unit[d][c];
        most = fmaxf(most, fmaxf(fabsf(o[parity]), fabsf(o[parity + 2])));
      }
#pragma unroll
      for (int distance = 4; distance < 32; distance *= 2) {
        most = fmaxf(most, __shfl_xor_sync(kWholeWarp, most, distance));
      }
      // To [2^14, 2^15), and what undoes it.
      const int32_t exponent = max(static_cast<int32_t>(__float_as_uint(most) >> 23), 15);
      const float larger = __int_as_float(max(268 - exponent, 1) << 23);
#pragma unroll
      for (int d = 0; d < 4; ++d) {
        output.unit[d][c][parity] *= larger;
        output.unit[d][c][parity + 2] *= larger;
      }
      const float own = scale * __int_as_float((exponent - 14) << 23);
      const int head = 8 * c + parity;  // and + 2 * (l % 4)
      const float taken = __shfl_sync(kWholeWarp, own, lane % 8 / 2);
      if (lane % kHeads / 8 == head / 8 && lane % 2 == parity) {
        of_lane = taken;
      }
    }
  }
  return of_lane;
}

/// Where scales of rows lie far apart, heads get scales of their own; else all have the warp's.
template <int kCluster, class Shared, int kHeads>
__device__ __forceinline__ void push_output(Shared& shared,
                                            FewOutput<kHeads>& output,
                                            const FewOutputScale& scale) {
  constexpr int kUnits = kFewUnits / kCluster;  // of a rank
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const auto rank = static_cast<int>(ptx::cluster_rank());
  constexpr int kOwners = kUnits < 4 ? 4 / kUnits : 1;  // of this warp's units
  static_assert(kOwners * kHeads <= 32);
  const float of_lane = scale.is_wide ? enlarge_heads(output, scale.factor) : scale.factor;
  if (lane < kOwners * kHeads) {
    const auto owner = static_cast<uint32_t>(4 * warp / kUnits + lane / kHeads);
    ptx::push_float(
        ptx::peer_address(&shared.output_scales[warp % Shared::kOwnWarps][rank][lane % kHeads],
                          owner),
        of_lane,
        ptx::peer_address(&shared.received, owner));
  }
#pragma unroll
  for (int d = 0; d < 4; ++d) {
    const int unit = 4 * warp + d;
    const auto owner = static_cast<uint32_t>(unit / kUnits);
    const uint32_t full = ptx::peer_address(&shared.received, owner);
    const uint32_t place = ptx::peer_address(
        &shared.inbox[(rank * kUnits + unit % kUnits) * (kHeads / 8) * 32 + lane], owner);
#pragma unroll
    for (int c = 0; c < kHeads / 8; ++c) {
      const float(&o)[4] = output.unit[d][c];
      ptx::store_async_8(place + c * 32 * sizeof(uint2),
                         static_cast<uint64_t>(ptx::pack_f16(o[0], o[2])) |
                             (static_cast<uint64_t>(ptx::pack_f16(o[1], o[3])) << 32),
                         full);
    }
  }
}

/// What all ranks' partial outputs of a head are multiplied with.
template <int kCluster>
struct FewFactors {
  float of[kCluster];  // 2^(rank's maximum - maximum)
  float all;           // the same for all ranks
  float maximum;
  float sum;

  template <class Shared>
  __device__ __forceinline__ void read(const Shared& shared, int head, float sink) {
    float sums[kCluster];
    maximum = kFewNoMaximum;
#pragma unroll
    for (int from = 0; from < kCluster; ++from) {
      const float2 totals = shared.totals[from][head];
      of[from] = totals.x;
      sums[from] = totals.y;
      maximum = fmaxf(maximum, totals.x);
    }
    sum = 0;
#pragma unroll
    for (int from = 0; from < kCluster; ++from) {
      of[from] = ptx::exp2_fast(of[from] - maximum);
      sum = __fmaf_rn(sums[from], of[from], sum);
    }
    const float sink_power = sink * ptx::kLog2E;
    const float top = fmaxf(maximum, sink_power);
    const float weight = ptx::exp2_fast(maximum - top);
    const float denominator = __fmaf_rn(sum, weight, ptx::exp2_fast(sink_power - top));
    const bool nothing = maximum <= kFewNoMaximum || sink == __int_as_float(0x7F800000);
    all = nothing ? 0.0F : __fdividef(weight, denominator);
  }
};

/// Log-sums of a head, by one thread.
__device__ __forceinline__ void report_head(
    const FewParams& params, int64_t row, float sink, float maximum, float sum) {
  constexpr float kLnOf2 = 0.6931471805599453F;
  const float infinity = __int_as_float(0x7F800000);
  const bool empty = maximum <= kFewNoMaximum;
  if (params.lse != nullptr) {
    params.lse[row] = empty ? -infinity : __fmaf_rn(maximum, kLnOf2, logf(sum));
  }
  if (params.lse_with_sink != nullptr) {
    const float sink_power = sink * ptx::kLog2E;
    const float top = fmaxf(maximum, sink_power);
    const float denominator =
        __fmaf_rn(sum, ptx::exp2_fast(maximum - top), ptx::exp2_fast(sink_power - top));
    params.lse_with_sink[row] =
        empty || sink == infinity ? sink : __fmaf_rn(top, kLnOf2, logf(denominator));
  }
}

/// One pair of neighbouring dims of a head that this rank joins.
struct FewPair {
  int head;
  int dim;
};

template <int kHeads, int kCluster>
__device__ __forceinline__ FewPair few_pair(int pair) {
  constexpr int kUnits = kFewUnits / kCluster;
  const int lane = pair / 2 % 32;
  const int group = pair / 64 % (kHeads / 8);
  const int unit = static_cast<int>(ptx::cluster_rank()) * kUnits + pair / (64 * (kHeads / 8));
  const bool is_rope = unit / 4 == kFewWarps - 1;
  return {
      8 * group + lane % 4 * 2 + pair % 2,
      unit / 4 * 64 + few_dim(is_rope, lane / 8, unit / 2 % 2) + unit % 2 * 4 + lane / 4 % 2 * 2};
}

/// Sum of all ranks' partial outputs of a pair.
template <int kHeads, int kCluster, class Shared>
__device__ __forceinline__ float2
join_pair(const Shared& shared, int pair, int head, const FewFactors<kCluster>& factors) {
  constexpr int kPairs = kFewUnits / kCluster * (kHeads / 8) * 64;  // of a rank
  const auto* inbox = reinterpret_cast<const uint32_t*>(shared.inbox) + pair;
  const auto& scales = shared.output_scales[pair / (kHeads / 8 * 256)];
  float2 o = make_float2(0, 0);
#pragma unroll
  for (int from = 0; from < kCluster; ++from) {
    const float2 part = ptx::unpack_f16(inbox[from * kPairs]);
    const float factor = factors.of[from] * scales[from][head];
    o.x = __fmaf_rn(part.x, factor, o.x);
    o.y = __fmaf_rn(part.y, factor, o.y);
  }
  return make_float2(o.x * factors.all, o.y * factors.all);
}

}  // namespace baleen::kernels
