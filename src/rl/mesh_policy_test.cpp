// One update by the policy gradient on every mesh shape: values, reports and weights of one rank.
#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <string>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "comm/thread_world.h"
#include "mesh/mesh_shapes_for_tests.h"
#include "mesh/whole_parameters.h"
#include "rl/policy_update.h"
#include "train/mesh_trainer.h"
#include "train/nano_model.h"

namespace baleen::rl {
namespace {

// Values are kept in float between the passes; the models compute in double.
constexpr double kUpdateTolerance = 1e-6;

RlConfig update_config(const std::string& algo) {
  RlConfig config = default_rl_config("sort", algo);
  config.rollout_batch_size = 6;
  config.n_samples_per_prompt = 3;
  config.num_steps_per_rollout = 1;
  config.lr_warmup_steps = 0;
  config.kl_loss_coef = algo == "gspo" ? 0.02 : 0.0;
  config.kl_loss_type = "k3";
  config.entropy_coef = algo == "gspo" ? 0.01 : 0.0;
  config.use_tis = algo == "grpo";
  settle(config);
  return config;
}

model::ModelParameters whole_model(uint64_t seed) {
  return train::fresh_nano(
      train::nano_config({.with_mtp = true, .o_groups = 4}), seed, at::kDouble);
}

train::TrainerConfig update_trainer(const RlConfig& config) {
  train::TrainerConfig trainer;
  trainer.objective.numerics = ops::Numerics::plain();
  trainer.optimizer.weight_decay = 0.0;
  trainer.optimizer.epsilon = 1e-3;  // a step is smooth in its gradient
  trainer.schedule.peak = config.lr;
  trainer.micro_batch_tokens = 60;
  return trainer;
}

/// Answers of 3 to 14 tokens behind prompts of 5, so that windows, groups and picks are crossed.
RolloutBatch made_up_batch(const RlConfig& config) {
  RolloutBatch batch;
  for (int64_t g = 0; g < config.rollout_batch_size; ++g) {
    RolloutGroup& group = batch.groups.emplace_back();
    group.group = g;
    for (int64_t j = 0; j < config.n_samples_per_prompt; ++j) {
      RolloutSample& sample = group.samples.emplace_back();
      sample.group = g;
      sample.index = g * config.n_samples_per_prompt + j;
      sample.prompt_tokens = 5;
      sample.ids = {3, static_cast<int32_t>(8 + g), 9, static_cast<int32_t>(10 + j), 4};
      for (int64_t t = 0; t < 3 + (5 * g + 7 * j) % 12; ++t) {
        sample.append(static_cast<int32_t>(8 + (g + 3 * j + t * t) % 10),
                      -2.0F - 0.1F * static_cast<float>(t % 3),
                      0);
      }
      sample.mask[1] = j == 2 ? 0 : 1;
      sample.status = SampleStatus::kCompleted;
      sample.reward = static_cast<double>((g + j) % 3 == 0) + 0.25 * static_cast<double>(j);
    }
  }
  return batch;
}

struct Updated {
  policy::Metrics metrics;
  double gradient_norm = 0.0;
  std::map<std::string, at::Tensor> values;
};

train::FreezeConfig frozen() {
  return {.gate = true, .indexer = true, .mtp = true};
}

std::map<std::string, at::Tensor> by_name(model::ModelParameters params) {
  std::map<std::string, at::Tensor> values;
  model::for_each_parameter(params, [&](const model::ParameterInfo& info, at::Tensor& value) {
    if (value.defined()) {
      values[info.name] = value.detach().clone();
    }
  });
  return values;
}

Updated on_one_rank(const std::string& algo) {
  const RlConfig config = update_config(algo);
  model::ModelParameters params = whole_model(5);
  const train::FreezeRules rules(frozen(), params);
  train::Trainer trainer(train::Masters(std::move(params), rules, train::WeightRounding::kNone),
                         update_trainer(config));
  const auto passes = passes_of(trainer);
  PolicyUpdate update(config, *passes);
  if (config.kl_loss_coef != 0.0) {
    update.set_reference(whole_model(6));
  }
  const UpdateReport report = update.run(made_up_batch(config), 0);
  return {report.metrics, report.gradient_norm, by_name(trainer.masters().values())};
}

Updated on_mesh(const std::string& algo, const mesh::MeshCase& mesh_case) {
  const RlConfig config = update_config(algo);
  Updated out;
  std::mutex mutex;
  const comm::MeshShape& shape = mesh_case.shape;
  comm::run_ranks(shape.world_size(), {}, [&](comm::World& world) {
    at::set_num_threads(1);
    const comm::Mesh mesh(world, shape);
    const model::ModelParameters whole = whole_model(5);
    const mesh::StageSplit stages = mesh::StageSplit::even(
        whole.config.num_hidden_layers, shape.pp, mesh_case.chunks_per_rank, true);
    model::ModelParameters own = mesh::own_parameters(whole, mesh, stages);
    const train::FreezeRules rules(frozen(), own);
    train::MeshTrainer trainer(train::Masters(std::move(own), rules, train::WeightRounding::kNone),
                               update_trainer(config),
                               mesh,
                               {.stages = stages, .zig_zag = mesh_case.zig_zag});
    const auto passes = passes_of(trainer);
    PolicyUpdate update(config, *passes);
    if (config.kl_loss_coef != 0.0) {
      update.set_reference(mesh::own_parameters(whole_model(6), mesh, stages));
    }
    const UpdateReport report = update.run(made_up_batch(config), 0);
    const std::map<std::string, at::Tensor> values = by_name(
        mesh::whole_parameters(trainer.trainer().masters().values(), mesh, trainer.stages()));
    const std::lock_guard<std::mutex> lock(mutex);
    if (mesh.rank() == 0) {
      out = {report.metrics, report.gradient_norm, values};
    } else {
      EXPECT_EQ(report.metrics, out.metrics.empty() ? report.metrics : out.metrics);
    }
  });
  return out;
}

void expect_equal(const Updated& single, const Updated& several) {
  ASSERT_EQ(single.metrics.size(), several.metrics.size());
  for (std::size_t i = 0; i < single.metrics.size(); ++i) {
    EXPECT_EQ(single.metrics[i].first, several.metrics[i].first);
    EXPECT_NEAR(several.metrics[i].second,
                single.metrics[i].second,
                kUpdateTolerance * std::max(1.0, std::abs(single.metrics[i].second)))
        << single.metrics[i].first;
  }
  EXPECT_GT(single.gradient_norm, 0.0);
  EXPECT_NEAR(several.gradient_norm, single.gradient_norm, kUpdateTolerance);
  for (const auto& [name, value] : single.values) {
    EXPECT_TRUE(at::allclose(several.values.at(name), value, kUpdateTolerance, kUpdateTolerance))
        << name;
  }
}

TEST(MeshPolicyTest, AStepOnEveryShapeIsThatOfOneRank) {
  const Updated single = on_one_rank("dapo");
  for (const mesh::MeshCase& mesh_case : mesh::all_mesh_shapes()) {
    SCOPED_TRACE(mesh_case.name);
    expect_equal(single, on_mesh("dapo", mesh_case));
  }
}

TEST(MeshPolicyTest, SequenceRatiosReferencesAndCorrectionsAreThoseOfOneRankToo) {
  for (const char* algo : {"gspo", "grpo"}) {
    const Updated single = on_one_rank(algo);
    for (const mesh::MeshCase& mesh_case :
         mesh::mesh_shapes_named({"tp2_sp", "cp2_zigzag", "tp2_pp2_dp2"})) {
      SCOPED_TRACE(std::string(algo) + " " + mesh_case.name);
      expect_equal(single, on_mesh(algo, mesh_case));
    }
  }
}

}  // namespace
}  // namespace baleen::rl
