// Checkpoints of runs on a mesh: the same mesh continues with the same bits, any other one and one
// rank with the same masters and moments, whatever was cut how.

#include <algorithm>
#include <atomic>
#include <fstream>
#include <iterator>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "train/checkpoint_slices.h"
#include "train/mesh_jobs_test.h"
#include "train/nano_model.h"
#include "train/sft_run.h"
#include "train/sort_task.h"
#include "train/train_checkpoint.h"

namespace baleen::train {
namespace {

namespace fs = std::filesystem;

model::ModelParameters saved_nano(uint64_t seed) {
  return fresh_nano(nano_config({.with_mtp = true, .o_groups = 4}), seed, at::kFloat);
}

std::vector<Sample> drawn_samples(int64_t step) {
  static const SortTask kTask;
  std::vector<Sample> samples;
  for (int64_t i = 0; i < 8; ++i) {
    samples.push_back(kTask.training_sample(9, step * 8 + i));
  }
  return samples;
}

CheckpointRank rank_of(const MeshTrainer& trainer) {
  return {.mesh = &trainer.mesh(), .stages = &trainer.stages()};
}

std::string bytes_of_file(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

struct SavedFiles {
  std::string model;
  std::string optimizer;
  friend bool operator==(const SavedFiles&, const SavedFiles&) = default;
};

SavedFiles saved_files(const fs::path& root) {
  std::string name = bytes_of_file(root / "latest");
  name.pop_back();
  return {bytes_of_file(root / name / "model.safetensors"),
          bytes_of_file(root / name / "optim.safetensors")};
}

class MeshCheckpointTest : public testing::Test {
 protected:
  MeshCheckpointTest() : root_(fresh_test_folder("mesh_checkpoint")) {}
  ~MeshCheckpointTest() override { fs::remove_all(root_); }

  /// Continues what FROM holds (or begins) on this mesh up to `steps`, and saves to TO.
  void run(const std::string& shape,
           OptimizerKind kind,
           const fs::path& from,
           int64_t steps,
           const fs::path& to) {
    // Other values until they are restored.
    const bool fresh = !fs::exists(from / "latest");
    const MeshJob job{
        .mesh_case = shape.empty() ? mesh::MeshCase{.name = "one"} : shape_named(shape),
        .config = saved_run_config(kind),
        .freeze = {.indexer = true}};
    on_ranks(job, saved_nano(fresh ? 3 : 77), [&](MeshTrainer& trainer) {
      EXPECT_NE(restore_checkpoint(from,
                                   trainer.trainer(),
                                   options_.settings,
                                   LoadOptimizer::kRequired,
                                   rank_of(trainer)),
                fresh);
      while (trainer.trainer().next_step() < steps) {
        trainer.step(drawn_samples(trainer.trainer().next_step()));
      }
      save_checkpoint(to, trainer.trainer(), options_, rank_of(trainer));
    });
  }

  /// The same on one rank without a mesh.
  void run_plain(OptimizerKind kind, const fs::path& from, int64_t steps, const fs::path& to) {
    const bool fresh = !fs::exists(from / "latest");
    Trainer trainer(plain_masters(saved_nano(fresh ? 3 : 77), {.indexer = true}),
                    saved_run_config(kind));
    restore_checkpoint(from, trainer, options_.settings);
    while (trainer.next_step() < steps) {
      trainer.step(drawn_samples(trainer.next_step()));
    }
    save_checkpoint(to, trainer, options_);
  }

  fs::path root_;
  SaveOptions options_{.settings = {{"seed", "9"}}, .keep = 2};
};

TEST_F(MeshCheckpointTest, TheSameMeshContinuesWithTheBitsOfAnUnbrokenRun) {
  for (const auto& [shape, kind] :
       std::vector<std::pair<std::string, OptimizerKind>>{{"tp2_pp2_dp2", OptimizerKind::kAdamW},
                                                          {"tp2_cp2_ep2", OptimizerKind::kAdamW},
                                                          {"pp2_dp2", OptimizerKind::kMuon}}) {
    SCOPED_TRACE(shape);
    const fs::path folder = root_ / shape;
    run(shape, kind, folder / "none", 4, folder / "whole");
    run(shape, kind, folder / "none", 2, folder / "half");
    run(shape, kind, folder / "half", 4, folder / "rest");
    EXPECT_EQ(saved_files(folder / "rest"), saved_files(folder / "whole"));
  }
}

TEST_F(MeshCheckpointTest, EveryShapeHoldsAndSavesWhatAnyOtherSaved) {
  run_plain(OptimizerKind::kAdamW, root_ / "none", 2, root_ / "plain");
  const SavedFiles plain = saved_files(root_ / "plain");
  ASSERT_GT(plain.optimizer.size(), plain.model.size());
  for (const mesh::MeshCase& mesh_case : mesh::all_mesh_shapes()) {
    SCOPED_TRACE(mesh_case.name);
    fs::remove_all(root_ / "again");
    run(mesh_case.name, OptimizerKind::kAdamW, root_ / "plain", 2, root_ / "again");
    EXPECT_EQ(saved_files(root_ / "again"), plain);
  }
  // From one mesh to another, and back to one rank.
  run("tp2_pp2_dp2", OptimizerKind::kAdamW, root_ / "plain", 3, root_ / "tpdp");
  run("ep4", OptimizerKind::kAdamW, root_ / "tpdp", 3, root_ / "ep4");
  run_plain(OptimizerKind::kAdamW, root_ / "ep4", 3, root_ / "back");
  EXPECT_EQ(saved_files(root_ / "ep4"), saved_files(root_ / "tpdp"));
  EXPECT_EQ(saved_files(root_ / "back"), saved_files(root_ / "tpdp"));
}

TEST_F(MeshCheckpointTest, MuonsMatricesGoToOtherRanks) {
  run("pp2_dp2", OptimizerKind::kMuon, root_ / "none", 2, root_ / "first");
  run("ep4", OptimizerKind::kMuon, root_ / "first", 2, root_ / "second");
  run_plain(OptimizerKind::kMuon, root_ / "second", 2, root_ / "third");
  EXPECT_EQ(saved_files(root_ / "second"), saved_files(root_ / "first"));
  EXPECT_EQ(saved_files(root_ / "third"), saved_files(root_ / "first"));
}

TEST_F(MeshCheckpointTest, AnErrorOfAnyRankLeavesTheOldCheckpoint) {
  run("tp2_pp2_dp2", OptimizerKind::kAdamW, root_ / "none", 1, root_ / "run");
  const MeshJob job{.mesh_case = shape_named("tp2_pp2_dp2"),
                    .config = saved_run_config(OptimizerKind::kAdamW),
                    .freeze = {.indexer = true}};
  try {
    on_ranks(job, saved_nano(77), [&](MeshTrainer& trainer) {
      restore_checkpoint(root_ / "run",
                         trainer.trainer(),
                         options_.settings,
                         LoadOptimizer::kRequired,
                         rank_of(trainer));
      trainer.step(drawn_samples(1));
      if (trainer.mesh().rank() == 5) {
        throw SystemError("rank 5 cannot go on");
      }
      save_checkpoint(root_ / "run", trainer.trainer(), options_, rank_of(trainer));
    });
    ADD_FAILURE() << "nothing was thrown";
  } catch (const SystemError& error) {
    EXPECT_STREQ(error.what(), "rank 5 cannot go on");
  }
  EXPECT_EQ(bytes_of_file(root_ / "run" / "latest"), "iter_000000001\n");
  std::vector<std::string> left;
  for (const fs::directory_entry& entry : fs::directory_iterator(root_ / "run")) {
    left.push_back(entry.path().filename());
  }
  EXPECT_THAT(left, testing::UnorderedElementsAre("iter_000000001", "latest"));
  run("cp2", OptimizerKind::kAdamW, root_ / "run", 2, root_ / "run");
  EXPECT_EQ(bytes_of_file(root_ / "run" / "latest"), "iter_000000002\n");
}

TEST(CheckpointSlicesTest, RunsOfAllPartsCoverTheWholeOnce) {
  for (const int64_t dim : {0, 1, 2}) {
    for (const int64_t parts : {1, 2, 3}) {
      const std::vector<int64_t> shape = {4, 5, 6};
      std::vector<int> seen(120, 0);
      for (int64_t part = 0; part < parts; ++part) {
        const mesh::Part own = mesh::part_of(shape[static_cast<std::size_t>(dim)], part, parts);
        const int64_t size = 120 / shape[static_cast<std::size_t>(dim)] * own.count();
        for (const auto& [begin, end] :
             std::vector<std::pair<int64_t, int64_t>>{{0, 7}, {7, size - 1}, {size - 1, size}}) {
          TensorSlice slice{.name = "x",
                            .shape = shape,
                            .dim = dim,
                            .part = own,
                            .begin = begin,
                            .values = at::arange(begin, end)};
          // Element i of the part, by its place in the whole.
          const at::Tensor places =
              at::arange(120).view({4, 5, 6}).narrow(dim, own.begin, own.count()).reshape({-1});
          for_each_run(slice, [&](int64_t whole, int64_t first, int64_t count) {
            for (int64_t i = 0; i < count; ++i) {
              EXPECT_EQ(places[begin + first + i].item<int64_t>(), whole + i);
              ++seen[static_cast<std::size_t>(whole + i)];
            }
          });
        }
      }
      EXPECT_THAT(seen, testing::Each(1)) << dim << " " << parts;
    }
  }
}

// ---- whole runs ------------------------------------------------------------------------------

class SftMeshTest : public testing::Test {
 protected:
  SftMeshTest() : root_(fresh_test_folder("sft_mesh")) {}
  ~SftMeshTest() override { fs::remove_all(root_); }

  SftConfig job(const std::string& name, const std::string& ranks) const {
    SftConfig config;
    config.task = "sort";
    config.output = root_ / name;
    config.steps = 4;
    config.global_batch_size = 8;
    config.lr = 1e-3;
    config.lr_warmup_steps = 2;
    config.weight_decay = 0.0;
    config.mtp_loss_scaling = 0.2;
    config.ranks = ranks;
    config.rank_timeout_s = 60;  // ranks that wait for different things are named, not waited for
    return config;
  }

  fs::path root_;
};

TEST_F(SftMeshTest, RunsOnRanksFollowTheCurveOfOneRankAndContinueOnOthers) {
  std::vector<double> single;
  const auto keep = [](std::vector<double>& losses) {
    return
        [&losses](const StepReport& report, const SftProgress&) { losses.push_back(report.loss); };
  };
  run_sft(job("single", ""), {.say = {}, .on_step = keep(single), .stop = {}});
  ASSERT_EQ(single.size(), 4U);
  for (const char* ranks : {"2", "tp2+sp.pp2", "cp2", "ep2"}) {
    SCOPED_TRACE(ranks);
    std::vector<double> losses;
    const SftSummary summary =
        run_sft(job(ranks, ranks), {.say = {}, .on_step = keep(losses), .stop = {}});
    EXPECT_EQ(summary.next_step, 4);
    EXPECT_TRUE(std::isfinite(summary.accuracy));
    ASSERT_EQ(losses.size(), 4U);
    EXPECT_NEAR(losses[0], single[0], 1e-6 * single[0]);
    for (std::size_t step = 1; step < 4; ++step) {  // AdamW makes steps of rounding noise
      EXPECT_NEAR(losses[step], single[step], 1e-4 * single[step]);
    }
    EXPECT_TRUE(fs::exists(root_ / ranks / "loss.svg"));
    const std::string metrics = bytes_of_file(root_ / ranks / "metrics.jsonl");
    EXPECT_EQ(std::count(metrics.begin(), metrics.end(), '\n'), 4);
  }
  // Two steps on one mesh, the rest on another, and the export.
  SftConfig config = job("moved", "pp2");
  int steps = 0;
  EXPECT_TRUE(
      run_sft(config, {.say = {}, .on_step = {}, .stop = [&] { return ++steps == 2; }}).stopped);
  config.ranks = "dp2";
  config.export_to = root_ / "model";
  const SftSummary rest = run_sft(config, {});
  EXPECT_EQ(rest.first_step, 2);
  EXPECT_EQ(rest.next_step, 4);
  EXPECT_NEAR(rest.last_loss, single[3], 1e-4 * single[3]);
  EXPECT_TRUE(fs::exists(root_ / "model" / "config.json"));
}

TEST_F(SftMeshTest, WhatDoesNotFitIsOneSentence) {
  const auto fault = [&](const SftConfig& config) -> std::string {
    try {
      run_sft(config, {});
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "accepted";
  };
  SftConfig config = job("bad", "tp4");
  EXPECT_THAT(fault(config), testing::HasSubstr("tp: 4 ranks do not divide o_groups 2"));
  config.ranks = "dp16";
  EXPECT_THAT(fault(config),
              testing::HasSubstr("dp: 16 data ranks are too many for the 8 samples"));
  config.ranks = "dp2";
  config.shards = 2;
  EXPECT_THAT(fault(config), testing::StartsWith("shards: "));
  config.shards = 1;
  config.ranks = "tp2";
  config.optimizer = "muon";
  EXPECT_THAT(fault(config), testing::StartsWith("optimizer: muon needs whole matrices"));
  config.optimizer = "adamw";
  config.precision = "fp8";
  EXPECT_THAT(fault(config), testing::HasSubstr("go through its quantised blocks of 128"));
}

}  // namespace
}  // namespace baleen::train
