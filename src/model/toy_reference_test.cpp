// The golden toy against tools/goldens/toy_reference.py, which evaluates the formulas in numpy and
// shares no code with this program: every logit, traced value and a sample of all gradients.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "model/hash_fill.h"
#include "model/whole_model.h"
#include "ops/token_loss.h"
#include "weights/safetensors.h"

namespace baleen::model {
namespace {

constexpr const char* kFile = "tests/golden/toy.safetensors";
constexpr double kToyTolerance = 1e-10;  // values are at most 10; sums are in another order
constexpr int64_t kTokens = 20;
constexpr std::string_view kPosition = "position ";

std::map<std::string, at::Tensor> read_reference() {
  const auto file = weights::SafetensorsFile::open(kFile);
  std::map<std::string, at::Tensor> values;
  for (const weights::StoredTensor& stored : file.tensors()) {
    const bool index = stored.name.starts_with(kPosition);
    at::Tensor value = at::empty(stored.shape, index ? at::kLong : at::kDouble);
    const auto bytes = file.bytes(stored);
    EXPECT_EQ(bytes.size(), value.nbytes()) << stored.name;
    std::memcpy(value.data_ptr(), bytes.data(), std::min(bytes.size(), value.nbytes()));
    values[stored.name] = value;
  }
  return values;
}

at::Tensor toy_ids() {
  const at::Tensor ids = at::arange(kTokens, at::kLong);
  return (ids * 7 + 3).remainder(32);
}

TEST(ToyReferenceTest, GivesEveryTracedValue) {
  const std::map<std::string, at::Tensor> reference = read_reference();
  const ModelParameters params = make_hash_filled(golden_toy_config(), {}, at::kDouble);
  Trace trace;
  const ForwardOptions options{
      .numerics = ops::Numerics::plain(), .with_mtp = true, .trace = &trace};
  forward_training(params, toy_ids().unsqueeze(0), options);

  int compared = 0;
  for (const auto& [name, expected] : reference) {
    if (!trace.contains(name)) {
      // What has no trace point is the loss and its gradients.
      EXPECT_TRUE(name == "loss" || name.starts_with("gradient ") || name.starts_with(kPosition))
          << name;
      continue;
    }
    const at::Tensor& got = trace.at(name);
    ASSERT_EQ(got.numel(), expected.numel()) << name;
    const at::Tensor difference = (got.reshape(expected.sizes()) - expected).abs();
    EXPECT_LE(difference.max().item<double>(), kToyTolerance) << name;
    ++compared;
  }
  // Logits twice; per block streams, post, comb and attention output; three layers with entries,
  // two of them with index keys and scores.
  EXPECT_EQ(compared, 2 + 4 * 5 + 3 + 2 * 2);
}

TEST(ToyReferenceTest, GivesTheIndexScoresToTwelveDigits) {
  const ModelParameters params = make_hash_filled(golden_toy_config(), {}, at::kDouble);
  Trace trace("layers.1.attn.index_scores");
  const ForwardOptions options{.numerics = ops::Numerics::plain(), .trace = &trace};
  forward_training(params, toy_ids().unsqueeze(0), options);
  const at::Tensor scores = trace.at("layers.1.attn.index_scores")[0][19];
  // Entry 3 has also been printed as 1.268468171: low by 1.2e-9, as from a constant cut to ten
  // digits.
  const std::vector<double> expected = {
      0.445326566492, 0.168039062996, 0.0, 1.268468172212, 0.085923351703};
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(scores[static_cast<int64_t>(i)].item<double>(), expected[i], 1e-12) << i;
  }
}

TEST(ToyReferenceTest, GivesTheLossAndItsGradients) {
  const std::map<std::string, at::Tensor> reference = read_reference();
  ModelParameters params = make_hash_filled(golden_toy_config(), {}, at::kDouble);
  for_each_parameter(params, [](const ParameterInfo& info, at::Tensor& value) {
    value.requires_grad_(info.trainable());
  });
  const ForwardOptions options{.numerics = ops::Numerics::plain()};
  const at::Tensor ids = toy_ids();
  const TrainingOutput out = forward_training(params, ids.unsqueeze(0), options);
  const at::Tensor loss =
      ops::cross_entropy(out.logits[0].narrow(0, 0, kTokens - 1), ids.narrow(0, 1, kTokens - 1))
          .mean();
  EXPECT_NEAR(loss.item<double>(), reference.at("loss").item<double>(), kToyTolerance);
  loss.backward();

  std::size_t compared = 0;
  const auto expect_gradient = [&](const std::string& name, const at::Tensor& gradient) {
    const auto positions = reference.find(std::string(kPosition) + name);
    if (positions == reference.end()) {
      return;
    }
    ASSERT_TRUE(gradient.defined()) << name;
    const at::Tensor difference = gradient.reshape({-1}).index_select(0, positions->second) -
                                  reference.at("gradient " + name);
    EXPECT_LE(difference.abs().max().item<double>(), kToyTolerance) << name;
    ++compared;
  };
  for_each_parameter(params, [&](const ParameterInfo& info, at::Tensor& value) {
    const at::Tensor& gradient = value.grad();
    if (info.stack == 0) {
      expect_gradient(info.name, gradient);
    }
    for (int64_t expert = 0; expert < info.stack; ++expert) {
      expect_gradient(info.member_name(expert),
                      gradient.defined() ? gradient.select(0, expert) : at::Tensor());
    }
  });
  const auto listed = std::count_if(reference.begin(), reference.end(), [](const auto& item) {
    return item.first.starts_with(kPosition);
  });
  EXPECT_EQ(compared, static_cast<std::size_t>(listed));
  EXPECT_GT(compared, 100U);
}

}  // namespace
}  // namespace baleen::model
