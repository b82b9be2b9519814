#include "mesh/step_plans.h"

#include <algorithm>

#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"

namespace baleen::mesh {
namespace {

/// Positions [first, last) of the piece's sequences, one sequence after another.
void append_rows(
    const TokenLayout& layout, const TokenPiece& piece, int64_t first, int64_t last, IdList& ids) {
  for (int64_t b = 0; b < piece.batch; ++b) {
    for (int64_t position = first; position < last; ++position) {
      ids.push_back(layout.row_id(piece.sample, b, position));
    }
  }
}

/// Entries whose last token is in the piece, and the rows ahead of it that they need.
EntryPlan::Closing closing_of(const TokenPiece& piece, int64_t ratio, bool overlap) {
  EntryPlan::Closing closing;
  closing.first_entry = piece.first_position / ratio;
  closing.num_entries = piece.end_position() / ratio - closing.first_entry;
  if (closing.num_entries == 0) {
    return {};
  }
  const int64_t groups_ahead = overlap && closing.first_entry > 0 ? 1 : 0;
  closing.first_position = (closing.first_entry - groups_ahead) * ratio;
  closing.halo_rows = piece.first_position - closing.first_position;
  return closing;
}

/// Numbers of the entries of all samples, sequence after sequence.
class EntryIds {
 public:
  EntryIds(const TokenLayout& layout, int64_t ratio) : layout_(layout), ratio_(ratio) {
    std::vector<int64_t> batch_of(static_cast<std::size_t>(layout.num_samples()), 0);
    for (int rank = 0; rank < layout.num_ranks(); ++rank) {
      for (const TokenPiece& piece : layout.pieces(rank)) {
        batch_of[static_cast<std::size_t>(piece.sample)] = piece.batch;
      }
    }
    for (int64_t sample = 0; sample < layout.num_samples(); ++sample) {
      first_.push_back(count_);
      count_ += batch_of[static_cast<std::size_t>(sample)] * per_sequence(sample);
    }
  }
  int64_t count() const { return count_; }
  void append(const TokenPiece& piece, int64_t first, int64_t last, IdList& ids) const {
    for (int64_t b = 0; b < piece.batch; ++b) {
      for (int64_t entry = first; entry < last; ++entry) {
        ids.push_back(first_[static_cast<std::size_t>(piece.sample)] +
                      b * per_sequence(piece.sample) + entry);
      }
    }
  }

 private:
  int64_t per_sequence(int64_t sample) const { return layout_.sample_tokens(sample) / ratio_; }

