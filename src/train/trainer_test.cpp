#include "train/trainer.h"

#include <cmath>
#include <limits>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "model/fake_quantized.h"
#include "train/sort_task.h"
#include "train/train_models_for_tests.h"

namespace baleen::train {
namespace {

TrainerConfig quick_config() {
  TrainerConfig config;
  config.schedule.peak = 3e-3;
  config.optimizer.weight_decay = 0.0;
  config.objective.mtp_weight = 0.2;
  return config;
}

Trainer nano_trainer(const TrainerConfig& config, const FreezeConfig& freeze = {.indexer = true}) {
  return Trainer(plain_masters(fresh_nano(nano_config({.with_mtp = true}), 3, at::kFloat), freeze),
                 config);
}

std::vector<Sample> sort_samples(int64_t first, int64_t count) {
  static const SortTask kTask;
  std::vector<Sample> samples;
  for (int64_t i = 0; i < count; ++i) {
    samples.push_back(kTask.training_sample(1, first + i));
  }
  return samples;
}

TEST(TrainerTest, LearnsAFixedBatchByHeart) {
  Trainer trainer = nano_trainer(quick_config());
  const std::vector<Sample> samples = sort_samples(0, 4);
  const double first = trainer.step(samples).loss;
  StepReport last;
  for (int step = 1; step < 60; ++step) {
    last = trainer.step(samples);
  }
  EXPECT_GT(first, 2.5);  // about ln 32
  EXPECT_LT(last.loss, 0.05);
  EXPECT_LT(last.mtp_loss, 0.3);
}

TEST(TrainerTest, MuonLearnsToo) {
  TrainerConfig config = quick_config();
  config.optimizer.kind = OptimizerKind::kMuon;
  config.optimizer.weight_decay = 0.1;
  Trainer trainer = nano_trainer(config);
  const std::vector<Sample> samples = sort_samples(0, 4);
  const double first = trainer.step(samples).loss;
  StepReport last;
  for (int step = 1; step < 30; ++step) {
    last = trainer.step(samples);
  }
  EXPECT_LT(last.loss, 0.2 * first);
}

TEST(TrainerTest, FrozenParametersKeepEveryBit) {
  TrainerConfig config = quick_config();
  config.optimizer.weight_decay = 0.5;
  const FreezeConfig freeze{.gate = true,
                            .indexer = true,
                            .mixing = FreezeMixing::kComb,
                            .patterns = {"layers\\.2\\..*", "head\\.weight"}};
  Trainer trainer = nano_trainer(config, freeze);
  const std::vector<at::Tensor> before = copied_values(trainer.masters());
  for (int step = 0; step < 10; ++step) {
    trainer.step(sort_samples(4 * step, 4));
  }
  int64_t moved = 0;
  for_values(trainer.masters(),
             [&](std::size_t i, const std::string& name, const at::Tensor& value) {
               const bool frozen = name.starts_with("layers.2.") || name == "head.weight" ||
                                   name.ends_with("ffn.gate.weight") ||
                                   name.ends_with("gate.bias") || name.ends_with("tid2eid") ||
                                   name.find(".indexer.") != std::string::npos;
               EXPECT_EQ(at::equal(value, before[i]), frozen) << name;
               moved += frozen ? 0 : 1;
               if (name == "layers.1.hc_attn_base" || name == "layers.1.hc_attn_fn") {
                 EXPECT_TRUE(at::equal(value.narrow(0, 8, 16), before[i].narrow(0, 8, 16))) << name;
                 EXPECT_FALSE(at::equal(value.narrow(0, 0, 8), before[i].narrow(0, 0, 8))) << name;
               }
             });
  EXPECT_GT(moved, 50);
}

TEST(TrainerTest, AWrongFreezePatternIsNamed) {
  model::ModelParameters params = fresh_nano(nano_config(), 1, at::kFloat);
  for (const char* pattern : {"layers\\.9\\..*", "layers.(", "wq_a"}) {
    try {
      FreezeRules({.patterns = {pattern}}, params);
      ADD_FAILURE() << pattern;
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find(pattern), std::string::npos) << error.what();
    }
  }
}

TEST(TrainerTest, ReportedLossDoesNotDependOnTheOrderOfSamples) {
  std::vector<Sample> samples = edge_samples(32);
  Trainer one = nano_trainer(quick_config());
  Trainer other = nano_trainer(quick_config());
  const StepReport expected = one.step(samples);
  std::reverse(samples.begin(), samples.end());
  std::swap(samples[2], samples[7]);
  const StepReport found = other.step(samples);
  // Rows move inside the batch, which the matrix library may round differently.
  EXPECT_NEAR(found.loss, expected.loss, 1e-6);
  EXPECT_NEAR(found.gradient_norm, expected.gradient_norm, 1e-5 * expected.gradient_norm);
  EXPECT_EQ(found.targets, expected.targets);
}

TEST(TrainerTest, InvariantSumsGiveTheSameLossInAnyPacking) {
  TrainerConfig config = quick_config();
  config.objective.numerics.summation = ops::Summation::kInvariant;
  std::vector<Sample> samples = edge_samples(32);
  Trainer whole = nano_trainer(config);
  config.micro_batch_tokens = 40;
  Trainer cut = nano_trainer(config);
  const double expected = whole.step(samples).loss;
  std::reverse(samples.begin(), samples.end());
  const StepReport found = cut.step(samples);
  EXPECT_GT(found.micro_batches, 3);
  EXPECT_EQ(found.loss, expected);
}

TEST(TrainerTest, ClipsByTheNormOfTheWholeGradient) {
  TrainerConfig config = quick_config();
  config.clip_norm = 0.25;
  Trainer trainer = nano_trainer(config);
  const StepReport report = trainer.step(sort_samples(0, 4));
  double sum = 0.0;
  for (const TrainedTensor& tensor : trainer.masters().trained()) {
    sum += tensor.gradient.to(at::kDouble).square().sum().item<double>();
  }
  EXPECT_NEAR(report.gradient_norm, std::sqrt(sum), 1e-9);
  EXPECT_GT(report.gradient_norm, 0.25);
  // The first moment holds (1 - b1) of what the optimizer saw.
  double seen = 0.0;
  for (const Optimizer::State& state : trainer.optimizer().states()) {
    if (state.kind == "m") {
      seen += state.value.to(at::kDouble).square().sum().item<double>();
    }
  }
  EXPECT_NEAR(std::sqrt(seen) / 0.1, 0.25, 1e-5);
}

TEST(TrainerTest, SkipsAStepWhoseGradientIsNotFinite) {
  Trainer trainer = nano_trainer(quick_config());
  const auto poisoned_step = [&] {
    trainer.begin_step();
    trainer.masters().flat_gradients().select(0, 17).fill_(std::numeric_limits<float>::infinity());
    StepReport report;
    trainer.finish_step(report);
    return report;
  };
  const at::Tensor before = trainer.masters().flat_values().clone();
  EXPECT_TRUE(poisoned_step().skipped);
  EXPECT_TRUE(poisoned_step().skipped);
  EXPECT_TRUE(at::equal(trainer.masters().flat_values(), before));
  EXPECT_FALSE(trainer.step(sort_samples(0, 2)).skipped);
  EXPECT_TRUE(poisoned_step().skipped);
  EXPECT_EQ(poisoned_step().skipped_steps, 4);
  EXPECT_THROW(poisoned_step(), Error);
}

TEST(TrainerTest, MovesRouterBiasesTowardsEvenLoads) {
  TrainerConfig config = quick_config();
  config.bias_rate = 0.01;
  Trainer trainer = nano_trainer(config);
  trainer.step(sort_samples(0, 8));
  const at::Tensor bias = trainer.masters().values().blocks[1].moe.gate_bias;
  EXPECT_EQ(bias.abs().max().item<float>(), 0.01F);
  EXPECT_LT(bias.min().item<float>(), 0.0F);
  EXPECT_GT(bias.max().item<float>(), 0.0F);
}

TEST(QuantizedTrainingTest, GradientIsThatOfTheServedValues) {
  for (const ops::LinearFormat experts : {ops::LinearFormat::kFp8, ops::LinearFormat::kFp4}) {
    const ModelConfig config = nano_config({.with_mtp = true});
    model::ModelParameters params = fresh_nano(config, 4, at::kFloat);
    model::set_formats(params, {ops::LinearFormat::kFp8, experts});
    model::ModelParameters served = model::fake_quantized(params);
    model::for_each_parameter(
        served, [](const model::ParameterInfo&, at::Tensor& value) { value = value.clone(); });
    Masters rounded = plain_masters(std::move(params), {.indexer = true}, WeightRounding::kServed);
    Masters given = plain_masters(std::move(served), {.indexer = true});
    ObjectiveConfig objective;
    objective.numerics = ops::Numerics::reference();
    objective.mtp_weight = 0.2;
    const std::vector<Sample> samples = sort_samples(0, 6);
    const StepTotals totals = step_totals(samples, objective, config);
    const PackedBatch batch = pack(samples, totals.loss, {});
    const model::RopeTables tables =
        model::make_rope_tables(config, 20, given.values().embed, objective.numerics);
    for (Masters* masters : {&rounded, &given}) {
      micro_batch_loss(masters->leaves(), batch, totals, objective, tables).total.backward();
    }
    EXPECT_GT(given.flat_gradients().abs().max().item<float>(), 0.0F);
    EXPECT_TRUE(at::equal(rounded.flat_gradients(), given.flat_gradients()));
    EXPECT_FALSE(at::equal(rounded.flat_values(), given.flat_values()));
  }
}

TEST(QuantizedTrainingTest, SmallUpdatesGatherInTheMasters) {
  model::ModelParameters params = fresh_nano(nano_config(), 4, at::kFloat);
  model::set_formats(params, {ops::LinearFormat::kFp8, ops::LinearFormat::kFp4});
  TrainerConfig config;
  config.objective.numerics = ops::Numerics::reference();
  config.schedule.peak = 1e-7;
  Trainer trainer(
      plain_masters(std::move(params), {.indexer = true, .mtp = true}, WeightRounding::kServed),
      config);
  const at::Tensor masters = trainer.masters().flat_values().clone();
  const at::Tensor served =
      trainer.masters().leaves().blocks[1].attention.wkv.weight.detach().clone();
  trainer.step(sort_samples(0, 8));
  EXPECT_FALSE(at::equal(trainer.masters().flat_values(), masters));
  EXPECT_TRUE(
      at::equal(trainer.masters().leaves().blocks[1].attention.wkv.weight.detach(), served));
}

}  // namespace
}  // namespace baleen::train
