#include "train/run_rank.h"

#include <optional>
#include <utility>

#include <ATen/Parallel.h>

#include "comm/mesh.h"
#include "comm/thread_world.h"
#include "mesh/whole_parameters.h"
#include "train/mesh_trainer.h"

namespace baleen::train {
namespace {

class SingleRank final : public RunRank {
 public:
  SingleRank(Masters masters, const TrainerConfig& config) : trainer_(std::move(masters), config) {}

  StepReport step(std::vector<Sample> samples) override {
    return trainer_.step(std::move(samples));
  }
  Trainer& trainer() override { return trainer_; }
  const Trainer& trainer() const override { return trainer_; }
  MeshTrainer* mesh_trainer() override { return nullptr; }
  CheckpointRank checkpoint_rank() const override { return {}; }
  bool agreed(bool said_by_first) override { return said_by_first; }
  model::ModelParameters whole(const model::ModelParameters& own) override { return own; }

 private:
  Trainer trainer_;
};

class MeshRank final : public RunRank {
 public:
  MeshRank(Masters masters,
           const TrainerConfig& config,
           const comm::Mesh& mesh,
           const MeshPlan& plan)
      : trainer_(std::move(masters), config, mesh, plan) {}

  StepReport step(std::vector<Sample> samples) override { return trainer_.step(samples); }
  Trainer& trainer() override { return trainer_.trainer(); }
  const Trainer& trainer() const override { return trainer_.trainer(); }
  MeshTrainer* mesh_trainer() override { return &trainer_; }
  CheckpointRank checkpoint_rank() const override {
    return {.mesh = &trainer_.mesh(), .stages = &trainer_.stages()};
  }
  bool agreed(bool said_by_first) override {
    int64_t said = said_by_first ? 1 : 0;
    trainer_.mesh().group(comm::Axis::kWorld).broadcast(&said, sizeof(said), 0);
    return said != 0;
  }
  model::ModelParameters whole(const model::ModelParameters& own) override {
    return mesh::whole_parameters(own, trainer_.mesh(), trainer_.stages());
  }

 private:
  MeshTrainer trainer_;
};

}  // namespace

std::unique_ptr<RunRank> single_rank(Masters masters, const TrainerConfig& config) {
  return std::make_unique<SingleRank>(std::move(masters), config);
}

void run_on_ranks(const MeshOptions& options,
                  model::ModelParameters params,
                  const std::function<Masters(model::ModelParameters own)>& make_masters,
                  const TrainerConfig& config,
                  int64_t threads,
                  const std::function<void(RunRank& rank)>& body) {
  const comm::MeshShape shape = mesh_shape(options);
  const MeshPlan plan{.stages = mesh::StageSplit::even(params.config.num_hidden_layers,
                                                       shape.pp,
                                                       static_cast<int>(options.pp_chunks),
                                                       !params.mtp.empty()),
                      .zig_zag = options.cp_zig_zag};
  mesh::validate_formats(shape, params);
  std::optional<model::ModelParameters> whole(std::move(params));
  comm::run_ranks(shape.world_size(),
                  {.wait_timeout_ms = options.rank_timeout_s * 1000},
                  [&](comm::World& world) {
                    at::set_num_threads(static_cast<int>(threads));  // of this thread
                    const comm::Mesh mesh(world, shape);
                    model::ModelParameters own = mesh::own_parameters(*whole, mesh, plan.stages);
                    comm::Group& all = mesh.group(comm::Axis::kWorld);
                    all.barrier();
                    if (world.rank() == 0) {
                      whole.reset();
                    }
                    all.barrier();
                    MeshRank rank(make_masters(std::move(own)), config, mesh, plan);
                    body(rank);
                  });
}

}  // namespace baleen::train
