#pragma once
// Jobs on thread ranks for the tests of this room: a mesh trainer per rank over parts of one model,
// and what it ends with, put together.
//
//   MeshJob job{.shape = shape_named("tp2_sp"), .config = config};
//   on_ranks(job, whole, [&](MeshTrainer& trainer) { ... });

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "comm/thread_world.h"
#include "mesh/mesh_shapes_for_tests.h"
#include "mesh/shard_spec.h"
#include "mesh/whole_parameters.h"
#include "train/mesh_trainer.h"
#include "train/train_models_for_tests.h"

namespace baleen::train {

struct MeshJob {
  mesh::MeshCase mesh_case;
  TrainerConfig config;
  FreezeConfig freeze = {};
};

inline mesh::MeshCase shape_named(const std::string& name) {
  return mesh::mesh_shapes_named({name}).at(0);
}

/// Runs `body` on every rank of the job.
inline void on_ranks(const MeshJob& job,
                     const model::ModelParameters& whole,
                     const std::function<void(MeshTrainer&)>& body) {
  const comm::MeshShape& shape = job.mesh_case.shape;
  comm::run_ranks(shape.world_size(), {}, [&](comm::World& world) {
    at::set_num_threads(1);
    const comm::Mesh mesh(world, shape);
    const mesh::StageSplit stages = mesh::StageSplit::even(whole.config.num_hidden_layers,
                                                           shape.pp,
                                                           job.mesh_case.chunks_per_rank,
                                                           !whole.mtp.empty());
    MeshTrainer trainer(plain_masters(mesh::own_parameters(whole, mesh, stages), job.freeze),
                        job.config,
                        mesh,
                        {.stages = stages, .zig_zag = job.mesh_case.zig_zag});
    body(trainer);
  });
}

using ValuesByName = std::map<std::string, at::Tensor>;

inline ValuesByName values_by_name(model::ModelParameters params) {
  ValuesByName values;
  model::for_each_parameter(params, [&](const model::ParameterInfo& info, at::Tensor& value) {
    values[info.name] = value.detach().clone();
  });
  return values;
}

/// Largest difference of any tensor, relative to its largest number.
inline double largest_gap(const ValuesByName& expected, const ValuesByName& found) {
  double largest = 0.0;
  for (const auto& [name, value] : expected) {
    const at::Tensor a = value.to(at::kDouble);
    const double gap = (a - found.at(name).to(at::kDouble)).abs().max().item<double>();
    largest = std::max(largest, gap / std::max(a.abs().max().item<double>(), 1e-300));
  }
  return largest;
}

}  // namespace baleen::train
