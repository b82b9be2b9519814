#include "train/packed_forward.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <ATen/ATen.h>

#include "base/check.h"
#include "model/block.h"
#include "model/head.h"
#include "model/mtp.h"
#include "ops/embedding.h"
#include "train/recompute.h"

namespace baleen::train {
namespace {

using model::BlockPlace;
using model::ChoicesByLayer;
using model::LayerTaps;
using model::StepContext;

/// What the blocks of one pass share. Segments own it, because backward runs them again.
struct Pass {
  model::ModelParameters params;  // shares the tensors of the caller's
  ops::Numerics numerics;
  model::RopeTables tables;  // shares the rows of the caller's
  PackedForwardOptions options;
  ChoicesByLayer given;  // empty: none
  ChoicesByLayer made;   // what the first run chose
};

/// Differentiable taps of a layer, in the order in which a segment returns them.
std::vector<at::Tensor> tap_values(const LayerTaps& taps) {
  std::vector<at::Tensor> values;
  if (taps.router_scores.defined()) {
    values.push_back(taps.router_scores);
  }
  for (const at::Tensor& scores : taps.index_scores) {
    if (scores.defined()) {
      values.push_back(scores);
    }
  }
  return values;
}

void replace_tap_values(LayerTaps& taps, std::vector<at::Tensor>::const_iterator value) {
  if (taps.router_scores.defined()) {
    taps.router_scores = *value++;
  }
  for (at::Tensor& scores : taps.index_scores) {
    if (scores.defined()) {
      scores = *value++;
    }
  }
}

using RunBlock = std::function<at::Tensor(const at::Tensor&, const StepContext&)>;

/// One block over `input`, recomputed where asked. Fills `taps` for its layer.
at::Tensor through_block(const std::shared_ptr<Pass>& pass,
                         const std::shared_ptr<StepContext>& step,
                         const at::Tensor& input,
                         std::size_t layer,
                         const RunBlock& run,
                         model::Taps& taps) {
  if (pass->options.recompute == Recompute::kNone || !at::GradMode::is_enabled()) {
    step->taps = &taps;
    step->made = &pass->made;
    step->given = pass->given.empty() ? nullptr : &pass->given;
    return run(input, *step);
  }
  // The first run chooses, unless choices are given; the second one takes what the first one did.
  const auto first = std::make_shared<bool>(true);
  const auto first_taps = std::make_shared<LayerTaps>();
  model::Taps switches{.routing = taps.routing,
                       .index_scores = taps.index_scores,
                       .entry_attention = taps.entry_attention,
                       .layers = {}};
  Segment segment = [pass, step, layer, run, first, first_taps, switches](const at::Tensor& x) {
    model::Taps own = switches;
    own.layers.resize(pass->made.size());
    StepContext context = *step;
    context.taps = &own;
    if (*first) {
      context.given = pass->given.empty() ? nullptr : &pass->given;
      context.made = &pass->made;
    } else {
      own.entry_attention = false;  // a constant of the loss, known from the first run
      context.given = &pass->made;
      context.made = nullptr;
    }
    std::vector<at::Tensor> results = {run(x, context)};
    for (at::Tensor& value : tap_values(own.layers[layer])) {
      results.push_back(std::move(value));
    }
    if (*first) {
      *first_taps = own.layers[layer];
      *first = false;
    }
    return results;
  };
  const std::vector<at::Tensor> results = recomputed(std::move(segment), input);
  replace_tap_values(*first_taps, results.begin() + 1);
  taps.layers[layer] = std::move(*first_taps);
  return results[0];
}

std::shared_ptr<StepContext> make_step(const Pass& pass,
                                       const at::Tensor& ids,
                                       const std::vector<model::SequenceGroup>& groups) {
  return std::make_shared<StepContext>(pass.params.config, pass.numerics, pass.tables, ids, groups);
}

int64_t longest(const std::vector<model::SequenceGroup>& groups) {
  int64_t tokens = 0;
  for (const model::SequenceGroup& group : groups) {
    tokens = std::max(tokens, group.tokens);
  }
  return tokens;
}

at::Tensor rows_of_streams(const at::Tensor& streams, const at::Tensor& rows) {
  return streams.flatten(1).index_select(0, rows).view({-1, streams.size(1), streams.size(2)});
}

}  // namespace

PackedForward packed_forward(const model::ModelParameters& params,
                             const PackedBatch& batch,
                             const PackedForwardOptions& options) {
  BALEEN_CHECK(
      options.tables != nullptr && options.tables->num_positions() >= longest(batch.groups),
      "rotation tables for {} positions",
      longest(batch.groups));
  const ModelConfig& config = params.config;
  const auto pass =
      std::make_shared<Pass>(Pass{params, options.numerics, *options.tables, options, {}, {}});
  pass->made.resize(config.layers.size());
  if (options.given != nullptr) {
    BALEEN_CHECK(options.given->size() == config.layers.size(), "{}", options.given->size());
    pass->given = *options.given;
  }
  PackedForward out;
  out.taps.routing = options.routing;
  out.taps.index_scores = options.index || options.index_scores;
  out.taps.entry_attention = options.index;
  out.taps.layers.resize(config.layers.size());

  BALEEN_CHECK(options.trace == nullptr || !at::GradMode::is_enabled(), "a trace with gradients");
  const auto step = make_step(*pass, batch.ids, batch.groups);
  step->trace = options.trace;
  at::Tensor streams = ops::embed_streams(params.embed, batch.ids, config.hc_mult);
  step->capture("", "embedding", streams);
  for (std::size_t i = 0; i < params.blocks.size(); ++i) {
    const RunBlock run = [pass, i](const at::Tensor& x, const StepContext& context) {
      const BlockPlace place{.prefix = "layers." + std::to_string(i) + ".", .index = i};
      return model::run_block(x, pass->params.blocks[i], place, context);
    };
    streams = through_block(pass, step, streams, i, run, out.taps);
  }
  out.hidden = model::head_hidden(
      rows_of_streams(streams, batch.main.rows), params.final_head, config, options.numerics);
  step->capture("", "hidden", out.hidden);

  if (options.with_mtp && !batch.mtp_groups.empty()) {
    BALEEN_CHECK(params.mtp.size() == 1, "{} MTP blocks", params.mtp.size());
    const auto mtp_step = make_step(*pass, batch.mtp_ids, batch.mtp_groups);
    const RunBlock run = [pass](const at::Tensor& x, const StepContext& context) {
      return model::run_mtp_block(x, pass->params, 0, context);
    };
    const auto layer = static_cast<std::size_t>(config.num_hidden_layers);
    const at::Tensor mtp_streams = through_block(
        pass, mtp_step, rows_of_streams(streams, batch.mtp_rows), layer, run, out.taps);
    out.mtp_hidden = model::head_hidden(
        rows_of_streams(mtp_streams, batch.mtp.rows), params.mtp[0].head, config, options.numerics);
  }
  if (options.keep_choices) {
    out.choices = pass->made;
  }
  return out;
}

}  // namespace baleen::train
