#pragma once
// For which numbers of tokens and context lengths decode graphs are captured: few enough to
// capture at start, dense enough that a step runs in one not much larger than itself. Pure.
//
//   const std::vector<DecodeShape> shapes = decode_shapes(64, 1 << 20);
//   const std::size_t shape = smallest_shape(shapes, 5, 3000);   // 8 requests of 4,096 tokens

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace baleen::runner {

inline constexpr int32_t kMostDecodeTokens = 64;  // of one graph; a longer step runs in several

struct DecodeShape {
  int32_t requests = 0;  // tokens, one of each or several of some
  int64_t context = 0;   // tokens of a sequence, the step's own included
  friend bool operator==(const DecodeShape&, const DecodeShape&) = default;
};

/// Powers of two up to `most_requests` (and that itself), for contexts of 4,096 times powers of
/// four up to `max_context` (and that itself).
std::vector<DecodeShape> decode_shapes(int32_t most_requests, int64_t max_context);

/// The first shape that holds a step; one must.
std::size_t smallest_shape(std::span<const DecodeShape> shapes, int32_t requests, int64_t context);

}  // namespace baleen::runner
