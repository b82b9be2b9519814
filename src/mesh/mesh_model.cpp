#include "mesh/mesh_model.h"

#include <algorithm>
#include <memory>
#include <utility>

#include <ATen/core/grad_mode.h>

#include "base/check.h"
#include "mesh/collectives.h"
#include "mesh/mesh_step.h"
#include "mesh/token_rows.h"
#include "model/stages.h"

namespace baleen::mesh {
namespace {

/// The step of a forward, which lives as long as the graph may run its blocks again.
std::shared_ptr<model::StepContext> context_of(const std::shared_ptr<MeshStep>& parallel) {
  return {parallel, &parallel->step()};
}

at::Tensor added(const at::Tensor& sum, const at::Tensor& term) {
  return !term.defined() ? sum : !sum.defined() ? term : sum + term;
}

}  // namespace

MeshModel::MeshModel(const model::ModelParameters& leaves,
                     const comm::Mesh& mesh,
                     const StageSplit& stages,
                     const model::RopeTables& tables,
                     MeshModelOptions options)
    : leaves_(leaves), mesh_(mesh), stages_(stages), tables_(tables), options_(std::move(options)) {
  BALEEN_CHECK(!options_.with_mtp || leaves.mtp.size() == 1, "{} MTP blocks", leaves.mtp.size());
}

ChunkResult MeshModel::run_chunk(int chunk,
                                 const MicroBatch& batch,
                                 int micro_batch,
                                 const at::Tensor& streams,
                                 TokenRows* rows) const {
  const ModelConfig& config = leaves_.config;
  const StepPlans& plans = *batch.plans;
  const auto parallel =
      std::make_shared<MeshStep>(plans, config, options_.numerics, tables_, batch.ids);
  model::Taps taps;
  taps.routing = options_.routing;
  taps.index_scores = options_.index;
  taps.entry_attention = options_.index;
  model::ChoicesByLayer given;
  if (batch.given != nullptr) {
    given = own_choices(*batch.given, plans, config);
  }
  model::BlockPass pass(
      leaves_, options_.recompute, batch.given == nullptr ? nullptr : &given, taps);
  const at::Tensor own_index = plans.layout().token_index(plans.rank());
  ChunkResult result;
  const auto add_layer_loss = [&](std::size_t layer, const MeshStep& step) {
    if (options_.layer_loss) {
      result.beside = added(result.beside,
                            options_.layer_loss({.micro_batch = micro_batch,
                                                 .layer = layer,
                                                 .taps = taps.layers[layer],
                                                 .token_index = own_index,
                                                 .groups = step.step().groups}));
    }
  };

  result.output = stages_.is_first(chunk) ? model::embed_stage(leaves_, parallel->step()) : streams;
  for (std::size_t i = stages_.first_block(chunk); i < stages_.end_block(chunk); ++i) {
    result.output = pass.run_block(result.output, i, context_of(parallel));
    add_layer_loss(i, *parallel);
  }
  if (!stages_.is_last(chunk)) {
    return result;
  }
  comm::Group& tensor_ranks = mesh_.group(comm::Axis::kTp);
  const HeadOptions head{.temperature = options_.temperature, .chunk_rows = options_.chunk_rows};
  const at::Tensor core_index =
      plans.splits_core() ? plans.layout().core_token_index(plans.rank()) : own_index;
  const WantedRows wanted = wanted_rows(core_index, batch.wanted);
  const TokenLogprobs main = head_rows(result.output,
                                       leaves_.final_head,
                                       leaves_.head,
                                       batch.next_ids.index_select(0, wanted.token_index),
                                       wanted,
                                       *parallel,
                                       tensor_ranks,
                                       head);
  *rows = {.token_index = wanted.token_index,
           .logprobs = main.logprobs,
           .entropy = main.entropy,
           .mtp_token_index = {},
           .mtp_logprobs = {}};
  if (!options_.with_mtp) {
    return result;
  }
  // On all rows: those without a next token are seen by no other and have no weight in the loss.
  const auto mtp =
      std::make_shared<MeshStep>(plans, config, options_.numerics, tables_, batch.next_ids);
  const at::Tensor mtp_streams = pass.run_mtp_block(result.output, context_of(mtp));
  add_layer_loss(static_cast<std::size_t>(config.num_hidden_layers), *mtp);
  const WantedRows mtp_wanted = wanted_rows(core_index, batch.mtp_wanted);
  rows->mtp_token_index = mtp_wanted.token_index;
  rows->mtp_logprobs = head_rows(mtp_streams,
                                 leaves_.mtp[0].head,
                                 leaves_.head,
                                 batch.after_next_ids.index_select(0, mtp_wanted.token_index),
                                 mtp_wanted,
                                 *mtp,
                                 tensor_ranks,
                                 head)
                           .logprobs;
  return result;
}

PipelineWork MeshModel::work_for(const std::vector<MicroBatch>& batches) const {
  PipelineWork work;
  work.micro_batches = static_cast<int>(batches.size());
  work.streams_shape = [&](int micro_batch) -> std::vector<int64_t> {
    const StepPlans& plans = *batches[static_cast<std::size_t>(micro_batch)].plans;
    int64_t rows = 0;
    for (const TokenPiece& piece : plans.layout().pieces(plans.rank())) {
      rows += piece.num_rows();
    }
    return {rows, leaves_.config.hc_mult, leaves_.config.hidden_size};
  };
  work.options =
      tables_.plain.cis.options().dtype(c10::toRealValueType(tables_.plain.cis.scalar_type()));
  return work;
}

void MeshModel::run(const std::vector<MicroBatch>& batches,
                    PipelineOrder order,
                    const LossFunction& loss) {
  PipelineWork work = work_for(batches);
  work.forward = [&](int chunk, int micro_batch, const at::Tensor& streams) {
    TokenRows rows;
    ChunkResult result = run_chunk(
        chunk, batches[static_cast<std::size_t>(micro_batch)], micro_batch, streams, &rows);
    if (stages_.is_last(chunk)) {
      result = {.output = added(loss(micro_batch, rows), result.beside), .beside = {}};
    }
    return result;
  };
  run_pipeline(stages_, order, work, mesh_.group(comm::Axis::kPp));
}

void MeshModel::run_forward(const std::vector<MicroBatch>& batches, const TokenView& view) {
  const at::NoGradGuard no_grad;
  PipelineWork work = work_for(batches);
  work.backward = false;
  work.forward = [&](int chunk, int micro_batch, const at::Tensor& streams) {
    TokenRows rows;
    const ChunkResult result = run_chunk(
        chunk, batches[static_cast<std::size_t>(micro_batch)], micro_batch, streams, &rows);
    if (stages_.is_last(chunk)) {
      view(micro_batch, rows);
    }
    return result;
  };
  run_pipeline(stages_, PipelineOrder::kForwardsFirst, work, mesh_.group(comm::Axis::kPp));
}

double MeshModel::sum_of_shares(double share) const {
  const bool is_last = mesh_.place().pp == mesh_.shape().pp - 1;
  // Tensor ranks report the same share; the last stage's is the one that counts.
  const double own = is_last && mesh_.place().tp == 0 ? share : 0.0;
  return sum_of_numbers(own, mesh_.group(comm::Axis::kWorld));
}

model::ChoicesByLayer own_choices(const model::ChoicesByLayer& whole,
                                  const StepPlans& plans,
                                  const ModelConfig& config) {
  const TokenLayout& layout = plans.layout();
  const at::Tensor index = layout.token_index(plans.rank());
  const std::vector<TokenPiece>& pieces = layout.pieces(plans.rank());
  const std::vector<TokenPiece>& core_pieces = layout.core_pieces(plans.rank());
  model::ChoicesByLayer own(whole.size());
  for (std::size_t layer = 0; layer < whole.size(); ++layer) {
    if (whole[layer].experts.defined()) {
      own[layer].experts =
          whole[layer].experts.index_select(0, index.to(whole[layer].experts.device()));
    }
    if (whole[layer].picks.empty()) {
      continue;
    }
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const at::Tensor& of_row = whole[layer].picks.at(static_cast<std::size_t>(pieces[i].sample));
      // Of the core's piece: its tokens get one mask, whichever rank has them; none where all see
      // no more than they may pick.
      const int64_t visible = core_pieces[i].end_position() / config.layers[layer].ratio;
      own[layer].picks.push_back(of_row.defined() && visible > config.index_topk
                                     ? of_row.narrow(1, pieces[i].first_position, pieces[i].tokens)
                                           .narrow(2, 0, visible)
                                           .contiguous()
                                     : at::Tensor());
    }
  }
  return own;
}

}  // namespace baleen::mesh