  const TokenLayout& layout_;
  int64_t ratio_;
  int64_t count_ = 0;
  std::vector<int64_t> first_;
};

/// A sample's entries are wanted once, up to the last that any piece of it sees.
std::vector<EntryPlan::Wanted> wanted_entries(const std::vector<TokenPiece>& pieces,
                                              int64_t ratio,
                                              const EntryIds& entry_ids,
                                              IdList& ids) {
  std::map<int64_t, EntryPlan::Wanted> of_sample;
  for (const TokenPiece& piece : pieces) {
    EntryPlan::Wanted& wanted = of_sample[piece.sample];
    wanted.num_entries = std::max(wanted.num_entries, piece.end_position() / ratio);
  }
  for (const TokenPiece& piece : pieces) {
    EntryPlan::Wanted& wanted = of_sample[piece.sample];
    if (wanted.visible == 0) {  // not listed yet
      wanted.visible = 1;
      wanted.begin = static_cast<int64_t>(ids.size());
      entry_ids.append(piece, 0, wanted.num_entries, ids);
    }
  }
  std::vector<EntryPlan::Wanted> result;
  for (const TokenPiece& piece : pieces) {
    result.push_back(of_sample[piece.sample]);
    result.back().visible = piece.end_position() / ratio;
  }
  return result;
}

}  // namespace

StepPlans::StepPlans(const TokenLayout& layout, const ModelConfig& config, const comm::Mesh& mesh)
    : layout_(layout), mesh_(mesh), rank_(mesh.group(comm::Axis::kSequence).rank()) {
  const comm::MeshShape& shape = mesh.shape();
  const TokenSplit& split = layout.split();
  if (split.context_ranks != shape.cp ||
      split.tensor_ranks != (shape.sequence_parallel ? shape.tp : 1)) {
    throw ConfigError(fmt::format("a token layout for {} context and {} tensor ranks on mesh {}",
                                  split.context_ranks,
                                  split.tensor_ranks,
                                  shape.name()));
  }
  std::vector<IdList> own;
  std::vector<IdList> window;
  for (int rank = 0; rank < layout.num_ranks(); ++rank) {
    own.push_back(layout.row_ids(layout.pieces(rank)));
    IdList& wanted = window.emplace_back();
    for (const TokenPiece& piece : layout.core_pieces(rank)) {
      const int64_t before = std::min(piece.first_position, config.sliding_window - 1);
      append_rows(layout, piece, piece.first_position - before, piece.end_position(), wanted);
    }
  }
  owners_.emplace(layout.num_tokens(), own);
  window_.emplace(*owners_, window, rank_);
  for (const LayerSpec& spec : config.layers) {
    const std::pair<int64_t, bool> key(spec.ratio, spec.kind == LayerKind::kC4);
    if (spec.ratio > 0 && !entry_plans_.contains(key)) {
      entry_plans_.emplace(key, make_entry_plan(key.first, key.second));
    }
  }
  if (!splits_core()) {
    return;
  }
  // The tensor ranks of this context rank are neighbours in the sequence group.
  const int tensor_ranks = split.tensor_ranks;
  const int first = rank_ / tensor_ranks * tensor_ranks;
  const std::vector<IdList> of_peers(own.begin() + first, own.begin() + first + tensor_ranks);
  const IdList core_ids = layout.row_ids(layout.core_pieces(rank_));
  const RowOwners peers(layout.num_tokens(), of_peers);
  core_.emplace(
      peers, std::vector<IdList>(static_cast<std::size_t>(tensor_ranks), core_ids), rank_ - first);
  std::map<RowId, int64_t> place_in_core;
  for (std::size_t i = 0; i < core_ids.size(); ++i) {
    place_in_core[core_ids[i]] = static_cast<int64_t>(i);
  }
  IdList by_rank;
  for (const IdList& ids : of_peers) {
    for (const RowId id : ids) {
      by_rank.push_back(place_in_core.at(id));
    }
    rows_of_tensor_rank_.push_back(static_cast<int64_t>(ids.size()));
  }
  by_tensor_rank_ = at::tensor(by_rank, at::kLong);
}

EntryPlan StepPlans::make_entry_plan(int64_t ratio, bool overlap) const {
  EntryPlan plan;
  const EntryIds entry_ids(layout_, ratio);
  std::vector<IdList> halo;
  std::vector<IdList> closed;
  std::vector<IdList> wanted;
  plan.carry_only = overlap;
  for (int rank = 0; rank < layout_.num_ranks(); ++rank) {
    halo.emplace_back();
    closed.emplace_back();
    wanted.emplace_back();
    for (const TokenPiece& piece : layout_.pieces(rank)) {
      const EntryPlan::Closing closing = closing_of(piece, ratio, overlap);
      append_rows(layout_,
                  piece,
                  piece.first_position - closing.halo_rows,
                  piece.first_position,
                  halo.back());
      entry_ids.append(
          piece, closing.first_entry, closing.first_entry + closing.num_entries, closed.back());
      plan.carry_only =
          plan.carry_only && (closing.halo_rows == 0 || piece.first_position % ratio == 0);
      if (rank == rank_) {
        plan.closing.push_back(closing);
      }
    }
    const std::vector<EntryPlan::Wanted> places =
        wanted_entries(layout_.core_pieces(rank), ratio, entry_ids, wanted.back());
    if (rank == rank_) {
      plan.wanted = places;
    }
  }
  plan.halo.emplace(*owners_, halo, rank_);
  plan.entries.emplace(RowOwners(entry_ids.count(), closed), wanted, rank_);
  return plan;
}

const EntryPlan& StepPlans::entries(int64_t ratio, bool overlap) const {
  const auto found = entry_plans_.find({ratio, overlap});
  BALEEN_CHECK(found != entry_plans_.end(), "no layer of ratio {}", ratio);
  return found->second;
}

}  // namespace baleen::mesh
