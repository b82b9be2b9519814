#include "ops/compressor.h"

#include <algorithm>
#include <limits>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include "base/check.h"
#include "kernels/compressor_pool/compressor_pool_cpu.h"
#include "ops/invariant.h"
#include "ops/needs_gradient.h"

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

namespace {

constexpr int64_t kEntryGrain = 8;  // entries of a task

/// The entries of `range`, which is not empty, by tensor code.
at::Tensor pooled_by_tensors(const at::Tensor& u,
                             const at::Tensor& z,
                             const PooledRange& range,
                             int64_t first_position,
                             int64_t ratio,
                             bool overlap) {
  const int64_t batch = u.size(0);
  const int64_t groups = range.num_entries;
  const int64_t width = overlap ? u.size(2) / 2 : u.size(2);
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

/// The same entry by entry through the kernel of fixed order.
at::Tensor pooled_by_kernel(const at::Tensor& u,
                            const at::Tensor& z,
                            const PooledRange& range,
                            int64_t first_position,
                            int64_t ratio,
                            bool overlap) {
  const at::Tensor values = u.contiguous();
  const at::Tensor scores = z.contiguous();
  const int64_t channels = u.size(2);
  const int64_t width = overlap ? channels / 2 : channels;
  at::Tensor entries = at::empty({u.size(0), range.num_entries, width}, u.options());
  AT_DISPATCH_FLOATING_TYPES(u.scalar_type(), "pool_groups", [&] {
    const int64_t all = u.size(0) * range.num_entries;
    at::parallel_for(0, all, kEntryGrain, [&](int64_t task_begin, int64_t task_end) {
      std::vector<const scalar_t*> value_rows;
      std::vector<const scalar_t*> score_rows;
      for (int64_t i = task_begin; i < task_end; ++i) {
        value_rows.clear();
        score_rows.clear();
        const int64_t sequence = i / range.num_entries;
        const int64_t entry = range.first_entry + i % range.num_entries;
        const auto add_group = [&](int64_t group, int64_t channel) {
          for (int64_t p = group * ratio; p < (group + 1) * ratio; ++p) {
            const int64_t offset = (sequence * u.size(1) + p - first_position) * channels + channel;
            value_rows.push_back(values.const_data_ptr<scalar_t>() + offset);
            score_rows.push_back(scores.const_data_ptr<scalar_t>() + offset);
          }
        };
        if (overlap && entry > 0) {
          add_group(entry - 1, 0);
        }
        add_group(entry, channels - width);
        kernels::compressor_pool_cpu<scalar_t>(
            {.values = value_rows.data(),
             .scores = score_rows.data(),
             .entry = entries.mutable_data_ptr<scalar_t>() + i * width,
             .num_slots = static_cast<int64_t>(value_rows.size()),
             .width = width});
      }
    });
  });
  return entries;
}

}  // namespace

at::Tensor pool_groups(const at::Tensor& u,
                       const at::Tensor& z,
                       int64_t first_position,
                       int64_t ratio,
                       bool overlap,
                       const Numerics& numerics) {
  BALEEN_CHECK(u.dim() == 3 && u.sizes() == z.sizes() && (!overlap || u.size(2) % 2 == 0),
               "values and scores differ in shape, or {} channels cannot be halved",
               u.size(-1));
  const PooledRange range = pooled_range(first_position, u.size(1), ratio, overlap);
  if (range.num_entries == 0) {
    return u.narrow(1, 0, 0).narrow(2, 0, overlap ? u.size(2) / 2 : u.size(2));
  }
  const auto by_tensors = [&] {
    return pooled_by_tensors(u, z, range, first_position, ratio, overlap);
  };
  if (numerics.invariant()) {
    return invariant_value(u, needs_gradient(u, z), by_tensors, [&] {
      return pooled_by_kernel(u, z, range, first_position, ratio, overlap);
    });
  }
  return by_tensors();
}

}  // namespace baleen::ops
