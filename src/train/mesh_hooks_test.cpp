// Trainers of several ranks against one: data ranks through the whole supervised step, other meshes
// through the parallel forms of the model, AdamW shared out and Muon on copies.

#include "train/mesh_hooks.h"

#include <map>
#include <mutex>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "comm/thread_world.h"
#include "mesh/mesh_model.h"
#include "mesh/shard_spec.h"
#include "train/train_models_for_tests.h"

namespace baleen::train {
namespace {

constexpr double kTolerance = 1e-9;  // of doubles whose gradients differ in their last bits

TrainerConfig mesh_config(OptimizerKind kind) {
  TrainerConfig config;
  config.schedule.peak = 2e-3;
  config.optimizer.kind = kind;
  config.objective.mtp_weight = 0.2;
  return config;
}

model::ModelParameters nano() {
  return fresh_nano(nano_config({.with_mtp = true, .o_groups = 4}), 3, at::kDouble);
}

/// What three steps gave.
struct Steps {
  std::vector<double> losses;
  std::vector<double> norms;
  std::map<std::string, at::Tensor> values;
};

/// Three steps of 12 samples, every data rank with its share of them.
Steps run_data_ranks(int ranks, OptimizerKind kind) {
  Steps run;
  std::mutex mutex;
  comm::run_ranks(ranks, {}, [&](comm::World& world) {
    at::set_num_threads(1);
    const comm::Mesh mesh(world, {.dp = ranks});
    const mesh::StageSplit stages = mesh::StageSplit::even(4, 1, 1, true);
    const TrainerConfig config = mesh_config(kind);
    Trainer trainer(plain_masters(mesh::own_parameters(nano(), mesh, stages), {.indexer = true}),
                    config,
                    mesh_hooks(mesh, stages, config.optimizer));
    for (int step = 0; step < 3; ++step) {
      std::vector<Sample> own;
      for (const Sample& sample : edge_samples(32)) {  // uneven lengths, uneven shares
        if ((sample.number / 5) % ranks == mesh.place().dp) {
          own.push_back(sample);
        }
      }
      const StepReport report = trainer.step(own);
      if (mesh.rank() == 0) {
        run.losses.push_back(report.loss);
        run.norms.push_back(report.gradient_norm);
      }
    }
    const std::lock_guard<std::mutex> lock(mutex);
    for_values(trainer.masters(),
               [&](std::size_t, const std::string& name, const at::Tensor& value) {
                 const auto [entry, fresh] = run.values.try_emplace(name, value.clone());
                 EXPECT_TRUE(fresh || at::equal(entry->second, value)) << name;
               });
  });
  return run;
}

void expect_close(const Steps& single, const Steps& several) {
  for (std::size_t step = 0; step < single.losses.size(); ++step) {
    EXPECT_NEAR(several.losses[step], single.losses[step], kTolerance);
    EXPECT_NEAR(several.norms[step], single.norms[step], kTolerance);
  }
  for (const auto& [name, value] : single.values) {
    EXPECT_TRUE(at::allclose(several.values.at(name), value, 1e-7, kTolerance)) << name;
  }
}

TEST(MeshHooksTest, DataRanksWithSharedOutAdamWEqualOneRank) {
  const Steps single = run_data_ranks(1, OptimizerKind::kAdamW);
  EXPECT_LT(single.losses[2], single.losses[0]);
  for (const int ranks : {2, 3}) {
    expect_close(single, run_data_ranks(ranks, OptimizerKind::kAdamW));
  }
}

TEST(MeshHooksTest, DataRanksWithMuonOnCopiesEqualOneRank) {
  expect_close(run_data_ranks(1, OptimizerKind::kMuon), run_data_ranks(2, OptimizerKind::kMuon));
}

TEST(MeshHooksTest, OneSharedOutRankIsThePlainTrainer) {
  const Steps shared = run_data_ranks(1, OptimizerKind::kAdamW);
  const TrainerConfig config = mesh_config(OptimizerKind::kAdamW);
  Trainer trainer(plain_masters(nano(), {.indexer = true}), config);
  Steps plain;
  for (int step = 0; step < 3; ++step) {
    const StepReport report = trainer.step(edge_samples(32));
    plain.losses.push_back(report.loss);
    plain.norms.push_back(report.gradient_norm);
  }
  for_values(trainer.masters(), [&](std::size_t, const std::string& name, const at::Tensor& value) {
    plain.values[name] = value.clone();
  });
  // The squares of the norm are added block by block, so from the first clipping on the two differ
  // in last bits.
  EXPECT_EQ(plain.losses[0], shared.losses[0]);
  expect_close(plain, shared);
}

/// Three steps of 4 rows of 16 tokens through the parallel forms of the model.
Steps run_mesh(const comm::MeshShape& shape) {
  Steps run;
  std::mutex mutex;
  at::Tensor ids = at::zeros({4, 18}, at::kLong);
  for (int64_t row = 0; row < 4; ++row) {
    const Sample sample = some_sample(row, 18, 32);
    for (int64_t t = 0; t < 18; ++t) {
      ids[row][t] = sample.ids[static_cast<std::size_t>(t)];
    }
  }
  comm::run_ranks(shape.world_size(), {}, [&](comm::World& world) {
    at::set_num_threads(1);
    const comm::Mesh mesh(world, shape);
    const mesh::StageSplit stages = mesh::StageSplit::even(4, shape.pp, 1, true);
    const TrainerConfig config = mesh_config(OptimizerKind::kAdamW);
    Trainer trainer(plain_masters(mesh::own_parameters(nano(), mesh, stages), {.indexer = true}),
                    config,
                    mesh_hooks(mesh, stages, config.optimizer));
    const int64_t rows = 4 / shape.dp / 2;
    const mesh::TokenLayout layout(
        {{.batch = rows, .samples = {16}}},
        {.context_ranks = shape.cp, .tensor_ranks = shape.sequence_parallel ? shape.tp : 1});
    const mesh::StepPlans plans(layout, trainer.masters().config(), mesh);
    const model::RopeTables tables =
        model::make_rope_tables(trainer.masters().config(),
                                16,
                                at::empty({0}, at::TensorOptions(at::kDouble)),
                                config.objective.numerics);
    std::vector<mesh::MicroBatch> batches;
    for (int64_t m = 0; m < 2; ++m) {
      const at::Tensor own = ids.narrow(0, (mesh.place().dp * 2 + m) * rows, rows);
      batches.push_back({.plans = &plans,
                         .ids = own.narrow(1, 0, 16).reshape({-1}),
                         .next_ids = own.narrow(1, 1, 16).reshape({-1}),
                         .after_next_ids = own.narrow(1, 2, 16).reshape({-1})});
    }
    for (int step = 0; step < 3; ++step) {
      trainer.begin_step();
      double share = 0.0;
      mesh::MeshModel model(
          trainer.masters().leaves(), mesh, stages, config.objective.numerics, tables, true);
      model.run(batches, mesh::PipelineOrder::k1F1B, [&](int, const mesh::TokenRows& seen) {
        const at::Tensor loss = -(seen.logprobs.sum() + seen.mtp_logprobs.sum() * 0.2) / 64.0;
        share += loss.item<double>();
        return loss;
      });
      StepReport report;
      trainer.finish_step(report);
      const double loss = model.sum_of_shares(share);
      if (mesh.rank() == 0) {
        run.losses.push_back(loss);
        run.norms.push_back(report.gradient_norm);
      }
    }
    for (const TrainedTensor& tensor : trainer.masters().trained()) {
      const at::Tensor whole =
          mesh::whole_tensor(tensor.value, mesh::shard_of(tensor.info, mesh), mesh);
      const std::lock_guard<std::mutex> lock(mutex);
      const auto [entry, fresh] = run.values.try_emplace(tensor.info.name, whole);
      EXPECT_TRUE(fresh || at::equal(entry->second, whole)) << tensor.info.name;
    }
  });
  return run;
}

TEST(MeshHooksTest, StepsOverEveryAxisEqualThoseOfOneRank) {
  const Steps single = run_mesh({});
  EXPECT_LT(single.losses[2], single.losses[0]);
  for (const comm::MeshShape& shape : std::vector<comm::MeshShape>{
           {.tp = 4},
           {.cp = 2, .tp = 2, .ep = 4, .sequence_parallel = true},
           {.pp = 2, .dp = 2, .ep = 2},
       }) {
    SCOPED_TRACE(shape.name());
    expect_close(single, run_mesh(shape));
  }
}

TEST(MeshHooksTest, MuonOnCutMatricesIsRefused) {
  EXPECT_THROW(comm::run_ranks(2,
                               {},
                               [&](comm::World& world) {
                                 const comm::Mesh mesh(world, {.tp = 2});
                                 mesh_hooks(mesh,
                                            mesh::StageSplit::even(4, 1, 1, true),
                                            {.kind = OptimizerKind::kMuon});
                               }),
               ConfigError);
}

}  // namespace
}  // namespace baleen::train
