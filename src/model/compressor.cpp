#include "model/compressor.h"

#include <algorithm>
#include <vector>

#include <ATen/ops/cat.h>

#include "base/check.h"
#include "ops/compressor.h"
#include "ops/fake_quantize.h"
#include "ops/hadamard.h"
#include "ops/linear.h"
#include "ops/rms_norm.h"
#include "ops/rounding.h"

namespace baleen::model {
namespace {

constexpr int64_t kKvBlock = 64;  // elements that share an S8 scale; part of the format

/// Pooled entries first_entry ... of [B, E, d] as they are attended to.
at::Tensor finish_entries(const at::Tensor& pooled,
                          int64_t first_entry,
                          const CompressorParameters& params,
                          const LayerSpec& spec,
                          EntryKind kind,
                          const StepContext& step) {
  const at::Tensor normed = ops::rms_norm(ops::store_activation(pooled, step.numerics),
                                          params.norm,
                                          step.config.rms_norm_eps,
                                          step.numerics);
  // An entry stands where the first token of its group stands.
  const at::Tensor rope =
      step.tables.compressed.rows(spec.ratio * first_entry, pooled.size(1), spec.ratio);
  const at::Tensor rotated = ops::rotate(normed, rope, false, step.numerics);
  return kind == EntryKind::kIndexKey ? ops::index_transform(rotated, step.numerics)
                                      : quantize_kv_row(rotated, step);
}

}  // namespace

CompressorRows project_compressor(const at::Tensor& x,
                                  const CompressorParameters& params,
                                  const StepContext& step) {
  return {.value = ops::linear_unrounded(x, params.wkv, step.numerics),
          .gate = ops::linear_unrounded(x, params.wgate, step.numerics)};
}

at::Tensor quantize_kv_row(const at::Tensor& row, const StepContext& step) {
  const int64_t rotary = step.config.qk_rope_head_dim;
  const int64_t plain = row.size(-1) - rotary;
  if (!step.numerics.kv_s8 || plain == 0) {
    return row;
  }
  return at::cat(
      {ops::quantize_fp8_block(row.narrow(-1, 0, plain), kKvBlock), row.narrow(-1, plain, rotary)},
      -1);
}

CompressorRows with_position_bias(const CompressorRows& rows,
                                  const CompressorParameters& params,
                                  const StepContext& step) {
  std::vector<at::Tensor> gates;
  gates.reserve(step.groups.size());
  for (const SequenceGroup& group : step.groups) {
    gates.push_back(
        ops::add_position_bias(step.rows_of(rows.gate, group), params.ape, group.first_position)
            .flatten(0, 1));
  }
  return {.value = rows.value, .gate = gates.size() == 1 ? gates[0] : at::cat(gates, 0)};
}

at::Tensor entries_from(const CompressorRows& rows,
                        int64_t first_position,
                        int64_t first_entry,
                        int64_t num_entries,
                        const CompressorParameters& params,
                        const LayerSpec& spec,
                        EntryKind kind,
                        const StepContext& step) {
  const bool overlap = spec.kind == LayerKind::kC4;
  const at::Tensor pooled =
      ops::pool_groups(rows.value, rows.gate, first_position, spec.ratio, overlap, step.numerics);
  // Group 0 needs no carry, so rows from position 0 form its entry whether or not it is wanted.
  const int64_t first_pooled =
      ops::pooled_range(first_position, rows.value.size(1), spec.ratio, overlap).first_entry;
  const at::Tensor wanted = pooled.narrow(1, first_entry - first_pooled, num_entries);
  return finish_entries(wanted, first_entry, params, spec, kind, step);
}

at::Tensor compressed_entries(const CompressorRows& rows,
                              const CompressorParameters& params,
                              const LayerSpec& spec,
                              EntryKind kind,
                              const SequenceGroup& group,
                              CompressorState* state,
                              const StepContext& step) {
  const bool overlap = spec.kind == LayerKind::kC4;
  const at::Tensor value = step.rows_of(rows.value, group);
  const at::Tensor score =
      ops::add_position_bias(step.rows_of(rows.gate, group), params.ape, group.first_position);
  const int64_t end = group.first_position + group.tokens;
  const int64_t num_entries = end / spec.ratio;
  if (state == nullptr) {
    if (num_entries == 0) {
      return {};
    }
    return finish_entries(ops::pool_groups(value, score, 0, spec.ratio, overlap, step.numerics),
                          0,
                          params,
                          spec,
                          kind,
                          step);
  }

  state->rows->append(at::cat({value, score}, -1).squeeze(0));
  const int64_t known = state->entries->end();
  BALEEN_CHECK(known == group.first_position / spec.ratio, "{} entries", known);
  if (num_entries > known) {
    // With overlap the first new entry also takes the carry half of the group before it.
    const int64_t first_group = overlap ? std::max<int64_t>(0, known - 1) : known;
    const int64_t first_row = first_group * spec.ratio;
    const at::Tensor span = state->rows->view(first_row, num_entries * spec.ratio).unsqueeze(0);
    const int64_t channels = span.size(-1) / 2;
    const at::Tensor fresh = entries_from(
        {.value = span.narrow(-1, 0, channels), .gate = span.narrow(-1, channels, channels)},
        first_row,
        known,
        num_entries - known,
        params,
        spec,
        kind,
        step);
    state->entries->append(fresh.squeeze(0));
  }
  return num_entries == 0 ? at::Tensor() : state->entries->view(0, num_entries).unsqueeze(0);
}

}  // namespace baleen::model
