// Packed samples against samples run one by one, and against the model's own training forward.

#include <cmath>
#include <map>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "model/whole_model.h"
#include "ops/token_loss.h"
#include "train/objective.h"
#include "train/row_logprobs.h"
#include "train/train_models_for_tests.h"

namespace baleen::train {
namespace {

constexpr int64_t kVocab = 32;

/// Small tensors of a test program beside others: more threads than one only wait for each other.
class OneThread : public testing::Environment {
 public:
  void SetUp() override { at::set_num_threads(1); }
};
[[maybe_unused]] const auto* const kOneThread = testing::AddGlobalTestEnvironment(new OneThread);

class PackingTest : public testing::Test {
 protected:
  PackingTest() : masters_(plain_masters(toy_parameters())) {
    objective_.mtp_weight = 0.3;
    objective_.balance_weight = 0.01;
    objective_.index_weight = 0.1;
    tables_ = model::make_rope_tables(
        masters_.config(), 64, masters_.values().embed, objective_.numerics);
  }

  struct Outcome {
    double loss = 0.0;
    std::map<int64_t, double> by_sample;
    at::Tensor gradients;
  };

  /// The step's loss and gradients, its samples cut into the given micro-batches.
  Outcome run(const std::vector<std::vector<Sample>>& batches,
              Recompute recompute = Recompute::kNone,
              int64_t pad_multiple = 1) {
    std::vector<Sample> all;
    for (const auto& batch : batches) {
      all.insert(all.end(), batch.begin(), batch.end());
    }
    ObjectiveConfig objective = objective_;
    objective.recompute = recompute;
    const StepTotals totals = step_totals(all, objective, masters_.config());
    masters_.zero_gradients();
    Outcome outcome;
    for (const auto& samples : batches) {
      const PackedBatch batch = pack(
          samples, totals.loss, {.dtype = at::kDouble, .pad_multiple = pad_multiple, .pad_id = 7});
      const MicroBatchLoss loss =
          micro_batch_loss(masters_.leaves(), batch, totals, objective, tables_);
      loss.total.backward();
      outcome.loss += loss.total.item<double>();
      for (const auto& parts : {loss.main, loss.mtp}) {
        for (const auto& [number, part] : parts) {
          outcome.by_sample[number] += part;
        }
      }
    }
    outcome.gradients = masters_.flat_gradients().clone();
    return outcome;
  }

  void expect_close(const Outcome& found, const Outcome& expected, double bound) {
    EXPECT_NEAR(found.loss, expected.loss, bound);
    EXPECT_LT((found.gradients - expected.gradients).abs().max().item<double>(), bound);
    for (const auto& [number, loss] : expected.by_sample) {
      EXPECT_NEAR(found.by_sample.at(number), loss, bound) << number;
    }
  }

