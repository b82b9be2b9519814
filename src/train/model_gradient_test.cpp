// The gradient of the whole objective against central differences, in double, on the nano model
// with an MTP block: random coordinates of every class of parameters and one random direction over
// all. Routes and picks are given, so that the function is smooth.

#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "train/objective.h"
#include "train/row_logprobs.h"
#include "train/train_models_for_tests.h"

namespace baleen::train {
namespace {

/// Class of a parameter for the report: its name without numbers.
std::string class_of(const std::string& name) {
  std::string text;
  for (const char c : name) {
    if (c < '0' || c > '9') {
      text += c;
    }
  }
  return text;
}

class ModelGradientTest : public testing::Test {
 protected:
  ModelGradientTest()
      : masters_(plain_masters(fresh_nano(nano_config({.with_mtp = true}), 5, at::kDouble),
                               {.indexer = true})) {
    // Values away from the symmetric start: gates, sinks and mixing take part.
    at::Tensor flat = masters_.flat_values();
    flat.add_(at::arange(flat.size(0), flat.options()).mul(0.37).cos().mul(0.05));
    for (const int64_t length : {5, 15, 26}) {
      samples_.push_back(some_sample(length, length, 32));
    }
    tables_ = model::make_rope_tables(
        masters_.config(), 32, masters_.values().embed, ops::Numerics::plain());
    totals_ = step_totals(samples_, objective(), masters_.config());
    batch_ = pack(samples_, totals_.loss, {.dtype = at::kDouble});
    const at::NoGradGuard no_grad;
    choices_ = forward(/*keep_choices=*/true).choices;
  }

  static ObjectiveConfig objective() {
    ObjectiveConfig objective;
    objective.mtp_weight = 0.3;
    return objective;
  }

  PackedForward forward(bool keep_choices) {
    return packed_forward(masters_.leaves(),
                          batch_,
                          {.numerics = ops::Numerics::plain(),
                           .tables = &tables_,
                           .with_mtp = true,
                           .routing = true,
                           .given = choices_.empty() ? nullptr : &choices_,
                           .keep_choices = keep_choices});
  }

  /// Both losses and a term that reaches the router scores of every layer.
  at::Tensor loss() {
    const PackedForward out = forward(false);
    const auto part = [&](const at::Tensor& hidden, const TargetRows& targets) {
      const RowLogprobs rows =
          row_logprobs(hidden,
                       masters_.leaves().head,
                       targets.targets,
                       {.numerics = ops::Numerics::plain(), .chunk_rows = 16, .entropy = true});
      return ((rows.entropy * 0.05 - rows.logprobs) * targets.coefficients).sum();
    };
    at::Tensor sum = part(out.hidden, batch_.main) + 0.3 * part(out.mtp_hidden, batch_.mtp);
    for (const model::LayerTaps& taps : out.taps.layers) {
      sum = sum + 0.01 * taps.router_scores.square().mean();
    }
    return sum;
  }

  double value() {
    const at::NoGradGuard no_grad;
    return loss().item<double>();
  }

  /// Central difference along one element.
  double difference(const at::Tensor& flat, int64_t index, double step) {
    double* element = flat.mutable_data_ptr<double>() + index;
    const double kept = *element;
    *element = kept + step;
    const double above = value();
    *element = kept - step;
    const double below = value();
    *element = kept;
    return (above - below) / (2.0 * step);
  }

