#include "train/mesh_hooks.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>

#include "base/error.h"
#include "mesh/collectives.h"
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

/// Consecutive elements of a tensor and the rank of its gradient's group that steps them.
struct OwnedRun {
  std::size_t tensor = 0;
  int64_t begin = 0;
  int64_t count = 0;
  int owner = 0;
};

bool by_muon(const TrainedTensor& trained) {
  return is_hidden_matrix(trained.info);
}

/// Work of a step on one matrix, in multiplications up to a factor.
double matrix_cost(const TrainedTensor& trained) {
  const auto cols = static_cast<double>(trained.value.size(-1));
  const auto rows =
      static_cast<double>(trained.value.numel()) / static_cast<double>(trained.num_matrices) / cols;
  const double shorter = std::min(rows, cols);
  return 10.0 * (4.0 * shorter * shorter * std::max(rows, cols) + 2.0 * std::pow(shorter, 3.0));
}

/// Whole matrices, and whole tensors of what is no matrix, each to the rank with the least work so
/// far, most work first. Ranks of one group make the same list.
std::vector<OwnedRun> share_out(const std::vector<TrainedTensor>& trained,
                                const std::vector<mesh::RankTensor>& tensors,
                                const comm::Mesh& mesh) {
  struct Unit {
    OwnedRun run;
    double cost = 0.0;
  };
  std::vector<OwnedRun> runs;
  for (const mesh::Sharding sharding :
       {mesh::Sharding::kWhole, mesh::Sharding::kTensor, mesh::Sharding::kExperts}) {
    std::vector<Unit> units;
    for (std::size_t i = 0; i < trained.size(); ++i) {
      if (tensors[i].sharding != sharding) {
        continue;
      }
      const int64_t count = by_muon(trained[i]) ? trained[i].num_matrices : 1;
      const int64_t size = trained[i].value.numel() / count;
      const double cost = by_muon(trained[i]) ? matrix_cost(trained[i]) : static_cast<double>(size);
      for (int64_t j = 0; j < count; ++j) {
        units.push_back({{.tensor = i, .begin = j * size, .count = size, .owner = 0}, cost});
      }
    }
    std::stable_sort(
        units.begin(), units.end(), [](const Unit& a, const Unit& b) { return a.cost > b.cost; });
    std::vector<double> load(
        static_cast<std::size_t>(mesh.group(mesh::gradient_axis(sharding)).size()), 0.0);
    for (Unit& unit : units) {
      const auto least = std::min_element(load.begin(), load.end());
      *least += unit.cost;
      unit.run.owner = static_cast<int>(least - load.begin());
      runs.push_back(unit.run);
    }
  }
  std::stable_sort(runs.begin(), runs.end(), [](const OwnedRun& a, const OwnedRun& b) {
    return std::pair(a.tensor, a.begin) < std::pair(b.tensor, b.begin);
  });
  // Neighbours with one owner are stepped in one go.
  std::vector<OwnedRun> joined;
  for (const OwnedRun& run : runs) {
    if (!joined.empty() && joined.back().tensor == run.tensor && joined.back().owner == run.owner) {
      joined.back().count += run.count;
    } else {
      joined.push_back(run);
    }
  }
  return joined;
}

OptimizerSlot slot_of(const TrainedTensor& trained,
                      const OwnedRun& run,
                      const OptimizerConfig& config) {
  const auto part = [&](const at::Tensor& whole) {
    const at::Tensor flat = whole.view({-1}).narrow(0, run.begin, run.count);
    return by_muon(trained) ? flat.view({-1, whole.size(-1)}) : flat;
  };
  return {.name = trained.info.name,
          .begin = run.begin,
          .value = part(trained.value),
          .gradient = part(trained.gradient),
          .rule = by_muon(trained) ? UpdateRule::kMuon : UpdateRule::kAdamW,
          .weight_decay = decays(trained.info) ? config.weight_decay : 0.0,
          .num_matrices = run.count / (trained.value.numel() / trained.num_matrices)};
}

/// Gives the ranks of each group what its members stepped, one message per member.
void share_runs(const std::vector<OwnedRun>& runs,
                const std::vector<mesh::RankTensor>& tensors,
                const comm::Mesh& mesh) {
  const at::NoGradGuard no_grad;
  for (const mesh::Sharding sharding :
       {mesh::Sharding::kWhole, mesh::Sharding::kTensor, mesh::Sharding::kExperts}) {
    comm::Group& group = mesh.group(mesh::gradient_axis(sharding));
    for (int owner = 0; group.size() > 1 && owner < group.size(); ++owner) {
      std::vector<at::Tensor> parts;
      for (const OwnedRun& run : runs) {
        const mesh::RankTensor& tensor = tensors[run.tensor];
        if (tensor.sharding == sharding && run.owner == owner) {
          parts.push_back(tensor.value.view({-1}).narrow(0, run.begin, run.count));
        }
      }
      if (parts.empty()) {
        continue;
      }
      at::Tensor all = at::cat(parts, 0);
      mesh::broadcast_in_place(all, owner, group);
      int64_t begin = 0;
      for (at::Tensor& part : parts) {
        part.copy_(all.narrow(0, begin, part.size(0)));
        begin += part.size(0);
      }
    }
  }
}

/// Every rank steps whole matrices of what it holds.
void hook_matrices(RankHooks& hooks, const comm::Mesh& mesh, bool embedding_is_shared) {
  struct State {
    std::vector<mesh::RankTensor> tensors;
    std::vector<OwnedRun> runs;
  };
  const auto state = std::make_shared<State>();  // shared by the hooks; filled by own_slots
  hooks.own_slots = [&mesh, embedding_is_shared, state](Masters& masters,
                                                        const OptimizerConfig& config) {
    state->tensors = tensors_of(masters, mesh, embedding_is_shared);
    state->runs = share_out(masters.trained(), state->tensors, mesh);
    std::vector<OptimizerSlot> slots;
    for (const OwnedRun& run : state->runs) {
      comm::Group& group = mesh.group(mesh::gradient_axis(state->tensors[run.tensor].sharding));
      if (run.owner == group.rank()) {
        slots.push_back(slot_of(masters.trained()[run.tensor], run, config));
      }
    }
    return slots;
  };
  hooks.reduce_gradients = [&mesh, state](Masters& masters) {
    mesh::sum_gradients(state->tensors, mesh);
    for (std::size_t i = 0; i < state->tensors.size(); ++i) {
      const mesh::RankTensor& tensor = state->tensors[i];
      const bool first = mesh.group(mesh::gradient_axis(tensor.sharding)).rank() == 0;
      masters.trained()[i].norm_weight = tensor.counts_in_norm && first ? 1.0 : 0.0;
    }
  };
  hooks.share_values = [&mesh, state] { share_runs(state->runs, state->tensors, mesh); };
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
  hook_matrices(hooks, mesh, stages.embedding_is_shared());
  return hooks;
}

}  // namespace baleen::train