  Masters masters_;
  ObjectiveConfig objective_;
  model::RopeTables tables_;
};

std::vector<std::vector<Sample>> one_by_one(const std::vector<Sample>& samples) {
  std::vector<std::vector<Sample>> batches;
  for (const Sample& sample : samples) {
    batches.push_back({sample});
  }
  return batches;
}

TEST_F(PackingTest, EqualsSamplesRunOneByOne) {
  const std::vector<Sample> samples = edge_samples(kVocab);
  const Outcome expected = run(one_by_one(samples));
  EXPECT_GT(expected.gradients.abs().max().item<double>(), 1e-3);
  expect_close(run({samples}), expected, 1e-10);
  for (const int64_t tokens : {40, 64, 100}) {
    const auto batches = micro_batches(samples, tokens);
    EXPECT_GT(batches.size(), 1U);
    expect_close(run(batches), expected, 1e-10);
  }
}

TEST_F(PackingTest, PaddingIsSeenByNobody) {
  const std::vector<Sample> samples = edge_samples(kVocab);
  const Outcome expected = run(one_by_one(samples));
  for (const int64_t multiple : {4, 16, 40}) {
    expect_close(run({samples}, Recompute::kNone, multiple), expected, 1e-10);
  }
}

TEST_F(PackingTest, RecomputeChangesNoBit) {
  const std::vector<Sample> samples = edge_samples(kVocab);
  const Outcome kept = run({samples});
  const Outcome again = run({samples}, Recompute::kBlock);
  EXPECT_EQ(again.loss, kept.loss);
  EXPECT_TRUE(at::equal(again.gradients, kept.gradients));
}

TEST_F(PackingTest, RecomputeTakesTheChoicesOfTheFirstRun) {
  const std::vector<Sample> samples = {some_sample(1, 34, kVocab)};
  const StepTotals totals = step_totals(samples, objective_, masters_.config());
  const PackedBatch batch = pack(samples, totals.loss, {.dtype = at::kDouble});
  PackedForwardOptions options{.numerics = objective_.numerics,
                               .tables = &tables_,
                               .with_mtp = true,
                               .recompute = Recompute::kBlock,
                               .keep_choices = true};
  const PackedForward out = packed_forward(masters_.leaves(), batch, options);
  masters_.zero_gradients();
  const at::Tensor loss = out.hidden.square().sum() + out.mtp_hidden.square().sum();
  loss.backward();
  const at::Tensor expected = masters_.flat_gradients().clone();
  // Between forward and backward the router biases move so far that every choice would differ.
  masters_.zero_gradients();
  const PackedForward moved = packed_forward(masters_.leaves(), batch, options);
  model::ModelParameters shown = masters_.values();
  std::vector<std::pair<at::Tensor, at::Tensor>> saved;
  model::for_each_parameter(shown, [&](const model::ParameterInfo& info, at::Tensor& value) {
    if (info.role == model::ParameterRole::kRouterBias) {
      saved.emplace_back(value, value.clone());
      value.add_(at::arange(value.size(0), value.options()).mul(100.0));
    }
  });
  (moved.hidden.square().sum() + moved.mtp_hidden.square().sum()).backward();
  EXPECT_TRUE(at::equal(masters_.flat_gradients(), expected));
  for (auto& [value, before] : saved) {
    value.copy_(before);
  }
  // The choices that were kept, given to another forward, give the same values.
  options.given = &out.choices;
  options.recompute = Recompute::kNone;
  EXPECT_TRUE(at::equal(packed_forward(masters_.leaves(), batch, options).hidden, out.hidden));
}

TEST_F(PackingTest, GivenChoicesReplaceThoseOfTheModel) {
  const std::vector<Sample> samples = {some_sample(3, 30, kVocab), some_sample(4, 26, kVocab)};
  const StepTotals totals = step_totals(samples, objective_, masters_.config());
  const PackedBatch batch = pack(samples, totals.loss, {.dtype = at::kDouble});
  PackedForwardOptions options{
      .numerics = objective_.numerics, .tables = &tables_, .keep_choices = true};
  const at::NoGradGuard no_grad;
  const PackedForward own = packed_forward(masters_.leaves(), batch, options);
  model::ChoicesByLayer other = own.choices;
  other[3].experts = (other[3].experts + 1).remainder(masters_.config().n_routed_experts);
  options.given = &other;
  const PackedForward routed = packed_forward(masters_.leaves(), batch, options);
  EXPECT_TRUE(at::equal(routed.choices[3].experts, other[3].experts));
  EXPECT_GT((routed.hidden - own.hidden).abs().max().item<double>(), 1e-3);
  other = own.choices;
  ASSERT_TRUE(other[1].picks[0].defined());
  other[1].picks[0] = other[1].picks[0].roll(1, -1);
  const PackedForward picked = packed_forward(masters_.leaves(), batch, options);
  EXPECT_GT((picked.hidden - own.hidden).abs().max().item<double>(), 1e-6);
}

TEST_F(PackingTest, NeighboursChangeNoBitWithInvariantSums) {
  objective_.numerics.summation = ops::Summation::kInvariant;
  const auto logprobs_of = [&](const std::vector<Sample>& samples, int64_t number) {
    const at::NoGradGuard no_grad;
    LossDenominators ones{.weight = 1.0, .mtp_weight = 1.0};
    const PackedBatch batch = pack(samples, ones, {.dtype = at::kDouble});
    const PackedForward out = packed_forward(
        masters_.leaves(), batch, {.numerics = objective_.numerics, .tables = &tables_});
    const at::Tensor all = row_logprobs(out.hidden,
                                        masters_.leaves().head,
                                        batch.main.targets,
                                        {.numerics = objective_.numerics})
                               .logprobs;
    std::vector<double> own;
    for (std::size_t row = 0; row < batch.main.samples.size(); ++row) {
      if (batch.samples[static_cast<std::size_t>(batch.main.samples[row])].number == number) {
        own.push_back(all[static_cast<int64_t>(row)].item<double>());
      }
    }
    return own;
  };
  std::vector<Sample> samples = edge_samples(kVocab);
  const std::vector<double> alone = logprobs_of({samples[8]}, 8);
  ASSERT_GT(alone.size(), 10U);
  EXPECT_EQ(logprobs_of(samples, 8), alone);
  std::swap(samples[0], samples[8]);
  samples[3] = some_sample(90, 21, kVocab);
  EXPECT_EQ(logprobs_of(samples, 8), alone);
}

TEST_F(PackingTest, EqualsTheTrainingForwardOfTheModel) {
  Sample sample = some_sample(5, 33, kVocab);
  const StepTotals totals = step_totals({&sample, 1}, objective_, masters_.config());
  const PackedBatch batch = pack({&sample, 1}, totals.loss, {.dtype = at::kDouble});
  const at::NoGradGuard no_grad;
  const MicroBatchLoss loss =
      micro_batch_loss(masters_.leaves(), batch, totals, objective_, tables_);

  const at::Tensor ids = at::from_blob(sample.ids.data(), {1, 33}, at::kInt).to(at::kLong);
  const at::Tensor weights =
      at::from_blob(sample.weights.data(), {1, 33}, at::kFloat).to(at::kDouble);
  const model::TrainingOutput out = model::forward_training(
      masters_.leaves(), ids, {.numerics = objective_.numerics, .with_mtp = true});
  const auto mean = [&](const at::Tensor& logits, int64_t ahead) {
    const int64_t count = 33 - ahead;
    const at::Tensor w = weights.narrow(1, ahead, count);
    return ((ops::cross_entropy(logits.narrow(1, 0, count), ids.narrow(1, ahead, count)) * w)
                .sum() /
            w.sum())
        .item<double>();
  };
  EXPECT_NEAR(loss.main.at(0).second, mean(out.logits, 1), 1e-12);
  EXPECT_NEAR(loss.mtp.at(0).second, mean(out.mtp_logits, 2), 1e-12);
}

TEST(MicroBatchesTest, AreBoundedAndKeepEverySample) {
  std::vector<Sample> samples;
  for (int64_t i = 0; i < 50; ++i) {
    samples.push_back(some_sample(i, 2 + (i * 7) % 31, kVocab));
  }
  samples.push_back(some_sample(50, 90, kVocab));  // longer than a micro-batch
  const auto batches = micro_batches(samples, 64);
  std::set<int64_t> seen;
  for (const auto& batch : batches) {
    int64_t tokens = 0;
    for (const Sample& sample : batch) {
      tokens += sample.fed_tokens();
      EXPECT_TRUE(seen.insert(sample.number).second);
    }
    EXPECT_TRUE(tokens <= 64 || batch.size() == 1) << tokens;
  }
  EXPECT_EQ(seen.size(), 51U);
}

TEST(GoldenTrainingTest, GivesTheLossAndGradientsOfTheToy) {
  Masters masters = plain_masters(toy_parameters());
  Sample sample;
  for (int64_t t = 0; t < 20; ++t) {
    sample.ids.push_back(static_cast<int32_t>((7 * t + 3) % 32));
    sample.weights.push_back(1.0F);
  }
  ObjectiveConfig objective;
  objective.chunk_rows = 6;
  const StepTotals totals = step_totals({&sample, 1}, objective, masters.config());
  const PackedBatch batch = pack({&sample, 1}, totals.loss, {.dtype = at::kDouble});
  const model::RopeTables tables =
      model::make_rope_tables(masters.config(), 20, masters.values().embed, objective.numerics);
  for (const Recompute recompute : {Recompute::kNone, Recompute::kBlock}) {
    objective.recompute = recompute;
    masters.zero_gradients();
    const MicroBatchLoss loss =
        micro_batch_loss(masters.leaves(), batch, totals, objective, tables);
    EXPECT_NEAR(loss.total.item<double>(), 4.279890187, 1e-9);
    loss.total.backward();
    const auto gradient = [&](const std::string& name, std::vector<int64_t> index) {
      for (const TrainedTensor& tensor : masters.trained()) {
        const std::size_t star = tensor.info.name.find('*');
        at::Tensor value = tensor.gradient;
        if (star != std::string::npos && name.starts_with(tensor.info.name.substr(0, star)) &&
            name.ends_with(tensor.info.name.substr(star + 1))) {
          index.insert(index.begin(), name[star] - '0');
        } else if (tensor.info.name != name) {
          continue;
        }
        for (const int64_t i : index) {
          value = value[i];
        }
        return value.item<double>();
      }
      ADD_FAILURE() << name;
      return 0.0;
    };
    const std::vector<std::tuple<std::string, std::vector<int64_t>, double>> golden = {
        {"embed.weight", {3, 0}, -0.10954462},
        {"head.weight", {6, 1}, 0.01647091},
        {"norm.weight", {2}, 0.02199317},
        {"hc_head_fn", {1, 7}, 0.00076463},
        {"layers.0.attn.wq_a.weight", {0, 0}, 0.20674829},
        {"layers.1.attn.attn_sink", {0}, -0.01574548},
        {"layers.1.attn.compressor.ape", {0, 0}, -0.00048808},
        {"layers.1.attn.compressor.wkv.weight", {2, 1}, -0.00416836},
        {"layers.1.attn.compressor.wkv.weight", {18, 1}, -0.01740298},
        {"layers.2.attn.compressor.norm.weight", {12}, -0.00089230},
        {"layers.1.attn.wo_a.weight", {7, 3}, 0.04543653},
        {"layers.1.hc_attn_base", {13}, -0.00000568},
        {"layers.1.hc_ffn_scale", {1}, 0.02918301},
        {"layers.3.ffn.gate.weight", {2, 5}, 0.00220111},
        {"layers.2.ffn.experts.1.w1.weight", {0, 0}, -0.00392489},
        {"layers.2.ffn.experts.1.w2.weight", {4, 5}, -0.00933376},
        {"layers.2.ffn.shared_experts.w1.weight", {0, 0}, 0.00600638}};
    for (const auto& [name, index, expected] : golden) {
      EXPECT_NEAR(gradient(name, index), expected, 2e-8) << name;
    }
  }
}

}  // namespace
}  // namespace baleen::train
