#pragma once
// What follows the exchange of dots: one warp of a token's owner makes post and comb (Sinkhorn),
// one warp of every block makes its columns of y, normalised and quantised. Included by
// hyper_connection_sm90.cu.

#include <cstdint>

#include "kernels/cache_entry/row_math.cuh"
#include "kernels/hyper_connection/hyper_connection.h"
#include "kernels/hyper_connection/hyper_connection_arena.cuh"
#include "kernels/hyper_connection/hyper_connection_dots.cuh"
#include "kernels/hyper_connection/hyper_connection_post.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/convert.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/push_to_peer.cuh"
#include "kernels/sinkhorn/sinkhorn.cuh"

namespace baleen::kernels::hyper_connection {

__device__ __forceinline__ float sigmoid(float z) {
  return __fdiv_rn(1.0F, __fadd_rn(1.0F, expf(-z)));
}

/// kCount floats, a multiple of four, 16-byte aligned.
template <int kCount>
__device__ __forceinline__ void load_line(const float* from, float (&to)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    const float4 four = *reinterpret_cast<const float4*>(from + i);
    to[i] = four.x, to[i + 1] = four.y, to[i + 2] = four.z, to[i + 3] = four.w;
  }
}

/// 2, 4 or 8 words, aligned to their size (16 bytes at most).
template <int kCount>
__device__ __forceinline__ void store_words(void* to, const uint32_t (&words)[kCount]) {
  if constexpr (kCount == 2) {
    *static_cast<uint2*>(to) = make_uint2(words[0], words[1]);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      static_cast<uint4*>(to)[i / 4] =
          make_uint4(words[i], words[i + 1], words[i + 2], words[i + 3]);
    }
  }
}

/// Of token `t`'s streams, from the square sums of all blocks.
template <int kWidth>
__device__ __forceinline__ float inverse_rms_of(const HcFusedParams& p,
                                                const Arena<kWidth>& s,
                                                int t) {
  float squares[kCluster];
  load_line(s.square_in[t], squares);
  return inverse_rms(tree_sum<kCluster>(squares), kHcStreams * kWidth, p.rms_norm_eps);
}

/// post and comb, or one of them, of token `t` of the group, whose owner this block is; one warp.
template <int kWidth>
__device__ __forceinline__ void make_mixes(const HcFusedParams& p,
                                           Arena<kWidth>& s,
                                           int first_token,
                                           int t,
                                           uint32_t parity,
                                           bool has_post,
                                           bool has_comb) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  ptx::barrier_wait(&s.constants_full, 0);
  ptx::barrier_wait_cluster(&s.first, parity);
  const int row = lane < kHcRows - kHcHeadRows ? lane : 0;
  float parts[kCluster];
#pragma unroll
  for (int c = 0; c < kCluster; ++c) {
    parts[c] = reinterpret_cast<const float*>(&s.mix_in[c][0])[row];
  }
  const float m = __fmul_rn(tree_sum<kCluster>(parts), inverse_rms_of<kWidth>(p, s, t));
  const float z = __fmaf_rn(m, s.scale[row < kHcStreams ? 1 : 2], s.base[kHcHeadRows + row]);
  const int64_t token = first_token + t;
  if (has_comb) {
    const float weight = sinkhorn4_softmax_lane(z, p.hc_eps);
    float comb[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      comb[i] = __shfl_sync(kWholeWarp, weight, kHcStreams + i);
    }
    sinkhorn4_iterate(comb, p.hc_eps, p.sinkhorn_iters);
    if (lane == 0) {
      auto* out = reinterpret_cast<float4*>(p.comb_out + token * 16);
#pragma unroll
      for (int j = 0; j < kHcStreams; ++j) {
        out[j] = make_float4(comb[4 * j], comb[4 * j + 1], comb[4 * j + 2], comb[4 * j + 3]);
      }
    }
  }
  if (has_post && lane < kHcStreams) {
    p.post_out[token * kHcStreams + lane] = 2.0F * sigmoid(z);
  }
}

