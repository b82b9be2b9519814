#pragma once
// ZeRO-1: ranks that hold the same parameters share out the optimizer's work and state. Tensors
// with the same holders lie one behind another in one long row of numbers, of which every holder
// owns an equal stretch: it gets the summed gradient of its stretch alone, steps its values, and
// all get the new values. A stretch may begin and end inside a tensor, so an optimizer that works
// element by element sees pieces (name, first element, count). Sums have the same order as
// sum_gradients(), and the norm is added block by block in the order of the row: values after a
// step do not depend on the number of owners, in any bit. Stretches travel in buckets, so that no
// second copy of a rank's gradients or values ever exists.
//
//   ZeroRanges ranges(rank_tensors(leaves, mesh, stages), mesh);   // once
//   ranges.reduce_gradients();                                     // every step
//   double norm = ranges.gradient_norm();
//   for (ZeroPiece& piece : ranges.pieces()) { step(piece.value, piece.gradient); }
//   ranges.gather_values();

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "comm/mesh.h"
#include "mesh/rank_tensors.h"

namespace baleen::mesh {

struct ZeroPiece {
  std::string name;
  std::size_t tensor = 0;  // of tensors()
  int64_t begin = 0;       // first element, in the flattened part of this rank
  at::Tensor value;        // [count], a view of the tensor
  at::Tensor gradient;     // [count], summed by reduce_gradients(); a view of the owner's buffer
};

class ZeroRanges {
 public:
  /// The tensors' memory must stay where it is. `mesh` outlives the ranges.
  ZeroRanges(std::vector<RankTensor> tensors, const comm::Mesh& mesh);

  const std::vector<RankTensor>& tensors() const { return tensors_; }
  /// What this rank owns.
  std::vector<ZeroPiece>& pieces() { return pieces_; }

  void reduce_gradients();
  /// Of the whole model; reads the pieces' gradients. Equal on all ranks of the mesh.
  double gradient_norm() const;
  void gather_values();

 private:
  /// Tensors with the same holders.
  struct Row {
    Sharding sharding = Sharding::kWhole;
    std::vector<std::size_t> tensors;
    int64_t stretch = 0;  // elements per owner, the last one's padded
    at::Tensor gradient;  // [stretch], what this rank owns
    comm::Group* group = nullptr;
    bool counts_in_norm = true;
  };

  void add_row(Sharding sharding, bool on_pipeline_ends);
  /// visit(tensor, its first element, place behind `from`, count) for the tensors that have
  /// elements in [from, from + count) of the row.
  void for_each_overlap(
      const Row& row,
      int64_t from,
      int64_t count,
      const std::function<void(std::size_t, int64_t, int64_t, int64_t)>& visit) const;

  std::vector<RankTensor> tensors_;
  const comm::Mesh& mesh_;
  std::vector<Row> rows_;
  std::vector<ZeroPiece> pieces_;
};

}  // namespace baleen::mesh
