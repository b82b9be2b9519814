#include "model/indexer.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>

#include "ops/hadamard.h"
#include "ops/indexer.h"
#include "ops/linear.h"

namespace baleen::model {
namespace {

/// Scores matter only when a query sees more entries than it may keep, or when somebody looks.
bool scores_needed(const SequenceGroup& group, const LayerSpec& spec, const StepContext& step) {
  const int64_t num_entries = (group.first_position + group.tokens) / spec.ratio;
  return num_entries > step.config.index_topk || (num_entries > 0 && step.trace != nullptr) ||
         (step.taps != nullptr && step.taps->index_scores);
}

}  // namespace

bool index_gradients_wanted(const StepContext& step) {
  return at::GradMode::is_enabled() && step.taps != nullptr && step.taps->index_scores;
}

IndexerRows project_indexer(const at::Tensor& x,
                            const at::Tensor& latent,
                            const IndexerParameters& params,
                            const BlockPlace& place,
                            const LayerSpec& spec,
                            const StepContext& step) {
  const at::AutoGradMode mode(index_gradients_wanted(step));
  const at::Tensor input = x.detach();
  IndexerRows rows;
  rows.keys = project_compressor(input, params.compressor, step);
  const StepContext& core = step.core();
  const bool needed =
      std::any_of(core.groups.begin(), core.groups.end(), [&](const SequenceGroup& group) {
        return scores_needed(group, spec, step);
      });
  if (!needed) {
    return rows;
  }
  const int64_t width = step.config.index_head_dim;
  const at::Tensor query =
      ops::linear(latent.detach(), params.wq_b.weight, params.wq_b.format, step.numerics)
          .view({step.num_rows(), step.config.index_n_heads, width});
  const at::Tensor rotated =
      ops::rotate(step.for_rotation(query), step.rope_rows(spec), false, step.numerics);
  rows.query = ops::index_transform(rotated, step.numerics).reshape(query.sizes());
  rows.head_weights = ops::indexer_head_weights(
      ops::linear(input, params.weights_proj, ops::LinearFormat::kPlain, step.numerics),
      width,
      step.numerics);
  step.capture(place.prefix, "attn.index_query", rows.query);
  return rows;
}

at::Tensor pick_entries(const IndexerRows& rows,
                        const at::Tensor& keys,
                        const BlockPlace& place,
                        const LayerSpec& spec,
                        std::size_t group_index,
                        const StepContext& step) {
  const SequenceGroup& group = step.groups[group_index];
  const at::AutoGradMode mode(index_gradients_wanted(step));
  // By the core's group: its tokens get one mask, whoever picks for them.
  if (!keys.defined() || !scores_needed(step.core().groups[group_index], spec, step)) {
    return {};
  }
  const at::Tensor scores = ops::indexer_scores(
      step.rows_of(rows.query, group), keys, step.rows_of(rows.head_weights, group), step.numerics);
  if (step.taps != nullptr && step.taps->index_scores) {
    place.taps_of(*step.taps, step.config).index_scores.at(group_index) = scores;
  }
  const at::Tensor picks = ops::indexer_pick_mask(
      scores.detach(), group.first_position, spec.ratio, step.config.index_topk);
  step.capture(place.prefix, "attn.index_keys", group_index, keys);
  step.capture(place.prefix, "attn.index_scores", group_index, scores);
  step.capture(place.prefix, "attn.picks", group_index, picks);
  return picks;
}

}  // namespace baleen::model
