#include "model/attention.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>

#include "base/check.h"
#include "model/choices.h"
#include "model/compressor.h"
#include "model/entry_attention.h"
#include "model/group_rows.h"
#include "model/indexer.h"
#include "ops/attention.h"
#include "ops/grouped_projection.h"
#include "ops/linear.h"
#include "ops/rms_norm.h"
#include "ops/rounding.h"

namespace baleen::model {
namespace {

struct Projections {
  at::Tensor latent;  // [N, Q], normalised
  at::Tensor kv;      // [N, D], as it is attended to
};

at::Tensor rotate_flat(const at::Tensor& flat,
                       const LayerSpec& spec,
                       bool inverse,
                       const StepContext& step) {
  return ops::rotate(step.for_rotation(flat), step.rope_rows(spec), inverse, step.numerics)
      .reshape(flat.sizes());
}

Projections project(const at::Tensor& x,
                    const AttentionParameters& params,
                    const LayerSpec& spec,
                    const StepContext& step) {
  const ModelConfig& config = step.config;
  const ops::Numerics& numerics = step.numerics;
  const double eps = config.rms_norm_eps;
  const at::Tensor input = ops::linear_input(x, params.wq_a.format, numerics);
  const at::Tensor kv_input = params.wkv.format == params.wq_a.format
                                  ? input
                                  : ops::linear_input(x, params.wkv.format, numerics);
  Projections out;
  out.latent = ops::rms_norm(
      ops::linear_prepared(input, params.wq_a.weight, numerics), params.q_norm, eps, numerics);
  const at::Tensor kv = ops::rms_norm(
      ops::linear_prepared(kv_input, params.wkv.weight, numerics), params.kv_norm, eps, numerics);
  out.kv = quantize_kv_row(rotate_flat(kv, spec, false, step), step);
  return out;
}

/// Queries [N, nh, D] of the heads whose weights there are, normalised and rotated.
at::Tensor query_heads(const at::Tensor& latent,
                       const AttentionParameters& params,
                       const LayerSpec& spec,
                       const StepContext& step) {
  const at::Tensor heads =
      ops::linear(latent, params.wq_b.weight, params.wq_b.format, step.numerics)
          .view({step.num_rows(), params.attn_sink.size(0), step.config.head_dim});
  return rotate_flat(
      ops::query_head_norm(heads, step.config.rms_norm_eps, step.numerics), spec, false, step);
}

/// Output rows [N, H] from what the heads saw, [N_core, nh, D].
at::Tensor project_output(const at::Tensor& context,
                          const AttentionParameters& params,
                          const LayerSpec& spec,
                          const StepContext& step) {
  const ops::Numerics& numerics = step.numerics;
  const StepContext& core = step.core();
  const at::Tensor latent =
      ops::grouped_projection(rotate_flat(context, spec, true, core),
                              params.wo_a.weight,
                              params.wo_a.weight.size(0) / step.config.o_lora_rank,
                              numerics);
  if (step.parallel == nullptr) {
    return ops::linear(latent, params.wo_b.weight, params.wo_b.format, numerics);
  }
  const at::Tensor partial = ops::linear_unrounded(
      ops::linear_input(latent, params.wo_b.format, numerics), params.wo_b.weight, numerics);
  return ops::store_activation(step.parallel->sum_of_core(partial), numerics);
}

/// Attention on entries by this rank's heads, [B, T, E] per core group, to that of all heads, per
/// group of the step.
void sum_over_heads(std::vector<at::Tensor>& by_group, const StepContext& step) {
  int64_t width = 0;
  for (const at::Tensor& values : by_group) {
    width = std::max(width, values.size(2));
  }
  std::vector<at::Tensor> rows;
  rows.reserve(by_group.size());
  for (const at::Tensor& values : by_group) {
    rows.push_back(at::constant_pad_nd(values.flatten(0, 1), {0, width - values.size(2)}));
  }
  const at::Tensor sums = step.parallel->sum_of_core(at::cat(rows, 0));
  for (std::size_t g = 0; g < by_group.size(); ++g) {
    const SequenceGroup& group = step.groups[g];
    by_group[g] = sums.narrow(0, group.row_begin, group.num_rows())
                      .view({group.batch, group.tokens, width})
                      .narrow(2, 0, by_group[g].size(2));
  }
}

}  // namespace

at::Tensor attention(const at::Tensor& x,
                     const AttentionParameters& params,
                     const LayerSpec& spec,
                     const BlockPlace& place,
                     const StepContext& step) {
  const Projections projections = project(x, params, spec, step);
  const StepContext& core = step.core();
  const at::Tensor core_latent =
      step.parallel == nullptr ? projections.latent : step.parallel->core_rows(projections.latent);
  const at::Tensor queries = query_heads(core_latent, params, spec, core);
  step.capture(place.prefix, "attn.input", x);
  step.capture(place.prefix, "attn.q", queries);
  step.capture(place.prefix, "attn.kv", projections.kv);

  ProjectedRows projected;
  projected.kv = projections.kv;
  if (params.compressor) {
    projected.compressor = project_compressor(x, *params.compressor, step);
  }
  const std::size_t layer = place.layer(step.config);
  const bool picks_given =
      params.indexer && step.given != nullptr && !step.given->at(layer).picks.empty();
  const bool scores_wanted = step.taps != nullptr && step.taps->index_scores;
  std::optional<IndexerRows> indexer_rows;
  if (params.indexer && (!picks_given || scores_wanted)) {
    indexer_rows = project_indexer(x, projections.latent, *params.indexer, place, spec, step);
    projected.index_keys = indexer_rows->keys;
  }

  BALEEN_CHECK(!picks_given || step.given->at(layer).picks.size() == step.groups.size(),
               "{} groups of picks for {}",
               step.given->at(layer).picks.size(),
               step.groups.size());
  if (step.taps != nullptr) {
    LayerTaps& taps = place.taps_of(*step.taps, step.config);
    taps.index_scores.assign(step.groups.size(), at::Tensor());
    taps.entry_attention.assign(core.groups.size(), at::Tensor());
  }
  if (step.choices != nullptr && params.indexer) {
    step.choices->picks.emplace_back();
  }
  if (step.made != nullptr) {
    step.made->at(layer).picks.clear();
  }
  // What the queries of group g of the step attend to, chosen or given, and noted where asked.
  const auto picks_of = [&](std::size_t g, const at::Tensor& keys) {
    at::Tensor picks;
    if (indexer_rows) {
      picks = pick_entries(*indexer_rows, keys, place, spec, g, step);
    }
    if (picks_given) {
      picks = step.given->at(layer).picks[g];
      if (picks.defined()) {
        step.capture(
            place.prefix, "attn.picks", g, picks);  // instead of those that it would choose
      }
    }
    if (step.choices != nullptr) {
      step.choices->picks.back().push_back(picks);
    }
    if (step.made != nullptr) {
      step.made->at(layer).picks.push_back(picks);
    }
    return picks;
  };

  // Rows and picks of other ranks come for all groups at once; a rank alone takes group by group.
  std::vector<GroupRows> exchanged;
  std::vector<at::Tensor> core_picks(core.groups.size());
  if (step.parallel != nullptr) {
    exchanged = rows_over_ranks(projected, params, spec, step);
    for (std::size_t g = 0; params.indexer && g < step.groups.size(); ++g) {
      core_picks[g] = picks_of(g, exchanged[g].index_keys);
    }
    core_picks = step.parallel->core_picks(core_picks);
  }
  std::vector<at::Tensor> contexts;
  contexts.reserve(core.groups.size());
  for (std::size_t g = 0; g < core.groups.size(); ++g) {
    const SequenceGroup& group = core.groups[g];
    GroupRows rows = step.parallel == nullptr
                         ? rows_of_group(projected, params, spec, place, group, step)
                         : std::move(exchanged[g]);
    ops::AttentionRows& seen = rows.attention;
    if (params.indexer) {
      seen.picks = step.parallel == nullptr ? picks_of(g, rows.index_keys) : core_picks[g];
    }
    const at::Tensor query = core.rows_of(queries, group);
    if (step.taps != nullptr && step.taps->entry_attention && seen.entries.defined()) {
      place.taps_of(*step.taps, step.config).entry_attention.at(g) =
          entry_attention(query, seen, params.attn_sink, group.first_position);
    }
    const at::Tensor context =
        ops::sparse_attention(query, seen, params.attn_sink, group.first_position, step.numerics);
    step.capture(place.prefix, "attn.entries", g, seen.entries);
    step.capture(place.prefix, "attn.context", g, context);
    contexts.push_back(context.reshape({group.num_rows(), query.size(2), step.config.head_dim}));
  }
  if (step.parallel != nullptr && step.taps != nullptr && step.taps->entry_attention &&
      params.compressor) {
    sum_over_heads(place.taps_of(*step.taps, step.config).entry_attention, step);
  }
  const at::Tensor context = contexts.size() == 1 ? contexts[0] : at::cat(contexts, 0);
  const at::Tensor output = project_output(context, params, spec, step);
  step.capture(place.prefix, "attn.output", output);
  return output;
}

}  // namespace baleen::model
