#include "mesh/mesh_step.h"

#include <algorithm>

#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/zeros.h>

#include "base/check.h"
#include "mesh/collectives.h"
#include "mesh/expert_exchange.h"
#include "mesh/part.h"
#include "ops/embedding.h"

namespace baleen::mesh {
namespace {

std::vector<model::SequenceGroup> groups_of(const std::vector<TokenPiece>& pieces) {
  std::vector<model::SequenceGroup> groups;
  for (const TokenPiece& piece : pieces) {
    groups.push_back(
        {.batch = piece.batch, .tokens = piece.tokens, .first_position = piece.first_position});
  }
  return groups;
}

/// Rows [begin, begin + batch * rows) of [N, C] as [batch, rows, C].
at::Tensor block_of(const at::Tensor& flat, int64_t begin, int64_t batch, int64_t rows) {
  return flat.narrow(0, begin, batch * rows).reshape({batch, rows, flat.size(1)});
}

}  // namespace

MeshStep::MeshStep(const StepPlans& plans,
                   const ModelConfig& config,
                   const ops::Numerics& numerics,
                   const model::RopeTables& tables,
                   const at::Tensor& ids)
    : plans_(plans), config_(config) {
  const TokenLayout& layout = plans.layout();
  const auto make = [&](std::optional<model::StepContext>& step,
                        const at::Tensor& index,
                        const std::vector<TokenPiece>& pieces) {
    step.emplace(config,
                 numerics,
                 tables,
                 ids.index_select(0, index.to(ids.device())),
                 groups_of(pieces),
                 this);
  };
  make(step_, layout.token_index(plans.rank()), layout.pieces(plans.rank()));
  if (plans.splits_core()) {
    make(core_, layout.core_token_index(plans.rank()), layout.core_pieces(plans.rank()));
  }
}

at::Tensor MeshStep::embed(const at::Tensor& shard) const {
  comm::Group& tensor_ranks = group(comm::Axis::kTp);
  if (tensor_ranks.size() == 1) {
    return ops::embed(shard, step_->ids);
  }
  const Part part = part_of(config_.vocab_size, tensor_ranks.rank(), tensor_ranks.size());
  const at::Tensor local = core().ids - part.begin;
  const at::Tensor absent = local.lt(0).logical_or(local.ge(part.count()));
  const at::Tensor rows = ops::embed(shard, local.masked_fill(absent, 0));
  return sum_of_core(rows.masked_fill(absent.unsqueeze(-1), 0.0));
}

at::Tensor MeshStep::core_rows(const at::Tensor& rows) const {
  return plans_.splits_core() ? plans_.core().run(rows, group(comm::Axis::kTp))
                              : shared_by_heads(rows);
}

at::Tensor MeshStep::sum_of_core(const at::Tensor& partial) const {
  comm::Group& tensor_ranks = group(comm::Axis::kTp);
  if (!plans_.splits_core()) {
    return sum_over_ranks(partial, tensor_ranks);
  }
  return exchange_and_sum(partial.index_select(0, plans_.by_tensor_rank()),
                          plans_.rows_of_tensor_rank(),
                          step_->num_rows(),
                          tensor_ranks);
}

at::Tensor MeshStep::shared_by_heads(const at::Tensor& rows) const {
  return plans_.splits_core() ? rows : shared_by_ranks(rows, group(comm::Axis::kTp));
}

std::vector<at::Tensor> MeshStep::window_rows(const at::Tensor& kv) const {
  const at::Tensor own = shared_by_heads(kv);
  const at::Tensor rows =
      plans_.window().is_needed() ? plans_.window().run(own, group(comm::Axis::kSequence)) : own;
  std::vector<at::Tensor> result;
  int64_t begin = 0;
  for (const model::SequenceGroup& piece : core().groups) {
    const int64_t before = plans_.window().is_needed()
                               ? std::min(piece.first_position, config_.sliding_window - 1)
                               : 0;
    result.push_back(block_of(rows, begin, piece.batch, before + piece.tokens));
    begin += piece.batch * (before + piece.tokens);
  }
  return result;
}

std::vector<model::PoolingRows> MeshStep::pooling_rows(const std::vector<at::Tensor>& columns,
                                                       int64_t ratio,
                                                       bool overlap) const {
  const EntryPlan& plan = plans_.entries(ratio, overlap);
  std::vector<at::Tensor> own = columns;
  std::vector<at::Tensor> halo(columns.size());
  if (plan.halo->is_needed()) {
    // One message for all columns, of carry halves alone where no cut goes through a group.
    std::vector<at::Tensor> sent;
    std::vector<int64_t> widths;
    for (const at::Tensor& column : columns) {
      widths.push_back(plan.carry_only ? column.size(1) / 2 : column.size(1));
      sent.push_back(column.narrow(1, 0, widths.back()));
    }
    const at::Tensor rows = plan.halo->run(at::cat(sent, 1), group(comm::Axis::kSequence));
    int64_t begin = 0;
    for (std::size_t c = 0; c < columns.size(); ++c) {
      halo[c] = at::constant_pad_nd(rows.narrow(1, begin, widths[c]),
                                    {0, columns[c].size(1) - widths[c]});
      begin += widths[c];
    }
    own[0] = attached(own[0], {rows});  // a rank may close no entry
  }
  std::vector<model::PoolingRows> result;
  int64_t halo_begin = 0;
  for (std::size_t g = 0; g < step_->groups.size(); ++g) {
    const model::SequenceGroup& piece = step_->groups[g];
    const EntryPlan::Closing& closing = plan.closing[g];
    model::PoolingRows pooling{.rows = {},
                               .first_position = closing.first_position,
                               .first_entry = closing.first_entry,
                               .num_entries = closing.num_entries};
    for (std::size_t c = 0; c < columns.size(); ++c) {
      at::Tensor rows = block_of(own[c], piece.row_begin, piece.batch, piece.tokens);
      if (closing.num_entries == 0) {
        rows = rows.narrow(1, 0, 0);
      } else if (closing.halo_rows > 0) {
        rows = at::cat({block_of(halo[c], halo_begin, piece.batch, closing.halo_rows), rows}, 1);
      }
      pooling.rows.push_back(rows);
    }
    halo_begin += piece.batch * closing.halo_rows;
    result.push_back(std::move(pooling));
  }
  return result;
}

std::vector<at::Tensor> MeshStep::shared_entries(const std::vector<at::Tensor>& own,
                                                 int64_t ratio,
                                                 bool overlap,
                                                 int64_t head_columns) const {
  const EntryPlan& plan = plans_.entries(ratio, overlap);
  std::vector<at::Tensor> flat;
  for (const at::Tensor& entries : own) {
    flat.push_back(entries.flatten(0, 1));
  }
  at::Tensor rows = at::cat(flat, 0);
  const int64_t other_columns = rows.size(1) - head_columns;
  const at::Tensor of_heads = shared_by_heads(rows.narrow(1, 0, head_columns));
  rows = other_columns == 0 ? of_heads
                            : at::cat({of_heads, rows.narrow(1, head_columns, other_columns)}, 1);
  rows = plan.entries->run(rows, group(comm::Axis::kSequence));
  std::vector<at::Tensor> result;
  for (std::size_t g = 0; g < core().groups.size(); ++g) {
    const EntryPlan::Wanted& wanted = plan.wanted[g];
    result.push_back(block_of(rows, wanted.begin, core().groups[g].batch, wanted.num_entries)
                         .narrow(1, 0, wanted.visible));
  }
  return result;
}

std::vector<at::Tensor> MeshStep::core_picks(const std::vector<at::Tensor>& picks) const {
  if (!plans_.splits_core()) {
    return picks;
  }
  int64_t width = 0;
  for (const at::Tensor& mask : picks) {
    width = std::max(width, mask.defined() ? mask.size(2) : 0);
  }
  if (width == 0) {
    return picks;  // and so on every tensor rank: masks are made by core group
  }
  std::vector<at::Tensor> flat;
  for (std::size_t g = 0; g < picks.size(); ++g) {
    const int64_t rows = step_->groups[g].num_rows();
    at::Tensor mask = at::zeros({rows, width}, step_->ids.options().dtype(at::kBool));
    if (picks[g].defined()) {
      mask.narrow(1, 0, picks[g].size(2)).copy_(picks[g].flatten(0, 1));
    }
    flat.push_back(mask);
  }
  const at::Tensor all = plans_.core().run(at::cat(flat, 0), group(comm::Axis::kTp));
  std::vector<at::Tensor> result;
  for (std::size_t g = 0; g < picks.size(); ++g) {
    const model::SequenceGroup& piece = core().groups[g];
    result.push_back(picks[g].defined() ? block_of(all, piece.row_begin, piece.batch, piece.tokens)
                                              .narrow(2, 0, picks[g].size(2))
                                        : at::Tensor());
  }
  return result;
}

at::Tensor MeshStep::routed_experts(const at::Tensor& x,
                                    const at::Tensor& experts,
                                    const at::Tensor& weights,
                                    const ops::ExpertWeights& shard,
                                    ops::LinearFormat format,
                                    std::optional<double> limit,
                                    const ops::Numerics& numerics) const {
  return experts_over_ranks(x,
                            experts,
                            weights,
                            shard,
                            config_.n_routed_experts,
                            format,
                            limit,
                            numerics,
                            group(comm::Axis::kExperts));
}

}  // namespace baleen::mesh
