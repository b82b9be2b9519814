#pragma once
// Rows wanted by ranks that do not hold them: window rows and compressor carries of the piece
// before, entries of earlier ranks, latents of the other tensor ranks. One message per pair of
// ranks forward, one back with the gradients, which are added at the owner in order of rank. What a
// rank wants of its own does not travel.
//
//   RowOwners owners(num_ids, own_ids_by_rank);
//   RowExchange exchange(owners, wanted_by_rank, group.rank());
//   at::Tensor rows = exchange.run(own_rows, group);  // in the order of wanted_by_rank[rank]

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "comm/group.h"

namespace baleen::mesh {

using IdList = std::vector<int64_t>;

/// Which rank holds which row, and where among its own.
class RowOwners {
 public:
  /// ids_by_rank: the rows of every rank in the order of its tensors; every id in [0, num_ids) on
  /// one rank at most.
  RowOwners(int64_t num_ids, const std::vector<IdList>& ids_by_rank);

  int owner(int64_t id) const { return owner_[static_cast<std::size_t>(id)]; }
  int64_t place(int64_t id) const { return place_[static_cast<std::size_t>(id)]; }
  int64_t num_rows(std::size_t rank) const { return num_rows_[rank]; }

 private:
  std::vector<int> owner_;  // -1: nobody
  std::vector<int64_t> place_;
  std::vector<int64_t> num_rows_;  // by rank
};

class RowExchange {
 public:
  /// What every rank of the group wants, in its order; repeats are sent again. Every wanted row
  /// must have an owner.
  RowExchange(const RowOwners& owners, const std::vector<IdList>& wanted_by_rank, int rank);

  /// own [N, C] -> [W, C]. Any dtype; differentiable where `own` is.
  at::Tensor run(const at::Tensor& own, comm::Group& group) const;
  int64_t num_wanted() const { return arrange_.size(0); }
  /// Whether any rank wants anything but its own rows as they are.
  bool is_needed() const { return is_needed_; }

 private:
  at::Tensor send_;                // i64 [S], places among the own rows, by receiver
  std::vector<int64_t> sent_;      // rows per receiver
  std::vector<int64_t> received_;  // rows per sender
  at::Tensor arrange_;             // i64 [W], into the rows as they arrive
  bool is_needed_ = false;
};

}  // namespace baleen::mesh
