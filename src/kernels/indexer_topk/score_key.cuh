#pragma once
// The total order of scores as unsigned integers, and the order of (score, entry) pairs. Device
// only.
//
//   uint32_t key = score_key(score);             // bigger is better
//   uint64_t pair = ranked(key, entry);          // bigger is better, all different

#include <cstdint>

namespace baleen::kernels {

inline constexpr uint32_t kAbsentKey = 0;                // no entry at this place
inline constexpr uint32_t kNanKey = 1;                   // below all numbers
inline constexpr uint32_t kLeastNumberKey = 0x007FFFFF;  // -inf

__device__ __forceinline__ uint32_t score_key(float score) {
  const uint32_t bits = __float_as_uint(score + 0.0F);  // -0 becomes +0
  const uint32_t flip = static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000U;
  return score != score ? kNanKey : bits ^ flip;
}

/// The score of a key above kNanKey.
__device__ __forceinline__ float key_score(uint32_t key) {
  return __uint_as_float((key & 0x80000000U) != 0 ? key ^ 0x80000000U : ~key);
}

__device__ __forceinline__ uint64_t ranked(uint32_t key, uint32_t entry) {
  return (static_cast<uint64_t>(key) << 32) | (0xFFFFFFFFU - entry);
}

__device__ __forceinline__ uint32_t ranked_entry(uint64_t pair) {
  return 0xFFFFFFFFU - static_cast<uint32_t>(pair);
}

}  // namespace baleen::kernels
