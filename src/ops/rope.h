#pragma once
// Rotary embedding of the last R dims: adjacent elements (2i, 2i+1) of them are rotated by
// position * f_i. A table holds e^(i * angle) of consecutive positions; the model builds one per
// frequency set and slices it.
//
//   RopeTable table = make_rope_table(rope_frequencies(64, 10000.0, {}), 4096, like, numerics);
//   at::Tensor q = rotate(q_heads, table.rows(first_position, num_tokens), false, numerics);
//   at::Tensor entry = rotate(entries, table.rows(4 * first_entry, num_entries, 4), false,
//   numerics);

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/model_config.h"
#include "ops/numerics_config.h"

namespace baleen::ops {

/// R/2 frequencies theta^(-2i/R), blended with f_i / factor by the YaRN ramp when `yarn` is given.
std::vector<double> rope_frequencies(int64_t rotary_dim,
                                     double theta,
                                     const std::optional<YarnConfig>& yarn);

struct RopeTable {
  at::Tensor cis;  // complex of the compute dtype, [num_positions, R/2]

  int64_t num_positions() const { return cis.size(0); }
  /// Rows of positions first, first + step, ...: a view [count, R/2]. Checked against the table.
  at::Tensor rows(int64_t first_position, int64_t count, int64_t step = 1) const;
  /// Rows of arbitrary positions: int64 [...] -> [..., R/2].
  at::Tensor rows_at(const at::Tensor& positions) const;
};

/// Computed on the host in double, then moved. `like` gives dtype and device. numerics.rope_table
/// kCompute in double keeps double throughout; otherwise frequencies and angles are rounded to
/// float as the reference program does, cos and sin to float (kF32) or bf16 (kBf16).
RopeTable make_rope_table(const std::vector<double>& frequencies,
                          int64_t num_positions,
                          const at::Tensor& like,
                          const Numerics& numerics);

/// x [B, T, D] or [B, T, heads, D]; rows complex [T, R/2] or [B, T, R/2]. The first D - R dims pass
/// through; the rotated ones are stored as bf16 where the setting says so. `inverse` uses -angle.
at::Tensor rotate(const at::Tensor& x,
                  const at::Tensor& rows,
                  bool inverse,
                  const Numerics& numerics);

}  // namespace baleen::ops
