#include "train/mesh_hooks.h"

#include <memory>
#include <utility>

#include "base/error.h"
#include "mesh/rank_tensors.h"
#include "mesh/zero_ranges.h"

namespace baleen::train {
namespace {

void sum_over(std::span<double> numbers, comm::Group& group) {
  group.all_reduce(numbers.data(),
                   numbers.data(),
                   static_cast<int64_t>(numbers.size()),
                   comm::Element::kFloat64,
                   comm::Reduction::kSum);
}

std::vector<mesh::RankTensor> tensors_of(Masters& masters,
                                         const comm::Mesh& mesh,
                                         bool embedding_is_shared) {
  std::vector<mesh::RankTensor> tensors;
  for (TrainedTensor& trained : masters.trained()) {
    mesh::RankTensor& tensor = tensors.emplace_back();
    tensor.name = trained.info.name;
    tensor.sharding = mesh::shard_of(trained.info, mesh).sharding;
    tensor.value = trained.value;
    tensor.gradient = trained.gradient;
    tensor.on_pipeline_ends =
        embedding_is_shared && trained.info.role == model::ParameterRole::kEmbedding;
    tensor.counts_in_norm = mesh::counts_in_norm(tensor.sharding, tensor.on_pipeline_ends, mesh);
  }
  return tensors;
}

/// Whether this rank is the first of those that hold the same part.
bool is_first_holder(mesh::Sharding sharding, const comm::Mesh& mesh) {
  return mesh.group(mesh::gradient_axis(sharding)).rank() == 0;
}

/// Every rank steps what it holds.
void hook_copies(RankHooks& hooks, const comm::Mesh& mesh, bool embedding_is_shared) {
  hooks.reduce_gradients = [&mesh, embedding_is_shared](Masters& masters) {
    std::vector<mesh::RankTensor> tensors = tensors_of(masters, mesh, embedding_is_shared);
    mesh::sum_gradients(tensors, mesh);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const bool counts = tensors[i].counts_in_norm && is_first_holder(tensors[i].sharding, mesh);
      masters.trained()[i].norm_weight = counts ? 1.0 : 0.0;
    }
  };
}

/// Every rank steps its stretch of what it holds.
void hook_stretches(RankHooks& hooks, const comm::Mesh& mesh, bool embedding_is_shared) {
  // Shared by the hooks; made when the trainer has its masters.
  const auto ranges = std::make_shared<std::unique_ptr<mesh::ZeroRanges>>();
  hooks.own_slots = [&mesh, embedding_is_shared, ranges](Masters& masters,
                                                         const OptimizerConfig& config) {
    *ranges =
        std::make_unique<mesh::ZeroRanges>(tensors_of(masters, mesh, embedding_is_shared), mesh);
    std::vector<OptimizerSlot> slots;
    for (mesh::ZeroPiece& piece : (*ranges)->pieces()) {
      slots.push_back(
          {.name = piece.name,
           .begin = piece.begin,
           .value = piece.value,
           .gradient = piece.gradient,
           .rule = UpdateRule::kAdamW,
           .weight_decay = decays(masters.trained()[piece.tensor].info) ? config.weight_decay : 0.0,
           .num_matrices = 1});
    }
    return slots;
  };
  hooks.reduce_gradients = [ranges](Masters&) { (*ranges)->reduce_gradients(); };
  hooks.gradient_norm = [ranges] { return (*ranges)->gradient_norm(); };
  hooks.share_values = [ranges] { (*ranges)->gather_values(); };
}

}  // namespace

RankHooks mesh_hooks(const comm::Mesh& mesh,
                     const mesh::StageSplit& stages,
                     const OptimizerConfig& optimizer) {
  RankHooks hooks;
  hooks.sum_over_samples = [&mesh](std::span<double> numbers) {
    sum_over(numbers, mesh.group(comm::Axis::kDp));
  };
  hooks.sum_over_ranks = [&mesh](std::span<double> numbers) {
    sum_over(numbers, mesh.group(comm::Axis::kWorld));
  };
  if (optimizer.kind == OptimizerKind::kAdamW) {
    hook_stretches(hooks, mesh, stages.embedding_is_shared());
    return hooks;
  }
  if (mesh.shape().tp > 1) {
    throw ConfigError("optimizer muon: matrices cut over tensor ranks are not whole; use tp 1");
  }
  hook_copies(hooks, mesh, stages.embedding_is_shared());
  return hooks;
}

}  // namespace baleen::train