/// This block's columns of y of token `t` of the group; one warp, kPerLane neighbouring columns per
/// lane. `blocks` of 128 columns from `first_block` are this block's.
template <int kWidth>
__device__ __forceinline__ void make_output(const HcFusedParams& p,
                                            Arena<kWidth>& s,
                                            int first_token,
                                            int t,
                                            int first_block,
                                            int blocks,
                                            int rank,
                                            uint32_t parity) {
  using Shared = Arena<kWidth>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  constexpr int kPerLane = Shared::kColumns / 32;
  const int64_t token = first_token + t;
  const int place = lane * kPerLane;
  const bool exists = place < blocks * kHcQuantDims;
  const int64_t column = static_cast<int64_t>(first_block) * kHcQuantDims + place;
  float4 x[kHcStreams][kPerLane / 4];
#pragma unroll
  for (int k = 0; k < kHcStreams; ++k) {
#pragma unroll
    for (int i = 0; i < kPerLane / 4; ++i) {
      x[k][i] = exists ? load_four(&s.x[t][k][place + 4 * i]) : make_float4(0, 0, 0, 0);
    }
  }
  const int j = lane % kHcStreams;
  ptx::barrier_wait(&s.constants_full, 0);
  const float pre_scale = s.scale[0];
  const float pre_base = s.base[j];
  ptx::barrier_wait_cluster(&s.first, parity);
  float parts[kCluster];
#pragma unroll
  for (int c = 0; c < kCluster; ++c) {
    parts[c] = reinterpret_cast<const float*>(&s.pre_in[t][c])[j];
  }
  const float m = __fmul_rn(tree_sum<kCluster>(parts), inverse_rms_of<kWidth>(p, s, t));
  const float pre = __fadd_rn(sigmoid(__fmaf_rn(m, pre_scale, pre_base)), p.hc_eps);
  float u[kPerLane];
#pragma unroll
  for (int k = 0; k < kHcStreams; ++k) {
    const float weight = __shfl_sync(kWholeWarp, pre, k);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const float4 four = x[k][i / 4];
      const float value = i % 4 == 0 ? four.x : i % 4 == 1 ? four.y : i % 4 == 2 ? four.z : four.w;
      u[i] = k == 0 ? __fmul_rn(weight, value) : __fmaf_rn(weight, value, u[i]);
    }
  }
  uint32_t packed[kPerLane / 2];
#pragma unroll
  for (int i = 0; i < kPerLane / 2; ++i) {
    packed[i] = ptx::pack_bf16(u[2 * i], u[2 * i + 1]);
    u[2 * i] = ptx::low_bf16(packed[i]);
    u[2 * i + 1] = ptx::high_bf16(packed[i]);
  }
  const float square = warp_sum(square_tree(u));
  if (lane < kCluster) {
    ptx::push_float(ptx::peer_address(&s.u_square_in[t][rank], static_cast<uint32_t>(lane)),
                    square,
                    ptx::peer_address(&s.second, static_cast<uint32_t>(lane)));
  }
  if (p.collapsed != nullptr && exists) {
    store_words(p.collapsed + token * kWidth + column, packed);
  }
  float g[kPerLane];
  load_line(&s.norm_weight[exists ? place : 0], g);
  ptx::barrier_wait_cluster(&s.second, parity);

  float squares[kCluster];
  load_line(s.u_square_in[t], squares);
  const float rho = inverse_rms(tree_sum<kCluster>(squares), kWidth, p.rms_norm_eps);
#pragma unroll
  for (int i = 0; i < kPerLane / 2; ++i) {
    packed[i] = ptx::pack_bf16(__fmul_rn(g[2 * i], __fmul_rn(u[2 * i], rho)),
                               __fmul_rn(g[2 * i + 1], __fmul_rn(u[2 * i + 1], rho)));
    u[2 * i] = ptx::low_bf16(packed[i]);
    u[2 * i + 1] = ptx::high_bf16(packed[i]);
  }
  if (p.y != nullptr && exists) {
    store_words(p.y + token * kWidth + column, packed);
  }
  if (p.codes != nullptr) {
    const float step = numerics::q8_scale(group_amax<kHcQuantDims / kPerLane>(largest(u)));
    const float inverse = inverse_pow2(step);
    uint32_t codes[kPerLane / 4];
#pragma unroll
    for (int i = 0; i < kPerLane / 4; ++i) {
      codes[i] = ptx::pack_e4m3(u[4 * i] * inverse,
                                u[4 * i + 1] * inverse,
                                u[4 * i + 2] * inverse,
                                u[4 * i + 3] * inverse);
    }
    if (exists) {
      store_words(p.codes + token * kWidth + column, codes);
      if (place % kHcQuantDims == 0) {
        p.scales[token * Shared::kAllBlocks + column / kHcQuantDims] =
            numerics::ue8m0_from_pow2(step);
      }
    }
  }
}

}  // namespace baleen::kernels::hyper_connection
