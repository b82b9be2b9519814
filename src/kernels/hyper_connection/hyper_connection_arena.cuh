#pragma once
// Shape of the cluster kernel and what its blocks keep in shared memory. Included by
// hyper_connection_sm90.cu.

#include <cstdint>
#include <type_traits>

#include "kernels/hyper_connection/hyper_connection.h"
#include "kernels/hyper_connection/hyper_connection_dots.cuh"
#include "kernels/ptx/mbarrier.cuh"

namespace baleen::kernels::hyper_connection {

inline constexpr int kCluster = 16;       // blocks; eight load twice the bytes each and are slower
inline constexpr int kGroupColumns = 64;  // columns that a warp multiplies at once
inline constexpr int kWarpsPerRows = 4;   // warps that share eight rows of fn
inline constexpr int kRowGroups = kHcRows / kRowsPerWarp;
inline constexpr int kWarps = kWarpsPerRows * kRowGroups;
inline constexpr int kThreads = kWarps * 32;
inline constexpr int kSinkhornWarp = kWarps - 1;  // the warps before it make one token's y each
inline constexpr int kMixFours = (kHcRows - kHcHeadRows) / 4;  // post and comb rows, in fours

template <int kWidth>
struct Arena {
  static constexpr int kAllBlocks = kWidth / kHcQuantDims;
  static constexpr int kBlocks = (kAllBlocks + kCluster - 1) / kCluster;  // 128 columns each
  static constexpr int kColumns = kBlocks * kHcQuantDims;
  static constexpr int kGroups = kColumns / kGroupColumns;
  static constexpr int kTokens = kBlocks == 2 ? 11 : 6;  // of a group: what fits beside fn
  using Element = std::conditional_t<kBlocks == 2, float, uint16_t>;  // float where there is room
  static_assert(kTokens * kBlocks <= 2 * kWarps && kTokens <= kSinkhornWarp);
  static_assert(kTokens <= kCluster && kGroups % kWarpsPerRows == 0);

  alignas(128) float fn[kRowGroups][kBlocks][kRowsPerWarp][kHcStreams][kHcQuantDims];
  Element x[kTokens][kHcStreams][kColumns];  // new streams
  float part[kTokens][kHcRows][kGroups];
  float4 pre_in[kTokens][kCluster];              // from every block
  float4 mix_in[kCluster][kMixFours];            // for the token whose Sinkhorn is ours
  float4 coefficients[kTokens][1 + kHcStreams];  // post, rows of comb
  alignas(16) float norm_weight[kColumns];
  alignas(16) float square_in[kTokens][kCluster];
  alignas(16) float u_square_in[kTokens][kCluster];
  float square_part[kTokens][kBlocks];
  alignas(16) float base[kHcRows];
  float scale[3];
  ptx::Barrier constants_full;
  ptx::Barrier fn_full[kRowGroups];
  ptx::Barrier first;   // dots and square sums of x have arrived
  ptx::Barrier second;  // square sums of u have arrived
};

}  // namespace baleen::kernels::hyper_connection
