#include "abacus/trainer.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "model/load_parameters.h"
#include "train/published.h"
#include "weights/checkpoint.h"
#include "weights/config_json.h"

namespace baleen::abacus {
namespace {

/// The shape of abacus with two layers fewer; every kind of layer is there.
ModelConfig small_config() {
  ModelConfig config = weights::read_config_json("models/abacus/config.json").config;
  config.layers.erase(config.layers.begin() + 3, config.layers.begin() + 5);
  config.num_hidden_layers = 3;
  return config;
}

const RowEncoder& encoder() {
  static const RowEncoder kEncoder(read_phrases("tools/abacus/phrases.json"),
                                   text::Tokenizer::load("models/abacus/tokenizer.json"));
  return kEncoder;
}

Batch small_batch(uint64_t seed) {
  return encoder().encode_batch(seed, 0, {4, 64, 0.5}, Pairs::kTraining);
}

Recipe small_recipe(int64_t num_steps) {
  Recipe recipe;
  recipe.num_steps = num_steps;
  recipe.warmup_steps = 1;
  recipe.tokens_per_step = 256;
  return recipe;
}

std::filesystem::path fresh_folder(const std::string& name) {
  const auto folder = std::filesystem::temp_directory_path() / ("baleen_abacus_" + name);
  std::filesystem::remove_all(folder);
  return folder;
}

TEST(AbacusTrainerTest, LearnsAFixedBatchByHeart) {
  Trainer trainer(small_config(), small_recipe(40), 1, at::kCPU);
  const Batch batch = small_batch(3);
  const double first = trainer.step(batch).main.item<double>();
  for (int step = 1; step < 40; ++step) {
    trainer.step(batch);
  }
  const StepLosses last = trainer.probe(batch, true);
  EXPECT_GT(first, 5.5);  // about ln 512 at the start
  EXPECT_LT(last.main.item<double>(), 0.35 * first);
  EXPECT_LT(last.mtp.item<double>(), 0.5 * first);
}

TEST(AbacusTrainerTest, ContinuedRunEqualsTheUninterruptedOne) {
  // Steps 0 and 1 are plain, 2 and 3 train the quantised model; the cut lies between.
  const Recipe recipe = small_recipe(4);
  const auto folder = fresh_folder("resume");
  Trainer whole(small_config(), recipe, 5, at::kCPU);
  {
    Trainer first(small_config(), recipe, 5, at::kCPU);
    EXPECT_FALSE(first.load(folder));
    for (uint64_t step = 0; step < 2; ++step) {
      first.step(small_batch(step));
    }
    first.save(folder);
  }
  Trainer second(small_config(), recipe, 5, at::kCPU);
  ASSERT_TRUE(second.load(folder));
  EXPECT_EQ(second.next_step(), 2);
  for (uint64_t step = 0; step < 4; ++step) {
    whole.step(small_batch(step));
    if (step >= 2) {
      second.step(small_batch(step));
    }
  }
  model::ModelParameters expected = whole.exact();
  model::ModelParameters found = second.exact();
  std::vector<at::Tensor> values;
  model::for_each_parameter(expected, [&](const model::ParameterInfo&, at::Tensor& value) {
    values.push_back(value.detach());
  });
  std::size_t next = 0;
  model::for_each_parameter(found, [&](const model::ParameterInfo& info, at::Tensor& value) {
    EXPECT_TRUE(at::equal(value.detach(), values[next++])) << info.name;
  });
  std::filesystem::remove_all(folder);
}

TEST(AbacusTrainerTest, AStateOfAnotherSeedIsRefused) {
  const auto folder = fresh_folder("seed");
  Trainer first(small_config(), small_recipe(4), 5, at::kCPU);
  first.step(small_batch(0));
  first.save(folder);
  Trainer other(small_config(), small_recipe(4), 6, at::kCPU);
  EXPECT_THROW(other.load(folder), CheckpointError);
  std::filesystem::remove_all(folder);
}

TEST(AbacusExportTest, WhatIsWrittenLoadsAsTheServedModel) {
  const auto folder = fresh_folder("export");
  Trainer trainer(small_config(), small_recipe(4), 9, at::kCPU);
  trainer.step(small_batch(1));
  train::write_published(trainer.exact(), folder, {});

  model::ModelParameters served = trainer.served();
  std::vector<at::Tensor> values;
  model::for_each_parameter(served, [&](const model::ParameterInfo&, at::Tensor& value) {
    values.push_back(value.detach());
  });
  const auto checkpoint = weights::Checkpoint::open(folder);
  model::ModelParameters loaded =
      model::load_parameters(checkpoint, at::TensorOptions().dtype(at::kFloat));
  std::size_t next = 0;
  model::for_each_parameter(loaded, [&](const model::ParameterInfo& info, at::Tensor& value) {
    EXPECT_TRUE(at::equal(value, values[next++])) << info.name;
  });
  EXPECT_EQ(next, values.size());
  std::filesystem::remove_all(folder);
}

TEST(AbacusModelTest, TheCommittedModelAnswersUnseenQuestions) {
  const auto checkpoint = weights::Checkpoint::open("models/abacus");
  const model::ModelParameters params =
      model::load_parameters(checkpoint, at::TensorOptions().dtype(at::kFloat));
  const ops::Numerics numerics = ops::Numerics::reference();
  const model::RopeTables tables =
      model::make_rope_tables(params.config, 640, params.embed, numerics);
  ObjectiveSettings settings;
  settings.numerics = numerics;
  settings.tables = &tables;
  Report report = judge(
      params, encoder().encode_batch(21, 0, {64, 64, 0.5}, Pairs::kHeldOut), at::kCPU, settings);
  report.add(judge(
      params, encoder().encode_batch(22, 0, {2, 640, 0.5}, Pairs::kHeldOut), at::kCPU, settings));
  const auto share = [](const Score& score) {
    return static_cast<double>(score.right) / static_cast<double>(score.total);
  };
  EXPECT_GE(report.direct[0].total + report.reasoned[0].total, 80);
  EXPECT_GE(share(report.direct[0]), 0.95) << report.text();
  EXPECT_GE(share(report.reasoned[0]), 0.95) << report.text();
  EXPECT_GE(share(report.drafts), 0.9) << report.text();
}

}  // namespace
}  // namespace baleen::abacus