  Masters masters_;
  std::vector<Sample> samples_;
  model::RopeTables tables_;
  StepTotals totals_;
  PackedBatch batch_;
  model::ChoicesByLayer choices_;
};

TEST_F(ModelGradientTest, MatchesDifferencesInEveryClassOfParameters) {
  masters_.zero_gradients();
  loss().backward();
  const at::Tensor gradients = masters_.flat_gradients().clone();
  const double* gradient = gradients.const_data_ptr<double>();
  std::map<std::string, int64_t> checked;
  uint64_t state = 12345;
  for (const TrainedTensor& tensor : masters_.trained()) {
    int64_t& count = checked[class_of(tensor.info.name)];
    if (count >= 3) {
      continue;
    }
    ++count;
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    const int64_t index =
        tensor.flat_begin +
        static_cast<int64_t>((state >> 33) % static_cast<uint64_t>(tensor.value.numel()));
    const double found = gradient[index];
    const double step = 1e-5;
    const double numeric = difference(masters_.flat_values(), index, step);
    EXPECT_NEAR(found, numeric, 1e-6 * std::max(std::abs(numeric), 1e-2)) << tensor.info.name;
  }
  EXPECT_GE(checked.size(), 40U);

  // One direction over all parameters at once.
  const at::Tensor direction =
      at::arange(gradients.size(0), gradients.options()).mul(1.7).add(0.3).cos();
  const double analytic = (gradients * direction).sum().item<double>();
  at::Tensor flat = masters_.flat_values();
  const double step = 1e-6;
  flat.add_(direction, step);
  const double above = value();
  flat.sub_(direction, 2.0 * step);
  const double below = value();
  flat.add_(direction, step);
  EXPECT_NEAR(analytic, (above - below) / (2.0 * step), 1e-6 * std::max(1.0, std::abs(analytic)));
}

TEST_F(ModelGradientTest, WouldNoticeAMissingSinkOrCarryTerm) {
  masters_.zero_gradients();
  loss().backward();
  for (const TrainedTensor& tensor : masters_.trained()) {
    const bool sink = tensor.info.name == "layers.1.attn.attn_sink";
    const bool carry = tensor.info.name == "layers.1.attn.compressor.wkv.weight";
    if (!sink && !carry) {
      continue;
    }
    // Without its term the gradient of these elements would be zero; the difference is not.
    const at::Tensor part = carry ? tensor.gradient.narrow(0, 0, 32) : tensor.gradient;
    const auto largest = part.abs().flatten().argmax().item<int64_t>();
    const double numeric = difference(masters_.flat_values(), tensor.flat_begin + largest, 1e-5);
    EXPECT_GT(std::abs(numeric), 1e-5) << tensor.info.name;
    EXPECT_NEAR(part.flatten()[largest].item<double>(), numeric, 1e-6) << tensor.info.name;
  }
}

/// The gradient of the toy's objective at the largest element of each tensor that `wanted` names.
int64_t check_largest_elements(const ObjectiveConfig& objective,
                               const std::function<bool(const std::string&)>& wanted) {
  Masters masters = plain_masters(toy_parameters());
  const std::vector<Sample> samples = {some_sample(1, 20, 32), some_sample(2, 13, 32)};
  const StepTotals totals = step_totals(samples, objective, masters.config());
  const PackedBatch batch = pack(samples, totals.loss, {.dtype = at::kDouble});
  const model::RopeTables tables =
      model::make_rope_tables(masters.config(), 20, masters.values().embed, objective.numerics);
  const auto run = [&] {
    return micro_batch_loss(masters.leaves(), batch, totals, objective, tables).total;
  };
  run().backward();
  const at::NoGradGuard no_grad;
  int64_t checked = 0;
  for (const TrainedTensor& tensor : masters.trained()) {
    if (tensor.info.name.starts_with("mtp.") || !wanted(tensor.info.name)) {
      continue;
    }
    ++checked;
    const auto index = tensor.gradient.abs().flatten().argmax().item<int64_t>();
    double* element = tensor.value.mutable_data_ptr<double>() + index;
    const double kept = *element;
    *element = kept + 1e-6;
    const double above = run().item<double>();
    *element = kept - 1e-6;
    const double below = run().item<double>();
    *element = kept;
    const double found = tensor.gradient.flatten()[index].item<double>();
    EXPECT_GT(std::abs(found), 1e-7) << tensor.info.name;
    EXPECT_NEAR(found, (above - below) / 2e-6, 1e-7 + 1e-5 * std::abs(found)) << tensor.info.name;
  }
  return checked;
}

TEST(AuxiliaryGradientTest, BalanceMatchesDifferencesAtTheGates) {
  ObjectiveConfig objective;
  objective.balance_weight = 0.7;
  const auto gates = [](const std::string& name) { return name.ends_with("ffn.gate.weight"); };
  EXPECT_EQ(check_largest_elements(objective, gates), 4);
}

/// What the indexer learns from, hidden vectors and attention, is a constant of its objective: only
/// its own parameters have the whole derivative as their gradient.
TEST(AuxiliaryGradientTest, TheIndexersObjectiveMatchesDifferencesAtTheIndexer) {
  ObjectiveConfig objective;
  objective.index_weight = 0.9;
  const auto indexers = [](const std::string& name) {
    return name.find(".indexer.") != std::string::npos;
  };
  EXPECT_EQ(check_largest_elements(objective, indexers), 12);  // two layers of six tensors
}

}  // namespace
}  // namespace baleen::train
