#include "ops/total_order.h"

#include <cstdint>
#include <limits>

#include <ATen/ATen.h>

namespace baleen::ops {
namespace {

/// Negative numbers have their magnitude bits inverted, so that more negative means a lower
/// integer.
template <class Int>
at::Tensor ordered_bits(const at::Tensor& scores, at::ScalarType type) {
  const at::Tensor bits = scores.detach().add(0.0).view(type);
  const at::Tensor keys =
      at::where(bits.lt(0), bits.bitwise_xor(std::numeric_limits<Int>::max()), bits);
  return keys.masked_fill(scores.detach().isnan(), std::numeric_limits<Int>::min() + 1);
}

}  // namespace

at::Tensor total_order_keys(const at::Tensor& scores) {
  return scores.scalar_type() == at::kDouble ? ordered_bits<int64_t>(scores, at::kLong)
                                             : ordered_bits<int32_t>(scores, at::kInt);
}

}  // namespace baleen::ops
