#pragma once
// Compressor pooling: a group of `ratio` consecutive tokens becomes one entry, channel by channel,
// by a softmax over the scores of its tokens. With overlap the first half of the channels ("carry")
// of a token counts for the NEXT group and the second half ("own") for its own. Nothing is rounded
// here.
//
//   at::Tensor z = add_position_bias(linear_unrounded(x, wgate, numerics), ape, first_position);
//   PooledRange range = pooled_range(first_position, rows, ratio, overlap);
//   at::Tensor entries = pool_groups(u, z, first_position, ratio, overlap, numerics);

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "ops/numerics_config.h"

namespace baleen::ops {

/// gate [B, T, C] of positions first_position ... ; ape [ratio, C] -> gate + ape[position mod
/// ratio].
at::Tensor add_position_bias(const at::Tensor& gate, const at::Tensor& ape, int64_t first_position);

struct PooledRange {
  int64_t first_entry = 0;
  int64_t num_entries = 0;
};

/// The entries that rows of positions [first_position, first_position + num_rows) can form: groups
/// wholly inside, and with overlap also the group before them inside (entry 0 has none and needs
/// none).
PooledRange pooled_range(int64_t first_position, int64_t num_rows, int64_t ratio, bool overlap);

/// u, z [B, R, c * d] (c = 2 with overlap, else 1), z with the position bias -> entries [B, E, d]
/// of pooled_range, in order. Rows outside those groups are not used and get gradient zero.
at::Tensor pool_groups(const at::Tensor& u,
                       const at::Tensor& z,
                       int64_t first_position,
                       int64_t ratio,
                       bool overlap,
                       const Numerics& numerics);

}  // namespace baleen::ops
