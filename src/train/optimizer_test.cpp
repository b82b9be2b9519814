#include "train/optimizer.h"

#include <cmath>

#include <gtest/gtest.h>

#include "base/error.h"
#include "train/adamw.h"
#include "train/muon.h"
#include "train/schedule.h"
#include "train/train_models_for_tests.h"

namespace baleen::train {
namespace {

at::Tensor normal(at::IntArrayRef shape, at::ScalarType dtype, uint64_t seed) {
  at::Tensor value = at::empty(shape, at::kDouble);
  uint64_t state = seed * 0x9E3779B97F4A7C15ULL + 1;
  for (int64_t i = 0; i < value.numel(); ++i) {
    double sum = -6.0;
    for (int k = 0; k < 12; ++k) {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      sum += static_cast<double>(state >> 11) * 0x1p-53;
    }
    value.mutable_data_ptr<double>()[i] = sum;
  }
  return value.to(dtype);
}

TEST(AdamwTest, GivesTheGoldenValues) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    const double tolerance = dtype == at::kDouble ? 1e-9 : 2e-7;
    const auto options = at::TensorOptions(dtype);
    const AdamwTensors state{at::full({1}, 1.0, options),
                             at::full({1}, 0.1, options),
                             at::zeros({1}, options),
                             at::zeros({1}, options)};
    AdamwNumbers numbers{.learning_rate = 0.01, .weight_decay = 0.1, .step = 1};
    adamw_update(state, numbers);
    EXPECT_NEAR(state.value.item<double>(), 0.989000001, tolerance);
    state.gradient.fill_(-0.05);
    numbers.step = 2;
    adamw_update(state, numbers);
    EXPECT_NEAR(state.value.item<double>(), 0.9853399242, tolerance);
    EXPECT_NEAR(state.m.item<double>(), 0.004, tolerance);
    EXPECT_NEAR(state.v.item<double>(), 2.46e-4, tolerance);
  }
}

TEST(AdamwTest, LoopAndTensorFormAgree) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    AdamwTensors loop{
        normal({1003}, dtype, 1), {}, at::zeros({1003}, dtype), at::zeros({1003}, dtype)};
    AdamwTensors tensors{loop.value.clone(), {}, loop.m.clone(), loop.v.clone()};
    for (int64_t step = 1; step <= 5; ++step) {
      loop.gradient = normal({1003}, dtype, static_cast<uint64_t>(10 + step));
      tensors.gradient = loop.gradient;
      const AdamwNumbers numbers{
          .learning_rate = 3e-3, .weight_decay = 0.1, .gradient_scale = 0.37, .step = step};
      adamw_update(loop, numbers);
      adamw_update_by_tensors(tensors, numbers);
    }
    // The library's square root may be off by a bit, so five updates of 3e-3 may differ by as much.
    const double bit = dtype == at::kFloat ? 0x1p-23 : 0x1p-52;
    EXPECT_LE((loop.value - tensors.value).abs().max().item<double>(), 4.0 * bit);
    EXPECT_TRUE(at::equal(loop.m, tensors.m));
    EXPECT_TRUE(at::equal(loop.v, tensors.v));
  }
}

TEST(OptimizerTest, RangesOfATensorGiveTheBitsOfTheWhole) {
  const at::Tensor start = normal({40, 6}, at::kFloat, 2);
  const at::Tensor whole = start.clone();
  const at::Tensor cut = start.clone().flatten();
  const at::Tensor gradient = normal({40, 6}, at::kFloat, 3);
  Optimizer one({}, {{.name = "a", .value = whole, .gradient = gradient, .weight_decay = 0.1}});
  std::vector<OptimizerSlot> ranges;
  for (const auto& [begin, count] :
       std::vector<std::pair<int64_t, int64_t>>{{0, 7}, {7, 200}, {207, 33}}) {
    ranges.push_back({.name = "a",
                      .begin = begin,
                      .value = cut.narrow(0, begin, count),
                      .gradient = gradient.flatten().narrow(0, begin, count),
                      .weight_decay = 0.1});
  }
  Optimizer many({}, ranges);
  for (int step = 0; step < 3; ++step) {
    one.step(1e-3, 0.5);
    many.step(1e-3, 0.5);
  }
  EXPECT_TRUE(at::equal(whole.flatten(), cut));
  EXPECT_EQ(many.states()[2].key(), "a.m");
  EXPECT_EQ(many.states()[2].begin, 7);
}

TEST(MuonTest, SingularValuesFollowTheGoldenNumbers) {
  const auto after = [](double value, int64_t steps) {
    for (int64_t index = 0; index < steps; ++index) {
      value = newton_schulz_value(value, index);
    }
    return value;
  };
  EXPECT_NEAR(after(0.6, 1), 1.19326944, 1e-8);
  EXPECT_NEAR(after(0.6, 8), 1.12099237, 1e-8);
  EXPECT_NEAR(after(0.6, 9), 1.01406760, 1e-8);
  EXPECT_NEAR(after(0.6, 10), 1.00010879, 1e-8);
  EXPECT_NEAR(after(0.8, 1), 0.97648192, 1e-8);
  EXPECT_NEAR(after(0.8, 8), 0.68999515, 1e-8);
  EXPECT_NEAR(after(0.8, 9), 0.96543601, 1e-8);
  EXPECT_NEAR(after(0.8, 10), 1.00045635, 1e-8);
  // A diagonal matrix of norm one keeps its singular values apart.
  const at::Tensor matrix = at::diag(at::tensor({0.6, 0.8}, at::kDouble)).unsqueeze(0);
  const at::Tensor result = newton_schulz(matrix, 8).squeeze(0);
  EXPECT_NEAR(result[0][0].item<double>(), 1.12099237, 1e-6);
  EXPECT_NEAR(result[1][1].item<double>(), 0.68999515, 1e-6);
}

