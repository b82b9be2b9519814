#pragma once
// The whole model on a mesh, as one of its ranks runs it: forward and backward of the micro-batches
// of a step, each through this rank's chunks, heads, experts and tokens. The caller gives the ids
// of its data rank's rows and turns log-probabilities into a loss; what comes out are gradients on
// the leaves that it passed in.
//
//   MeshModel model(leaves, mesh, stages, numerics, tables);
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
#include "model/context.h"
#include "model/parameters.h"

namespace baleen::mesh {

/// Rows of one data rank; equal on all its ranks, and equally many micro-batches on all data ranks.
struct MicroBatch {
  const StepPlans* plans = nullptr;  // of its layout
  at::Tensor ids;                    // i64 [tokens of the layout]
  at::Tensor next_ids;               // i64, the token after each; any id where there is none
  at::Tensor after_next_ids;         // i64, the one after that, for the MTP block; or undefined
};

/// Log-probabilities of this rank's rows. Tensor ranks have the same rows and values: a loss of
/// them counts once.
struct TokenRows {
  at::Tensor token_index;   // i64 [M], into the tokens of the micro-batch
  at::Tensor logprobs;      // [M], of next_ids
  at::Tensor entropy;       // [M]
  at::Tensor mtp_logprobs;  // [M], of after_next_ids; undefined without MTP
};

/// This rank's share of the loss of a micro-batch, a number: the loss of the step is the sum over
/// micro-batches, data and context ranks, so denominators are global ones.
using LossFunction = std::function<at::Tensor(int micro_batch, const TokenRows& rows)>;

class MeshModel {
 public:
  /// leaves: as own_parameters() gives them, requiring gradients where wanted. All arguments
  /// outlive the model. `with_mtp`: run the MTP block on the last stage.
  MeshModel(const model::ModelParameters& leaves,
            const comm::Mesh& mesh,
            const StageSplit& stages,
            const ops::Numerics& numerics,
            const model::RopeTables& tables,
            bool with_mtp);

  /// `loss` is called on the ranks of the last stage.
  void run(const std::vector<MicroBatch>& batches, PipelineOrder order, const LossFunction& loss);

  /// The sum over data and context ranks of what each reports of the last stage, on every rank.
  double sum_of_shares(double share) const;

 private:
  at::Tensor run_chunk(int chunk,
                       const MicroBatch& batch,
                       int micro_batch,
                       const at::Tensor& streams,
                       const LossFunction& loss) const;

  const model::ModelParameters& leaves_;
  const comm::Mesh& mesh_;
  const StageSplit& stages_;
  const ops::Numerics& numerics_;
  const model::RopeTables& tables_;
  bool with_mtp_;
};

}  // namespace baleen::mesh
