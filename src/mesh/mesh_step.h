#pragma once
// The parallel forms of the model body: context and sequence parallelism by exchanged rows, tensor
// parallelism by heads, output groups and vocabulary rows, expert parallelism by exchanged tokens.
// One object per forward, for one rank; the layout's plans are shared by all forwards of a layout.
//
//   StepPlans plans(layout, config, mesh);
//   MeshStep parallel(plans, mesh, config, numerics, tables, ids);
//   at::Tensor streams = model::embed_stage(params, parallel.step());

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/model_config.h"
#include "mesh/step_plans.h"
#include "model/context.h"

namespace baleen::mesh {

class MeshStep final : public model::ParallelStep {
 public:
  /// ids i64 [all tokens of the layout]. Plans, numerics and tables outlive the step.
  MeshStep(const StepPlans& plans,
           const ModelConfig& config,
           const ops::Numerics& numerics,
           const model::RopeTables& tables,
           const at::Tensor& ids);

  const model::StepContext& step() const { return *step_; }
  model::StepContext& step() { return *step_; }
  /// Whether the core has other rows than the step.
  bool splits_core() const { return plans_.splits_core(); }

  const model::StepContext& core() const override { return core_ ? *core_ : *step_; }
  at::Tensor embed(const at::Tensor& shard) const override;
  at::Tensor core_rows(const at::Tensor& rows) const override;
  at::Tensor sum_of_core(const at::Tensor& partial) const override;
  std::vector<at::Tensor> window_rows(const at::Tensor& kv) const override;
  std::vector<model::PoolingRows> pooling_rows(const std::vector<at::Tensor>& columns,
                                               int64_t ratio,
                                               bool overlap) const override;
  std::vector<at::Tensor> shared_entries(const std::vector<at::Tensor>& own,
                                         int64_t ratio,
                                         bool overlap,
                                         int64_t head_columns) const override;
  std::vector<at::Tensor> core_picks(const std::vector<at::Tensor>& picks) const override;
  at::Tensor routed_experts(const at::Tensor& x,
                            const at::Tensor& experts,
                            const at::Tensor& weights,
                            const ops::ExpertWeights& shard,
                            ops::LinearFormat format,
                            std::optional<double> limit,
                            const ops::Numerics& numerics) const override;

 private:
  comm::Group& group(comm::Axis axis) const { return plans_.mesh().group(axis); }
  /// Rows that this rank's heads use, whose gradient lacks what the other tensor ranks' heads add.
  at::Tensor shared_by_heads(const at::Tensor& rows) const;
  const StepPlans& plans_;
  const ModelConfig& config_;
  std::optional<model::StepContext> step_;
  std::optional<model::StepContext> core_;
};

}  // namespace baleen::mesh