TEST(MuonTest, DirectionsAreOrthogonalForWideAndTallMatrices) {
  for (const auto& shape : std::vector<std::vector<int64_t>>{{3, 8, 24}, {2, 24, 8}, {1, 16, 16}}) {
    const at::Tensor x = newton_schulz(normal(shape, at::kDouble, 4));
    const at::Tensor narrow = shape[1] > shape[2] ? x.transpose(1, 2) : x;
    const at::Tensor gram = at::bmm(narrow, narrow.transpose(1, 2));
    const double worst = (gram - at::eye(gram.size(1), gram.options())).abs().max().item<double>();
    EXPECT_LT(worst, shape[1] == shape[2] ? 0.6 : 0.05)
        << shape[1];  // a square one has tiny values
  }
}

TEST(MuonTest, AStackIsSoManyMatrices) {
  model::ModelParameters params = toy_parameters();
  Masters masters = plain_masters(std::move(params));
  OptimizerConfig config;
  config.kind = OptimizerKind::kMuon;
  const std::vector<OptimizerSlot> slots = slots_of(masters, config);
  const auto slot = [&](const std::string& name) -> const OptimizerSlot& {
    for (const OptimizerSlot& candidate : slots) {
      if (candidate.name == name) {
        return candidate;
      }
    }
    throw std::runtime_error(name);
  };
  EXPECT_EQ(slot("layers.1.ffn.experts.*.w1.weight").num_matrices, 6);
  EXPECT_EQ(slot("layers.1.attn.wq_b.weight").num_matrices, 4);
  EXPECT_EQ(slot("layers.1.attn.wo_a.weight").num_matrices, 2);
  EXPECT_EQ(slot("layers.1.attn.compressor.wkv.weight").num_matrices, 2);
  EXPECT_EQ(slot("layers.2.attn.compressor.wkv.weight").num_matrices, 1);
  EXPECT_EQ(slot("layers.1.attn.indexer.wq_b.weight").num_matrices, 3);
  EXPECT_EQ(slot("embed.weight").rule, UpdateRule::kAdamW);
  EXPECT_EQ(slot("layers.1.hc_attn_fn").rule, UpdateRule::kAdamW);
  EXPECT_EQ(slot("layers.1.hc_attn_fn").weight_decay, 0.0);
  EXPECT_EQ(slot("layers.1.attn.wkv.weight").rule, UpdateRule::kMuon);
  EXPECT_EQ(slot("layers.1.attn.wkv.weight").weight_decay, 0.1);
  EXPECT_EQ(slot("layers.1.attn.compressor.ape").weight_decay, 0.0);

  // One update of the stack equals the updates of its members.
  const at::Tensor value = normal({3, 4, 6}, at::kDouble, 6);
  const at::Tensor gradient = normal({3, 4, 6}, at::kDouble, 7);
  at::Tensor stacked = value.clone();
  at::Tensor momentum = at::zeros_like(value);
  const MuonNumbers numbers{.learning_rate = 0.02, .weight_decay = 0.1, .gradient_scale = 0.5};
  muon_update(stacked, gradient, momentum, numbers);
  for (int64_t i = 0; i < 3; ++i) {
    at::Tensor member = value.narrow(0, i, 1).clone();
    at::Tensor own = at::zeros_like(member);
    muon_update(member, gradient.narrow(0, i, 1), own, numbers);
    EXPECT_LT((member - stacked.narrow(0, i, 1)).abs().max().item<double>(), 1e-14);
  }
  // By hand: momentum = g, direction = NS(0.95 g + g), size 0.18 sqrt(6).
  const at::Tensor expected =
      value * (1.0 - 0.02 * 0.1) - newton_schulz(gradient) * (0.02 * 0.18 * std::sqrt(6.0));
  EXPECT_LT((stacked - expected).abs().max().item<double>(), 1e-6);
}

TEST(ScheduleTest, FollowsItsForms) {
  Schedule schedule{.peak = 1.0, .min = 0.1, .warmup_steps = 4, .num_steps = 14, .decay_steps = 5};
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 0), 0.25);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 3), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 13), 1.0);
  schedule.style = DecayStyle::kLinear;
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 4), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 9), 0.55);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 14), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 99), 0.1);
  schedule.style = DecayStyle::kCosine;
  EXPECT_NEAR(learning_rate(schedule, 9), 0.55, 1e-12);
  EXPECT_NEAR(learning_rate(schedule, 6), 0.1 + 0.9 * 0.5 * (1.0 + std::cos(M_PI * 0.2)), 1e-12);
  schedule.style = DecayStyle::kWsd;
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 8), 1.0);
  EXPECT_NEAR(learning_rate(schedule, 11), 1.0 - 0.9 * 0.4, 1e-12);
  EXPECT_THROW(parse_decay_style("stairs"), ConfigError);
}

}  // namespace
}  // namespace baleen::train
