#pragma once
// The whole model on a mesh, as one of its ranks runs it: forward and backward of the micro-batches
// of a step, each through this rank's chunks, heads, experts and tokens. The caller gives the ids
// of its data rank's rows and turns log-probabilities into a loss; what comes out are gradients on
// the leaves that it passed in.
//
//   MeshModel model(leaves, mesh, stages, tables, {.with_mtp = true});
//   model.run(batches, PipelineOrder::k1F1B, [&](int m, const TokenRows& rows) {
//     return -(weights.index_select(0, rows.token_index) * rows.logprobs).sum();
//   });
//   sum_gradients(tensors, mesh);

#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "comm/mesh.h"
#include "mesh/pipeline.h"
#include "mesh/stage_split.h"
#include "mesh/step_plans.h"
#include "model/block_pass.h"
#include "model/choices.h"
#include "model/context.h"
#include "model/parameters.h"
#include "model/taps.h"

namespace baleen::mesh {

/// Rows of one data rank; equal on all its ranks, and equally many micro-batches on all data ranks.
struct MicroBatch {
  const StepPlans* plans = nullptr;  // of its layout
  at::Tensor ids;                    // i64 [tokens of the layout]
  at::Tensor next_ids;               // i64, the token after each; any id where there is none
  at::Tensor after_next_ids;         // i64, the one after that, for the MTP block; or undefined
  /// Tokens whose log-probability is wanted, bool [tokens of the layout]; undefined: all.
  at::Tensor wanted = {};
  at::Tensor mtp_wanted = {};
  /// Choices that are taken instead of made, by layer, for all tokens of the layout, whose rows of
  /// tokens are one sample each: picks are by row of tokens. Null: none.
  const model::ChoicesByLayer* given = nullptr;
};

/// Log-probabilities of those of this rank's rows that are wanted. Tensor ranks have the same rows
/// and values: a loss of them counts once. Where a rank has none, its first row comes in their
/// place, which the loss must give no weight.
struct TokenRows {
  at::Tensor token_index;      // i64 [M], into the tokens of the micro-batch
  at::Tensor logprobs;         // [M], of next_ids
  at::Tensor entropy;          // [M]
  at::Tensor mtp_token_index;  // i64 [M']; undefined without MTP
  at::Tensor mtp_logprobs;     // [M'], of after_next_ids; undefined without MTP
};

/// This rank's share of the loss of a micro-batch, a number: the loss of the step is the sum over
/// micro-batches, data and context ranks, so denominators are global ones.
using LossFunction = std::function<at::Tensor(int micro_batch, const TokenRows& rows)>;

/// What a layer let see of its own rows. With sequence parallelism tensor ranks have other rows
/// each, otherwise the same: a loss of them counts once either way.
struct LayerRows {
  int micro_batch = 0;
  std::size_t layer = 0;  // main layers, then MTP blocks
  const model::LayerTaps& taps;
  const at::Tensor& token_index;                    // i64 [N], into the tokens of the micro-batch
  const std::vector<model::SequenceGroup>& groups;  // of these rows
};

/// This rank's share of a loss beside that of the tokens, a number; or undefined, then on all ranks
/// of the stage. Called on whatever stage holds the layer.
using LayerLoss = std::function<at::Tensor(const LayerRows& rows)>;

/// What forwards without gradients see on the last stage.
using TokenView = std::function<void(int micro_batch, const TokenRows& rows)>;

struct MeshModelOptions {
  ops::Numerics numerics = ops::Numerics::plain();
  bool with_mtp = false;     // run the MTP block on the last stage
  double temperature = 1.0;  // logits are divided by it
  int64_t chunk_rows = -1;   // rows whose logits are held at a time; -1: all
  model::Recompute recompute = model::Recompute::kNone;
  bool routing = false;  // taps that `layer_loss` reads
  bool index = false;    // likewise
  LayerLoss layer_loss = {};
};

class MeshModel {
 public:
  /// leaves: as own_parameters() gives them, requiring gradients where wanted. All arguments
  /// outlive the model.
  MeshModel(const model::ModelParameters& leaves,
            const comm::Mesh& mesh,
            const StageSplit& stages,
            const model::RopeTables& tables,
            MeshModelOptions options);

  /// `loss` is called on the ranks of the last stage.
  void run(const std::vector<MicroBatch>& batches, PipelineOrder order, const LossFunction& loss);
  /// Without gradients.
  void run_forward(const std::vector<MicroBatch>& batches, const TokenView& view);

  /// The sum over data and context ranks of what each reports of the last stage, on every rank.
  double sum_of_shares(double share) const;

 private:
  PipelineWork work_for(const std::vector<MicroBatch>& batches) const;
  /// Streams behind a chunk; of the last one, `rows` are filled instead.
  ChunkResult run_chunk(int chunk,
                        const MicroBatch& batch,
                        int micro_batch,
                        const at::Tensor& streams,
                        TokenRows* rows) const;

  const model::ModelParameters& leaves_;
  const comm::Mesh& mesh_;
  const StageSplit& stages_;
  const model::RopeTables& tables_;
  MeshModelOptions options_;
};

/// Choices of the rows and pieces that this rank's step has, out of those of all tokens of the
/// layout, whose rows of tokens are one sample each.
model::ChoicesByLayer own_choices(const model::ChoicesByLayer& whole,
                                  const StepPlans& plans,
                                  const ModelConfig& config);

}  // namespace baleen::mesh
