#include "mesh/mesh_model.h"

#include "base/check.h"
#include "mesh/collectives.h"
#include "mesh/mesh_step.h"
#include "mesh/part.h"
#include "mesh/vocabulary.h"
#include "model/head.h"
#include "model/mtp.h"
#include "model/stages.h"
#include "ops/linear.h"

namespace baleen::mesh {
namespace {

/// Log-probabilities of the rows of the attention core, whose tensor ranks share out the
/// vocabulary.
TokenLogprobs logprobs_of(const at::Tensor& streams,
                          const model::HeadParameters& head,
                          const at::Tensor& output_shard,
                          const at::Tensor& targets,
                          const MeshStep& parallel,
                          const comm::Mesh& mesh) {
  const model::StepContext& step = parallel.step();
  const at::Tensor hidden =
      parallel.core_rows(model::head_hidden(streams, head, step.config, step.numerics));
  const at::Tensor logits = ops::linear_unrounded(hidden, output_shard, step.numerics);
  comm::Group& tensor_ranks = mesh.group(comm::Axis::kTp);
  const Part part = part_of(step.config.vocab_size, tensor_ranks.rank(), tensor_ranks.size());
  return vocabulary_logprobs(logits, targets, part, tensor_ranks);
}

}  // namespace

MeshModel::MeshModel(const model::ModelParameters& leaves,
                     const comm::Mesh& mesh,
                     const StageSplit& stages,
                     const ops::Numerics& numerics,
                     const model::RopeTables& tables,
                     bool with_mtp)
    : leaves_(leaves),
      mesh_(mesh),
      stages_(stages),
      numerics_(numerics),
      tables_(tables),
      with_mtp_(with_mtp) {
  BALEEN_CHECK(!with_mtp || leaves.mtp.size() == 1, "{} MTP blocks", leaves.mtp.size());
}

at::Tensor MeshModel::run_chunk(int chunk,
                                const MicroBatch& batch,
                                int micro_batch,
                                const at::Tensor& streams,
                                const LossFunction& loss) const {
  const ModelConfig& config = leaves_.config;
  const StepPlans& plans = *batch.plans;
  const MeshStep parallel(plans, config, numerics_, tables_, batch.ids);
  const at::Tensor before =
      stages_.is_first(chunk) ? model::embed_stage(leaves_, parallel.step()) : streams;
  const at::Tensor after = model::run_blocks(
      leaves_, before, stages_.first_block(chunk), stages_.end_block(chunk), parallel.step());
  if (!stages_.is_last(chunk)) {
    return after;
  }
  TokenRows rows;
  rows.token_index = plans.splits_core() ? plans.layout().core_token_index(plans.rank())
                                         : plans.layout().token_index(plans.rank());
  const TokenLogprobs main = logprobs_of(after,
                                         leaves_.final_head,
                                         leaves_.head,
                                         batch.next_ids.index_select(0, rows.token_index),
                                         parallel,
                                         mesh_);
  rows.logprobs = main.logprobs;
  rows.entropy = main.entropy;
  if (!with_mtp_) {
    return loss(micro_batch, rows);
  }
  // On all rows: those without a next token are seen by no other and have no weight in the loss.
  const MeshStep mtp(plans, config, numerics_, tables_, batch.next_ids);
  const at::Tensor mtp_streams = model::run_mtp_block(after, leaves_, 0, mtp.step());
  rows.mtp_logprobs = logprobs_of(mtp_streams,
                                  leaves_.mtp[0].head,
                                  leaves_.head,
                                  batch.after_next_ids.index_select(0, rows.token_index),
                                  mtp,
                                  mesh_)
                          .logprobs;
  return loss(micro_batch, rows);
}

void MeshModel::run(const std::vector<MicroBatch>& batches,
                    PipelineOrder order,
                    const LossFunction& loss) {
  const ModelConfig& config = leaves_.config;
  const auto batch_of = [&](int micro_batch) -> const MicroBatch& {
    return batches[static_cast<std::size_t>(micro_batch)];
  };
  PipelineWork work;
  work.micro_batches = static_cast<int>(batches.size());
  work.streams_shape = [&](int micro_batch) -> std::vector<int64_t> {
    const StepPlans& plans = *batch_of(micro_batch).plans;
    int64_t rows = 0;
    for (const TokenPiece& piece : plans.layout().pieces(plans.rank())) {
      rows += piece.num_rows();
    }
    return {rows, config.hc_mult, config.hidden_size};
  };
  work.options =
      tables_.plain.cis.options().dtype(c10::toRealValueType(tables_.plain.cis.scalar_type()));
  work.forward = [&](int chunk, int micro_batch, const at::Tensor& streams) {
    return run_chunk(chunk, batch_of(micro_batch), micro_batch, streams, loss);
  };
  run_pipeline(stages_, order, work, mesh_.group(comm::Axis::kPp));
}

double MeshModel::sum_of_shares(double share) const {
  const bool is_last = mesh_.place().pp == mesh_.shape().pp - 1;
  // Tensor ranks report the same share; the last stage's is the one that counts.
  const double own = is_last && mesh_.place().tp == 0 ? share : 0.0;
  return sum_of_numbers(own, mesh_.group(comm::Axis::kWorld));
}

}  // namespace baleen::mesh
