#include "train/packed_forward.h"

#include <algorithm>
#include <memory>
#include <utility>

#include <ATen/ATen.h>

#include "base/check.h"
#include "model/head.h"
#include "ops/embedding.h"

namespace baleen::train {
namespace {

using model::StepContext;

/// What the steps of one pass refer to; held as long as they are, because backward may run blocks
/// again.
struct PassNumbers {
  ModelConfig config;
  ops::Numerics numerics;
  model::RopeTables tables;  // shares the rows of the caller's
};

/// Keeps the numbers that its step refers to.
struct HeldStep {
  HeldStep(std::shared_ptr<const PassNumbers> held,
           const at::Tensor& ids,
           const std::vector<model::SequenceGroup>& groups)
      : numbers(std::move(held)),
        step(numbers->config, numbers->numerics, numbers->tables, ids, groups) {}
  std::shared_ptr<const PassNumbers> numbers;
  StepContext step;
};

std::shared_ptr<StepContext> make_step(const std::shared_ptr<const PassNumbers>& numbers,
                                       const at::Tensor& ids,
                                       const std::vector<model::SequenceGroup>& groups) {
  auto held = std::make_shared<HeldStep>(numbers, ids, groups);
  StepContext* step = &held->step;
  return {std::move(held), step};
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
  const auto numbers =
      std::make_shared<const PassNumbers>(PassNumbers{config, options.numerics, *options.tables});
  PackedForward out;
  out.taps.routing = options.routing;
  out.taps.index_scores = options.index || options.index_scores;
  out.taps.entry_attention = options.index;
  model::BlockPass pass(params, options.recompute, options.given, out.taps);

  BALEEN_CHECK(options.trace == nullptr || !at::GradMode::is_enabled(), "a trace with gradients");
  const auto step = make_step(numbers, batch.ids, batch.groups);
  step->trace = options.trace;
  at::Tensor streams = ops::embed_streams(params.embed, batch.ids, config.hc_mult);
  step->capture("", "embedding", streams);
  for (std::size_t i = 0; i < params.blocks.size(); ++i) {
    streams = pass.run_block(streams, i, step);
  }
  out.hidden = model::head_hidden(
      rows_of_streams(streams, batch.main.rows), params.final_head, config, options.numerics);
  step->capture("", "hidden", out.hidden);

  if (options.with_mtp && !batch.mtp_groups.empty()) {
    const auto mtp_step = make_step(numbers, batch.mtp_ids, batch.mtp_groups);
    const at::Tensor mtp_streams =
        pass.run_mtp_block(rows_of_streams(streams, batch.mtp_rows), mtp_step);
    out.mtp_hidden = model::head_hidden(
        rows_of_streams(mtp_streams, batch.mtp.rows), params.mtp[0].head, config, options.numerics);
  }
  if (options.keep_choices) {
    out.choices = pass.made();
  }
  return out;
}

}  // namespace baleen::train
