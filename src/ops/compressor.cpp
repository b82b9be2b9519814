#include "ops/compressor.h"

#include <algorithm>
#include <limits>

#include <ATen/ATen.h>

#include "base/check.h"

namespace baleen::ops {

at::Tensor add_position_bias(const at::Tensor& gate,
                             const at::Tensor& ape,
                             int64_t first_position) {
  const int64_t ratio = ape.size(0);
  const int64_t tokens = gate.size(1);
  BALEEN_CHECK(first_position >= 0 && gate.dim() == 3 && ape.size(1) == gate.size(2),
               "first_position={} gate width {} bias width {}",
               first_position,
               gate.size(2),
               ape.size(1));
  const int64_t phase = first_position % ratio;
  const at::Tensor turned = phase == 0 ? ape : ape.roll(-phase, 0);
  return gate + turned.repeat({(tokens + ratio - 1) / ratio, 1}).narrow(0, 0, tokens);
}

PooledRange pooled_range(int64_t first_position, int64_t num_rows, int64_t ratio, bool overlap) {
  BALEEN_CHECK(first_position >= 0 && num_rows >= 0 && ratio > 0,
               "first={} rows={} ratio={}",
               first_position,
               num_rows,
               ratio);
  const int64_t first_group = (first_position + ratio - 1) / ratio;
  const int64_t first_entry = overlap && first_position > 0 ? first_group + 1 : first_group;
  const int64_t end_entry = (first_position + num_rows) / ratio;
  return {first_entry, std::max<int64_t>(0, end_entry - first_entry)};
}

at::Tensor pool_groups(
    const at::Tensor& u, const at::Tensor& z, int64_t first_position, int64_t ratio, bool overlap) {
  BALEEN_CHECK(u.dim() == 3 && u.sizes() == z.sizes() && (!overlap || u.size(2) % 2 == 0),
               "values and scores differ in shape, or {} channels cannot be halved",
               u.size(-1));
  const PooledRange range = pooled_range(first_position, u.size(1), ratio, overlap);
  const int64_t batch = u.size(0);
  const int64_t groups = range.num_entries;
  const int64_t width = overlap ? u.size(2) / 2 : u.size(2);
  if (groups == 0) {
    return u.narrow(1, 0, 0).narrow(2, 0, width);
  }
  const int64_t begin = range.first_entry * ratio - first_position;
  const auto own = [&](const at::Tensor& rows) {
    return rows.narrow(1, begin, groups * ratio)
        .narrow(2, rows.size(2) - width, width)
        .unflatten(1, {groups, ratio});
  };
  if (!overlap) {
    return (at::softmax(own(z), 2) * own(u)).sum(2);
  }
  // Slots of the group before come first; entry 0 has none: value 0, score -inf.
  const bool from_start = range.first_entry == 0;
  const int64_t carried = from_start ? groups - 1 : groups;
  const auto slots = [&](const at::Tensor& rows, double absent) {
    at::Tensor carry = rows.narrow(1, from_start ? begin : begin - ratio, carried * ratio)
                           .narrow(2, 0, width)
                           .unflatten(1, {carried, ratio});
    if (from_start) {
      carry = at::cat({at::full({batch, 1, ratio, width}, absent, rows.options()), carry}, 1);
    }
    return at::cat({carry, own(rows)}, 2);
  };
  const at::Tensor weights = at::softmax(slots(z, -std::numeric_limits<double>::infinity()), 2);
  return (weights * slots(u, 0.0)).sum(2);
}

}  // namespace baleen::ops
