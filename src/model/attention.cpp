#include "model/attention.h"

#include <algorithm>
#include <optional>
#include <vector>

#include <ATen/ops/cat.h>

#include "model/choices.h"
#include "model/compressor.h"
#include "model/entry_attention.h"
#include "model/indexer.h"
#include "ops/attention.h"
#include "ops/grouped_projection.h"
#include "ops/linear.h"
#include "ops/rms_norm.h"

namespace baleen::model {
namespace {

struct Projections {
  at::Tensor latent;  // [N, Q], normalised
  at::Tensor query;   // [N, nh, D], normalised and rotated
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
  const at::Tensor heads =
      ops::linear(out.latent, params.wq_b.weight, params.wq_b.format, numerics)
          .view({step.num_rows(), config.num_attention_heads, config.head_dim});
  out.query = rotate_flat(ops::query_head_norm(heads, eps, numerics), spec, false, step);
  const at::Tensor kv = ops::rms_norm(
      ops::linear_prepared(kv_input, params.wkv.weight, numerics), params.kv_norm, eps, numerics);
  out.kv = quantize_kv_row(rotate_flat(kv, spec, false, step), step);
  return out;
}

/// Raw rows that the group's queries see: their own, after the earlier ones that the state holds
/// and, in a draft layer, does not hide.
ops::AttentionRows raw_rows(const at::Tensor& kv,
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

}  // namespace

at::Tensor attention(const at::Tensor& x,
                     const AttentionParameters& params,
                     const LayerSpec& spec,
                     const BlockPlace& place,
                     const StepContext& step) {
  const Projections projections = project(x, params, spec, step);
  step.capture(place.prefix, "attn.input", x);
  step.capture(place.prefix, "attn.q", projections.query);
  step.capture(place.prefix, "attn.kv", projections.kv);

  std::optional<CompressorRows> compressor_rows;
  if (params.compressor) {
    compressor_rows = project_compressor(x, *params.compressor, step);
  }
  std::optional<IndexerRows> indexer_rows;
  if (params.indexer) {
    indexer_rows = project_indexer(x, projections.latent, *params.indexer, place, spec, step);
  }

  if (step.choices != nullptr && indexer_rows) {
    step.choices->picks.emplace_back();
  }
  std::vector<at::Tensor> contexts;
  contexts.reserve(step.groups.size());
  for (std::size_t g = 0; g < step.groups.size(); ++g) {
    const SequenceGroup& group = step.groups[g];
    ops::AttentionRows rows = raw_rows(projections.kv, group, place, step);
    if (compressor_rows) {
      CompressorState* state =
          group.state == nullptr ? nullptr : &*place.state_of(*group.state).main;
      rows.entries = compressed_entries(
          *compressor_rows, *params.compressor, spec, EntryKind::kAttention, group, state, step);
      rows.ratio = rows.entries.defined() ? spec.ratio : 0;
    }
    if (indexer_rows) {
      rows.picks = pick_entries(*indexer_rows, *params.indexer, place, spec, g, step);
      if (step.choices != nullptr) {
        step.choices->picks.back().push_back(rows.picks);
      }
    }
    const at::Tensor query = step.rows_of(projections.query, group);
    if (step.taps != nullptr && step.taps->entry_attention && rows.entries.defined()) {
      place.taps_of(*step.taps, step.config).entry_attention =
          entry_attention(query, rows, params.attn_sink, group.first_position);
    }
    const at::Tensor context =
        ops::sparse_attention(query, rows, params.attn_sink, group.first_position, step.numerics);
    step.capture(place.prefix, "attn.entries", g, rows.entries);
    step.capture(place.prefix, "attn.context", g, context);
    contexts.push_back(
        context.reshape({group.num_rows(), step.config.num_attention_heads, step.config.head_dim}));
  }
  const at::Tensor context = contexts.size() == 1 ? contexts[0] : at::cat(contexts, 0);
  const at::Tensor latent = ops::grouped_projection(rotate_flat(context, spec, true, step),
                                                    params.wo_a.weight,
                                                    step.config.o_groups,
                                                    step.numerics);
  const at::Tensor output =
      ops::linear(latent, params.wo_b.weight, params.wo_b.format, step.numerics);
  step.capture(place.prefix, "attn.output", output);
  return output;
}

}  // namespace baleen::model
