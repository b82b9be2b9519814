#pragma once
// The trained tensors of a rank and what is done to their gradients after the last backward of a
// step: sums over the ranks that saw other tokens or hold another copy, and the norm that counts
// every parameter of the model once. Sums have the order of the tree over ranks.
//
//   std::vector<RankTensor> tensors = rank_tensors(leaves, mesh, stages);
//   sum_gradients(tensors, mesh);

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "comm/mesh.h"
#include "mesh/shard_spec.h"
#include "mesh/stage_split.h"
#include "model/parameters.h"

namespace baleen::mesh {

struct RankTensor {
  std::string name;
  Sharding sharding = Sharding::kWhole;
  at::Tensor value;               // this rank's part, contiguous
  at::Tensor gradient;            // of the same shape
  bool counts_in_norm = true;     // false where another rank's copy counts
  bool on_pipeline_ends = false;  // first and last stage hold a copy and a share of the gradient
};

/// Every trainable tensor that this rank holds, with its gradient: zeros where there is none yet,
/// which backward passes will add into.
std::vector<RankTensor> rank_tensors(model::ModelParameters& leaves,
                                     const comm::Mesh& mesh,
                                     const StageSplit& stages);

/// Whether this rank's copy of a tensor counts in the norm.
bool counts_in_norm(Sharding sharding, bool on_pipeline_ends, const comm::Mesh& mesh);

/// Adds up the shares of first and last stage.
void sum_over_pipeline_ends(std::vector<RankTensor>& tensors, const comm::Mesh& mesh);

/// Every rank gets the whole gradient of its parts.
void sum_gradients(std::vector<RankTensor>& tensors, const comm::Mesh& mesh);

}  // namespace baleen::mesh
