#pragma once
// A step whose rows, heads or experts are spread over ranks, as the modules see it. The modules
// have one body: where a rank needs what others hold it asks here, and where there is no
// ParallelStep (one rank) the same code goes on without a call. Every rank runs the modules in the
// same order, so these calls meet. The room `mesh` implements it; owned by whoever runs the step.
//
// Two sets of rows: the step's own rows [N], on which everything works that goes position by
// position, and the rows of the attention core [N_core], on which this rank's heads work. They
// differ where tensor ranks split tokens outside of attention; core group g then is group g of all
// these ranks, one behind another.

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "ops/experts.h"

namespace baleen::model {

class StepContext;

/// Rows that the entries closed by the tokens of one group are pooled from.
struct PoolingRows {
  std::vector<at::Tensor> rows;  // [B, R, C] each, from `first_position` on; R = 0 without entries
  int64_t first_position = 0;
  int64_t first_entry = 0;
  int64_t num_entries = 0;
};

class ParallelStep {
 public:
  virtual ~ParallelStep() = default;

  /// The step of the attention core; lives as long as this.
  virtual const StepContext& core() const = 0;

  /// [N, H] of the step's ids; `shard`: this rank's rows of the embedding.
  virtual at::Tensor embed(const at::Tensor& shard) const = 0;

  /// [N, C] -> [N_core, C].
  virtual at::Tensor core_rows(const at::Tensor& rows) const = 0;
  /// What this rank's heads or vocabulary rows contribute, [N_core, C] -> the sum over tensor
  /// ranks, [N, C].
  virtual at::Tensor sum_of_core(const at::Tensor& partial) const = 0;

  /// kv [N, D] -> per core group the rows of positions first_position - P ... that its queries see,
  /// [B, P + T, D] with P = min(first_position, window - 1).
  virtual std::vector<at::Tensor> window_rows(const at::Tensor& kv) const = 0;
  /// Per group of the step, from rows [N, C] of each of `columns`. With overlap the first half of
  /// the channels counts for the group of tokens behind.
  virtual std::vector<PoolingRows> pooling_rows(const std::vector<at::Tensor>& columns,
                                                int64_t ratio,
                                                bool overlap) const = 0;
  /// Entries that each group of the step closed, [B, e, d] -> per core group all entries of its
  /// sequences up to its last token, [B, E, d]; e and E may be 0. The first `head_columns` channels
  /// are read by this rank's heads alone, the others by all ranks alike.
  virtual std::vector<at::Tensor> shared_entries(const std::vector<at::Tensor>& own,
                                                 int64_t ratio,
                                                 bool overlap,
                                                 int64_t head_columns) const = 0;
  /// Picks of the step's groups, bool [B, T, E] or undefined -> those of the core groups.
  virtual std::vector<at::Tensor> core_picks(const std::vector<at::Tensor>& picks) const = 0;

  /// As ops::routed_experts, with this rank's experts only in `shard` and ids of all experts.
  virtual at::Tensor routed_experts(const at::Tensor& x,
                                    const at::Tensor& experts,
                                    const at::Tensor& weights,
                                    const ops::ExpertWeights& shard,
                                    ops::LinearFormat format,
                                    std::optional<double> limit,
                                    const ops::Numerics& numerics) const = 0;
};

}  // namespace baleen::model
