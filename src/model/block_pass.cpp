#include "model/block_pass.h"

#include <string>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>

#include "base/check.h"
#include "model/block.h"
#include "model/mtp.h"
#include "model/recompute.h"

namespace baleen::model {
namespace {

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

}  // namespace

BlockPass::BlockPass(const ModelParameters& params,
                     Recompute recompute,
                     const ChoicesByLayer* given,
                     Taps& taps)
    : shared_(std::make_shared<Shared>(Shared{params, recompute, {}, {}})), taps_(taps) {
  const std::size_t layers = params.config.layers.size();
  shared_->made.resize(layers);
  taps_.layers.resize(layers);
  if (given != nullptr) {
    BALEEN_CHECK(
        given->size() == layers, "choices of {} layers, {} expected", given->size(), layers);
    shared_->given = *given;
  }
}

at::Tensor BlockPass::through(const at::Tensor& input,
                              std::size_t layer,
                              const std::shared_ptr<StepContext>& step,
                              const RunBlock& run) {
  const std::shared_ptr<Shared>& shared = shared_;
  if (shared->recompute == Recompute::kNone || !at::GradMode::is_enabled()) {
    step->taps = &taps_;
    step->made = &shared->made;
    step->given = shared->given.empty() ? nullptr : &shared->given;
    return run(input, *step);
  }
  // The first run chooses, unless choices are given; the second one takes what the first one did.
  const auto first = std::make_shared<bool>(true);
  const auto first_taps = std::make_shared<LayerTaps>();
  const Taps switches{.routing = taps_.routing,
                      .index_scores = taps_.index_scores,
                      .entry_attention = taps_.entry_attention,
                      .layers = {}};
  Segment segment = [shared, step, layer, run, first, first_taps, switches](const at::Tensor& x) {
    Taps own = switches;
    own.layers.resize(shared->made.size());
    StepContext context = *step;
    context.taps = &own;
    if (*first) {
      context.given = shared->given.empty() ? nullptr : &shared->given;
      context.made = &shared->made;
    } else {
      own.entry_attention = false;  // a constant of the loss, known from the first run
      context.given = &shared->made;
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
  taps_.layers[layer] = std::move(*first_taps);
  return results[0];
}

at::Tensor BlockPass::run_block(const at::Tensor& streams,
                                std::size_t index,
                                const std::shared_ptr<StepContext>& step) {
  const RunBlock run = [shared = shared_, index](const at::Tensor& x, const StepContext& context) {
    const BlockPlace place{.prefix = "layers." + std::to_string(index) + ".", .index = index};
    return model::run_block(x, shared->params.blocks[index], place, context);
  };
  return through(streams, index, step, run);
}

at::Tensor BlockPass::run_mtp_block(const at::Tensor& main_streams,
                                    const std::shared_ptr<StepContext>& step) {
  BALEEN_CHECK(shared_->params.mtp.size() == 1, "{} MTP blocks", shared_->params.mtp.size());
  const RunBlock run = [shared = shared_](const at::Tensor& x, const StepContext& context) {
    return model::run_mtp_block(x, shared->params, 0, context);
  };
  return through(
      main_streams, static_cast<std::size_t>(shared_->params.config.num_hidden_layers), step, run);
}

}  // namespace baleen::model
