// The whole supervised step on every mesh shape against one rank: losses, norm, auxiliary losses,
// weights; with recomputed activations, uneven samples, micro-batches, made-up samples for idle
// ranks, trained indexer, moving router biases.

#include "train/mesh_trainer.h"

#include <algorithm>
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "train/mesh_hooks.h"
#include "train/mesh_jobs_test.h"
#include "train/nano_model.h"

namespace baleen::train {
namespace {

// Doubles that are added in another order, and what the layers make of it.
constexpr double kStepTolerance = 1e-10;
// AdamW divides by |g| + 1e-8: noise of 1e-16 in a gradient that is 0 moves a weight by 1e-8 times
// the learning rate, every step.
constexpr double kWeightTolerance = 1e-8;

TrainerConfig full_config() {
  TrainerConfig config;
  config.schedule.peak = 2e-3;
  config.objective.mtp_weight = 0.2;
  config.objective.balance_weight = 0.01;
  config.objective.index_weight = 0.1;
  config.objective.chunk_rows = 7;
  config.objective.aggregation = LossAggregation::kSampleMean;
  config.bias_rate = 1e-3;
  return config;
}

model::ModelParameters mesh_nano(at::ScalarType type = at::kDouble) {
  return fresh_nano(nano_config({.with_mtp = true, .o_groups = 4}), 3, type);
}

/// What some steps gave.
struct MeshSteps {
  std::vector<StepReport> reports;
  ValuesByName values;
};

MeshSteps steps_on_one_rank(const TrainerConfig& config,
                            const std::vector<Sample>& samples,
                            int steps,
                            at::ScalarType type = at::kDouble) {
  Trainer trainer(plain_masters(mesh_nano(type)), config);
  MeshSteps run;
  for (int step = 0; step < steps; ++step) {
    run.reports.push_back(trainer.step(samples));
  }
  run.values = values_by_name(trainer.masters().values());
  return run;
}

MeshSteps steps_on_mesh(const MeshJob& job,
                        const std::vector<Sample>& samples,
                        int steps,
                        at::ScalarType type = at::kDouble) {
  MeshSteps run;
  std::mutex mutex;
  on_ranks(job, mesh_nano(type), [&](MeshTrainer& trainer) {
    std::vector<StepReport> reports;
    for (int step = 0; step < steps; ++step) {
      reports.push_back(trainer.step(samples));
    }
    const model::ModelParameters whole = mesh::whole_parameters(
        trainer.trainer().masters().values(), trainer.mesh(), trainer.stages());
    const std::lock_guard<std::mutex> lock(mutex);
    if (trainer.mesh().rank() == 0) {
      run.values = values_by_name(whole);
    }
    if (run.reports.empty()) {
      run.reports = reports;
    }
    for (std::size_t step = 0; step < reports.size(); ++step) {  // equal on all ranks
      EXPECT_EQ(reports[step].loss, run.reports[step].loss);
      EXPECT_EQ(reports[step].gradient_norm, run.reports[step].gradient_norm);
    }
  });
  return run;
}

void expect_equal_steps(const MeshSteps& single, const MeshSteps& mesh) {
  for (std::size_t step = 0; step < single.reports.size(); ++step) {
    const StepReport& a = single.reports[step];
    const StepReport& b = mesh.reports[step];
    EXPECT_NEAR(b.loss, a.loss, kStepTolerance * a.loss);
    EXPECT_NEAR(b.mtp_loss, a.mtp_loss, kStepTolerance * std::max(a.mtp_loss, 1.0));
    EXPECT_NEAR(b.balance, a.balance, kStepTolerance * std::max(a.balance, 1.0));
    EXPECT_NEAR(b.index_loss, a.index_loss, kStepTolerance * std::max(a.index_loss, 1.0));
    EXPECT_NEAR(b.gradient_norm, a.gradient_norm, kStepTolerance * a.gradient_norm);
    EXPECT_EQ(b.learning_rate, a.learning_rate);
    EXPECT_EQ(b.samples, a.samples);
    EXPECT_EQ(b.targets, a.targets);
    EXPECT_EQ(b.tokens, a.tokens);
  }
  EXPECT_LT(largest_gap(single.values, mesh.values), kWeightTolerance);
}

class MeshTrainerShapesTest : public testing::TestWithParam<mesh::MeshCase> {};

TEST_P(MeshTrainerShapesTest, StepsWithEveryLossEqualThoseOfOneRank) {
  static const MeshSteps kSingle = steps_on_one_rank(full_config(), edge_samples(32), 2);
  MeshJob job{.mesh_case = GetParam(), .config = full_config()};
  expect_equal_steps(kSingle, steps_on_mesh(job, edge_samples(32), 2));
}

INSTANTIATE_TEST_SUITE_P(All,
                         MeshTrainerShapesTest,
                         testing::ValuesIn(mesh::all_mesh_shapes()),
                         [](const auto& shape) { return shape.param.name; });

/// Neither is among the shapes above: one rank, and three, which cut tensors and samples unevenly.
TEST(MeshTrainerTest, OneAndThreeDataRanksEqualThePlainTrainer) {
  const MeshSteps single = steps_on_one_rank(full_config(), edge_samples(32), 3);
  EXPECT_LT(single.reports[2].loss, single.reports[0].loss);
  for (const int ranks : {1, 3}) {
    SCOPED_TRACE(ranks);
    const MeshJob job{.mesh_case = {.name = "data", .shape = {.dp = ranks}},
                      .config = full_config()};
    expect_equal_steps(single, steps_on_mesh(job, edge_samples(32), 3));
  }
}

TEST(MeshTrainerTest, RecomputedBlocksGiveTheBitsOfKeptOnes) {
  for (const char* name : {"tp2_sp", "cp2_zigzag", "ep4", "tp2_pp2_dp2"}) {
    SCOPED_TRACE(name);
    MeshJob job{.mesh_case = shape_named(name), .config = full_config()};
    const MeshSteps kept = steps_on_mesh(job, edge_samples(32), 2);
    job.config.objective.recompute = Recompute::kBlock;
    const MeshSteps again = steps_on_mesh(job, edge_samples(32), 2);
    for (std::size_t step = 0; step < 2; ++step) {
      EXPECT_EQ(again.reports[step].loss, kept.reports[step].loss);
      EXPECT_EQ(again.reports[step].index_loss, kept.reports[step].index_loss);
      EXPECT_EQ(again.reports[step].gradient_norm, kept.reports[step].gradient_norm);
    }
    EXPECT_EQ(largest_gap(kept.values, again.values), 0.0);
  }
}

TEST(MeshTrainerTest, UnevenSamplesSmallMicroBatchesAndIdleRanks) {
  TrainerConfig config = full_config();
  config.objective.aggregation = LossAggregation::kTokenMean;
  const std::vector<Sample> all = edge_samples(32);
  const std::vector<Sample> few(all.begin() + 8, all.begin() + 11);  // fewer than data ranks
  const MeshSteps single = steps_on_one_rank(config, all, 2);
  const MeshSteps single_few = steps_on_one_rank(config, few, 2);
  for (const char* name : {"dp4", "ep4", "pp2_cp2_dp2", "pp2_interleaved"}) {
    SCOPED_TRACE(name);
    MeshJob job{.mesh_case = shape_named(name), .config = config};
    job.config.micro_batch_tokens = 24;  // the longest sample has more
    expect_equal_steps(single, steps_on_mesh(job, all, 2));
    expect_equal_steps(single_few, steps_on_mesh(job, few, 2));
  }
}

TEST(MeshTrainerTest, TheReportedLossDoesNotDependOnTheOrderOfSamples) {
  TrainerConfig config = full_config();
  config.objective.numerics = ops::Numerics::by_name("plain+invariant");
  std::vector<Sample> samples = edge_samples(32);
  for (const char* name : {"dp2", "cp2_ep2"}) {
    SCOPED_TRACE(name);
    const MeshJob job{.mesh_case = shape_named(name), .config = config};
    const double loss = steps_on_mesh(job, samples, 1).reports[0].loss;
    std::reverse(samples.begin(), samples.end());
    EXPECT_EQ(steps_on_mesh(job, samples, 1).reports[0].loss, loss);
    std::rotate(samples.begin(), samples.begin() + 5, samples.end());
    EXPECT_EQ(steps_on_mesh(job, samples, 1).reports[0].loss, loss);
  }
}

TEST(MeshTrainerTest, FrozenStagesAndPartsKeepEveryBit) {
  MeshJob job{.mesh_case = shape_named("tp2_pp2_dp2"), .config = full_config()};
  job.config.objective.index_weight = 0.0;
  job.config.bias_rate = 0.0;
  job.freeze = {.gate = true,
                .indexer = true,
                .mixing = FreezeMixing::kComb,
                .patterns = {"embed\\.weight", "layers\\.[01]\\..*"}};  // the whole first stage
  const MeshSteps run = steps_on_mesh(job, edge_samples(32), 3);
  const ValuesByName before = values_by_name(mesh_nano());
  int moved = 0;
  for (const auto& [name, value] : run.values) {
    const bool frozen = name == "embed.weight" || name.starts_with("layers.0.") ||
                        name.starts_with("layers.1.") || name.ends_with(".gate.weight") ||
                        name.ends_with("gate.bias") || name.ends_with("tid2eid") ||
                        name.find("indexer") != std::string::npos;
    EXPECT_EQ(at::equal(value, before.at(name)), frozen) << name;
    moved += frozen ? 0 : 1;
  }
  EXPECT_GT(moved, 40);
}

TEST(MeshTrainerTest, MuonOverDataExpertAndPipelineRanksEqualsOneRank) {
  TrainerConfig config = full_config();
  config.optimizer.kind = OptimizerKind::kMuon;
  const MeshSteps single = steps_on_one_rank(config, edge_samples(32), 2);
  for (const char* name : {"dp2", "ep4", "pp2_dp2", "cp2"}) {
    SCOPED_TRACE(name);
    expect_equal_steps(
        single,
        steps_on_mesh({.mesh_case = shape_named(name), .config = config}, edge_samples(32), 2));
  }
}

TEST(MeshTrainerTest, MuonOnCutMatricesIsRefused) {
  MeshJob job{.mesh_case = shape_named("tp2"), .config = full_config()};
  job.config.optimizer.kind = OptimizerKind::kMuon;
  EXPECT_THROW(steps_on_mesh(job, edge_samples(32), 1), ConfigError);
}

TEST(MeshTrainerTest, ALogProbabilityThatIsNoNumberEndsEveryRankWithItsSample) {
  const MeshJob job{.mesh_case = shape_named("pp2_dp2"), .config = full_config()};
  model::ModelParameters broken = mesh_nano();
  broken.final_head.norm.fill_(std::nan(""));
  try {
    on_ranks(job, broken, [](MeshTrainer& trainer) { trainer.step(edge_samples(32)); });
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("log-probability of sample"));
  }
}

// ---- float -----------------------------------------------------------------------------------

TEST(MeshTrainerTest, InFloatLossAndNormDifferByRoundingAlone) {
  const MeshSteps single = steps_on_one_rank(full_config(), edge_samples(32), 1, at::kFloat);
  for (const mesh::MeshCase& mesh_case : mesh::all_mesh_shapes()) {
    SCOPED_TRACE(mesh_case.name);
    const MeshSteps run = steps_on_mesh(
        {.mesh_case = mesh_case, .config = full_config()}, edge_samples(32), 1, at::kFloat);
    const StepReport& a = single.reports[0];
    const StepReport& b = run.reports[0];
    EXPECT_NEAR(b.loss, a.loss, 1e-6 * a.loss);
    EXPECT_NEAR(b.mtp_loss, a.mtp_loss, 1e-6 * a.mtp_loss);
    EXPECT_NEAR(b.balance, a.balance, 1e-6 * a.balance);
    EXPECT_NEAR(b.gradient_norm, a.gradient_norm, 1e-6 * a.gradient_norm);
  }
}

}  // namespace
}  // namespace baleen::train
