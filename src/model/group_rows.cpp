#include "model/group_rows.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>

namespace baleen::model {
namespace {

/// Raw rows that the group's queries see: their own, after the earlier ones that the state holds
/// and, in a draft layer, does not hide.
ops::AttentionRows raw_rows_of(const at::Tensor& kv,
                               const SequenceGroup& group,
                               const BlockPlace& place,
                               const StepContext& step) {
  ops::AttentionRows out;
  out.window = step.config.sliding_window;
  out.raw = step.rows_of(kv, group);
  if (group.state == nullptr) {
    return out;
  }
  RowStore& history = *place.state_of(*group.state).raw;
  history.append(out.raw.squeeze(0));
  int64_t first = std::max<int64_t>(0, group.first_position - (out.window - 1));
  const HiddenDraftRows hidden =
      place.is_mtp ? group.state->hidden_draft_rows() : HiddenDraftRows();
  if (hidden.before > first) {
    out.withheld = std::min(hidden.before, group.first_position) - first;
    first += out.withheld;
  }
  out.raw = history.view(first, group.first_position + group.tokens).unsqueeze(0);
  if (hidden.hole >= first && hidden.hole < group.first_position) {
    out.hidden_row = hidden.hole - first;
    out.raw = out.raw.clone();  // what lies there may be anything, even not finite
    out.raw.select(1, out.hidden_row).zero_();
  }
  return out;
}

/// Entries [B, e, D], or with an indexer [B, e, D + dI], that the tokens of each group of the step
/// closed; e may be 0.
std::vector<at::Tensor> closed_entries(const ProjectedRows& projected,
                                       const AttentionParameters& params,
                                       const LayerSpec& spec,
                                       const StepContext& step) {
  const CompressorRows main = with_position_bias(*projected.compressor, *params.compressor, step);
  std::vector<at::Tensor> columns = {main.value, main.gate};
  if (projected.index_keys) {
    const at::AutoGradMode mode(index_gradients_wanted(step));
    const CompressorRows index =
        with_position_bias(*projected.index_keys, params.indexer->compressor, step);
    columns.insert(columns.end(), {index.value, index.gate});
  }
  const bool overlap = spec.kind == LayerKind::kC4;
  std::vector<at::Tensor> closed;
  for (const PoolingRows& pooling : step.parallel->pooling_rows(columns, spec.ratio, overlap)) {
    const auto entries =
        [&](std::size_t column, const CompressorParameters& compressor, EntryKind kind) {
          return entries_from({.value = pooling.rows[column], .gate = pooling.rows[column + 1]},
                              pooling.first_position,
                              pooling.first_entry,
                              pooling.num_entries,
                              compressor,
                              spec,
                              kind,
                              step);
        };
    closed.push_back(entries(0, *params.compressor, EntryKind::kAttention));
    if (projected.index_keys) {
      at::Tensor keys;
      {
        const at::AutoGradMode mode(index_gradients_wanted(step));
        keys = entries(2, params.indexer->compressor, EntryKind::kIndexKey);
      }
      closed.back() = at::cat({closed.back(), keys}, -1);
    }
  }
  return closed;
}

}  // namespace

GroupRows rows_of_group(const ProjectedRows& projected,
                        const AttentionParameters& params,
                        const LayerSpec& spec,
                        const BlockPlace& place,
                        const SequenceGroup& group,
                        const StepContext& step) {
  GroupRows out;
  out.attention = raw_rows_of(projected.kv, group, place, step);
  LayerState* state = group.state == nullptr ? nullptr : &place.state_of(*group.state);
  if (projected.compressor) {
    out.attention.entries = compressed_entries(*projected.compressor,
                                               *params.compressor,
                                               spec,
                                               EntryKind::kAttention,
                                               group,
                                               state == nullptr ? nullptr : &*state->main,
                                               step);
  }
  if (projected.index_keys) {
    const at::AutoGradMode mode(index_gradients_wanted(step));
    out.index_keys = compressed_entries(*projected.index_keys,
                                        params.indexer->compressor,
                                        spec,
                                        EntryKind::kIndexKey,
                                        group,
                                        state == nullptr ? nullptr : &*state->index,
                                        step);
  }
  out.attention.ratio = out.attention.entries.defined() ? spec.ratio : 0;
  return out;
}

std::vector<GroupRows> rows_over_ranks(const ProjectedRows& projected,
                                       const AttentionParameters& params,
                                       const LayerSpec& spec,
                                       const StepContext& step) {
  std::vector<GroupRows> out;
  for (at::Tensor& raw : step.parallel->window_rows(projected.kv)) {
    GroupRows& rows = out.emplace_back();
    rows.attention.raw = std::move(raw);
    rows.attention.window = step.config.sliding_window;
  }
  if (!projected.compressor) {
    return out;
  }
  const int64_t width = step.config.head_dim;
  const std::vector<at::Tensor> entries =
      step.parallel->shared_entries(closed_entries(projected, params, spec, step),
                                    spec.ratio,
                                    spec.kind == LayerKind::kC4,
                                    width);
  for (std::size_t g = 0; g < out.size(); ++g) {
    out[g].attention.entries = entries[g].narrow(-1, 0, width);
    out[g].attention.ratio = spec.ratio;
    if (projected.index_keys) {
      out[g].index_keys = entries[g].narrow(-1, width, entries[g].size(-1) - width);
    }
  }
  return out;
}

}  // namespace baleen::model
