// One update of the nano model from a made-up batch.
#include "rl/policy_update.h"

#include <cmath>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "train/nano_model.h"
#include "train/packed_forward.h"
#include "train/row_logprobs.h"

namespace baleen::rl {
namespace {

constexpr int64_t kGroups = 4;
constexpr int64_t kAnswers = 3;

RlConfig a_config(const char* algo) {
  RlConfig config = default_rl_config("sort", algo);
  config.rollout_batch_size = kGroups;
  config.n_samples_per_prompt = kAnswers;
  config.num_steps_per_rollout = 2;
  config.lr_warmup_steps = 0;
  settle(config);
  return config;
}

train::Trainer a_trainer(const RlConfig& config, int64_t shards = 1) {
  model::ModelParameters params = train::fresh_nano(train::nano_config(), 5, at::kFloat);
  const train::FreezeRules rules({.gate = true, .indexer = true, .mtp = true}, params);
  train::TrainerConfig trainer;
  trainer.objective.numerics = ops::Numerics::by_name("plain+invariant");
  train::apply(config, policy_steps(config), trainer);
  trainer.shards = shards;
  return {train::Masters(std::move(params), rules, train::WeightRounding::kNone), trainer};
}

/// Answers of 2 to 6 tokens; log-probabilities are filled in by the caller.
RolloutBatch a_batch(const RlConfig& config) {
  RolloutBatch batch;
  for (int64_t g = 0; g < kGroups; ++g) {
    RolloutGroup& group = batch.groups.emplace_back();
    group.group = g;
    for (int64_t j = 0; j < kAnswers; ++j) {
      RolloutSample& sample = group.samples.emplace_back();
      sample.group = g;
      sample.index = g * config.n_samples_per_prompt + j;
      sample.prompt_tokens = 4;
      sample.ids = {3, static_cast<int32_t>(8 + g), 9, 4};
      for (int64_t t = 0; t < 2 + (g + j) % 5; ++t) {
        sample.append(static_cast<int32_t>(8 + (g + 3 * j + t) % 10), 0.0F, 0);
      }
      sample.status = SampleStatus::kCompleted;
      sample.reward = static_cast<double>((g + j) % 3 == 0);
    }
  }
  return batch;
}

/// What the present weights say of every answer, one by one.
void fill_logprobs(RolloutBatch& batch, train::Trainer& trainer) {
  const at::NoGradGuard no_grad;
  for (RolloutGroup& group : batch.groups) {
    for (RolloutSample& sample : group.samples) {
      train::Sample row{.number = 0, .ids = sample.ids, .weights = {}};
      row.weights.assign(sample.ids.size(), 1.0F);
      const train::PackedBatch packed =
          train::pack(std::vector<train::Sample>{row}, {.weight = 1.0, .mtp_weight = 1.0}, {});
      const train::PackedForward out = train::packed_forward(
          trainer.masters().leaves(),
          packed,
          {.numerics = trainer.config().objective.numerics, .tables = &trainer.tables(32)});
      const at::Tensor logprobs =
          train::row_logprobs(out.hidden,
                              trainer.masters().leaves().head,
                              packed.main.targets,
                              {.numerics = trainer.config().objective.numerics})
              .logprobs;
      for (int64_t t = 0; t < sample.response_tokens(); ++t) {
        sample.logprobs[static_cast<std::size_t>(t)] =
            logprobs[sample.prompt_tokens - 1 + t].item<float>();
      }
    }
  }
}

double value_of(const UpdateReport& report, const std::string& name) {
  return policy::metric(report.metrics, name);
}

TEST(PolicyUpdateTest, DriftIsExactlyZeroForAnswersOfTheSameWeights) {
  const RlConfig config = a_config("dapo");
  train::Trainer trainer = a_trainer(config);
  RolloutBatch batch = a_batch(config);
  fill_logprobs(batch, trainer);
  const auto passes = passes_of(trainer);
  PolicyUpdate update(config, *passes);
  const UpdateReport report = update.run(batch, 0);
  EXPECT_EQ(report.steps, 2);
  EXPECT_EQ(report.drift.all.max, 0.0);
  EXPECT_EQ(report.drift.all.exact_frac, 1.0);
  EXPECT_EQ(report.drift.all.tokens, report.trained_tokens);
  EXPECT_EQ(value_of(report, "train/train_rollout_logprob_abs_diff"), 0.0);
  EXPECT_GT(report.gradient_norm, 0.0);
  EXPECT_GT(report.entropy, 0.0);
  // The weights moved: the same answers are no longer those of the trainer.
  const UpdateReport later = update.run(batch, 0);
  EXPECT_GT(later.drift.all.mean_abs, 0.0);
  // Tokens of older weights are no drift.
  EXPECT_EQ(update.run(batch, 1).drift.all.tokens, 0);
}

TEST(PolicyUpdateTest, MicroBatchesDoNotChangeTheStep) {
  std::vector<at::Tensor> weights;
  std::vector<double> losses;
  for (const int64_t tokens : {int64_t{0}, int64_t{24}, int64_t{8}}) {
    RlConfig config = a_config("grpo");
    config.micro_batch_tokens = tokens;
    train::Trainer trainer = a_trainer(config);
    RolloutBatch batch = a_batch(config);
    fill_logprobs(batch, trainer);
    losses.push_back(
        value_of(PolicyUpdate(config, *passes_of(trainer)).run(batch, 0), "train/loss"));
    weights.push_back(trainer.masters().flat_values().clone());
  }
  for (std::size_t i = 1; i < losses.size(); ++i) {
    EXPECT_NEAR(losses[i], losses[0], 1e-9 + 1e-5 * std::abs(losses[0]));
    // AdamW's first steps are signs of gradients: what is near zero may flip, little else.
    const double moved = (weights[i] - weights[0]).norm().item<double>();
    const double whole =
        (weights[0] - a_trainer(a_config("grpo")).masters().flat_values()).norm().item<double>();
    EXPECT_LT(moved, 0.02 * whole);
  }
}

TEST(PolicyUpdateTest, ThreadsShareAStepAndTheirNumberAloneDecidesItsBits) {
  std::vector<at::Tensor> gradients;
  std::vector<double> losses;
  for (const int64_t shards : {1, 2, 2, 3}) {
    RlConfig config = a_config("grpo");
    config.num_steps_per_rollout = 1;
    config.global_batch_size = 0;
    settle(config);
    train::Trainer trainer = a_trainer(config, shards);
    RolloutBatch batch = a_batch(config);
    fill_logprobs(batch, trainer);
    const UpdateReport report = PolicyUpdate(config, *passes_of(trainer)).run(batch, 0);
    EXPECT_EQ(report.drift.all.max, 0.0) << shards;
    losses.push_back(value_of(report, "train/loss"));
    gradients.push_back(trainer.masters().flat_gradients().clone());
  }
  EXPECT_TRUE(gradients[1].equal(gradients[2]));
  for (std::size_t i = 1; i < gradients.size(); ++i) {
    EXPECT_EQ(losses[i], losses[0]);  // of equal log-probabilities, added by sample
    EXPECT_LT((gradients[i] - gradients[0]).norm().item<double>(),
              1e-5 * gradients[0].norm().item<double>());
  }
}

TEST(PolicyUpdateTest, GradientIsThatOfTheAdvantageWeightedLogProbability) {
  RlConfig config = a_config("grpo");
  config.num_steps_per_rollout = 1;
  config.global_batch_size = 0;
  config.loss_agg = "token_mean";
  config.clip_grad = 0.0;
  settle(config);
  train::Trainer trainer = a_trainer(config);
  RolloutBatch batch = a_batch(config);
  fill_logprobs(batch, trainer);
  // By hand: the ratio is 1, so the loss is -sum A l / N with A = (R - mean) / (std + 1e-6).
  std::vector<train::Sample> samples;
  double tokens = 0.0;
  for (const RolloutGroup& group : batch.groups) {
    double mean = 0.0;
    for (const RolloutSample& sample : group.samples) {
      mean += sample.reward / kAnswers;
      tokens += static_cast<double>(sample.response_tokens());
    }
    double squares = 0.0;
    for (const RolloutSample& sample : group.samples) {
      squares += (sample.reward - mean) * (sample.reward - mean);
    }
    const double deviation = std::sqrt(squares / (kAnswers - 1));
    for (const RolloutSample& sample : group.samples) {
      train::Sample row{.number = sample.index, .ids = sample.ids, .weights = {}};
      row.weights.assign(sample.ids.size(),
                         static_cast<float>((sample.reward - mean) / (deviation + 1e-6)));
      std::fill(row.weights.begin(), row.weights.begin() + sample.prompt_tokens, 0.0F);
      samples.push_back(std::move(row));
    }
  }
  const train::PackedBatch packed =
      train::pack(samples, {.weight = tokens, .mtp_weight = tokens}, {});
  const model::RopeTables tables = trainer.tables(32);
  train::Trainer by_hand = a_trainer(config);
  const train::PackedForward out =
      train::packed_forward(by_hand.masters().leaves(),
                            packed,
                            {.numerics = trainer.config().objective.numerics, .tables = &tables});
  const at::Tensor logprobs = train::row_logprobs(out.hidden,
                                                  by_hand.masters().leaves().head,
                                                  packed.main.targets,
                                                  {.numerics = trainer.config().objective.numerics})
                                  .logprobs;
  by_hand.begin_step();
  (logprobs * packed.main.coefficients).sum().neg().backward();

  PolicyUpdate(config, *passes_of(trainer)).run(batch, 0);
  const at::Tensor expected = by_hand.masters().flat_gradients();
  const at::Tensor found = trainer.masters().flat_gradients();
  EXPECT_GT(expected.norm().item<double>(), 1e-3);
  EXPECT_LT((found - expected).norm().item<double>(), 1e-5 * expected.norm().item<double>());
}

TEST(PolicyUpdateTest, TooFewGroupsMakeNoStep) {
  const RlConfig config = a_config("dapo");
  train::Trainer trainer = a_trainer(config);
  RolloutBatch batch = a_batch(config);
  batch.groups.resize(1);
  const at::Tensor before = trainer.masters().flat_values().clone();
  EXPECT_EQ(PolicyUpdate(config, *passes_of(trainer)).run(batch, 0).steps, 0);
  EXPECT_TRUE(before.equal(trainer.masters().flat_values()));
  EXPECT_EQ(trainer.next_step(), 0);
}

TEST(PolicyUpdateTest, EveryRecipeMakesAStepAndMaskedAnswersMakeNone) {
  for (const char* algo : {"dapo",
                           "grpo",
                           "dr_grpo",
                           "gspo",
                           "cispo",
                           "rloo",
                           "reinforce_plus_plus",
                           "reinforce_plus_plus_baseline"}) {
    RlConfig config = a_config(algo);
    config.use_tis = true;
    train::Trainer trainer = a_trainer(config);
    RolloutBatch batch = a_batch(config);
    fill_logprobs(batch, trainer);
    const at::Tensor before = trainer.masters().flat_values().clone();
    const UpdateReport report = PolicyUpdate(config, *passes_of(trainer)).run(batch, 0);
    EXPECT_EQ(report.steps, 2) << algo;
    EXPECT_GT((before - trainer.masters().flat_values()).norm().item<double>(), 0.0) << algo;
    EXPECT_EQ(value_of(report, "train/tis_clipfrac"), 0.0) << algo;
  }
  RlConfig config = a_config("dapo");
  config.mask_truncated = true;
  train::Trainer trainer = a_trainer(config);
  RolloutBatch batch = a_batch(config);
  fill_logprobs(batch, trainer);
  for (RolloutGroup& group : batch.groups) {
    for (RolloutSample& sample : group.samples) {
      sample.status = SampleStatus::kTruncated;
    }
  }
  EXPECT_EQ(PolicyUpdate(config, *passes_of(trainer)).run(batch, 0).steps, 0);
}

TEST(PolicyUpdateTest, CorrectionsChangeNoBitWithoutDriftAndActWithIt) {
  const auto masters_after = [](const char* correction, float shift, UpdateReport& report) {
    RlConfig config = a_config("dapo");
    config.correction = correction;
    config.get_mismatch_metrics = true;
    config.mis_mode = "mask";
    config.use_rs = true;
    config.rs_level = "geometric";
    config.mis_batch_normalize = true;
    train::Trainer trainer = a_trainer(config);
    RolloutBatch batch = a_batch(config);
    fill_logprobs(batch, trainer);
    for (RolloutGroup& group : batch.groups) {
      group.samples.front().logprobs.front() -= shift;
    }
    report = PolicyUpdate(config, *passes_of(trainer)).run(batch, 0);
    return trainer.masters().flat_values().clone();
  };
  UpdateReport plain;
  const at::Tensor same = masters_after("none", 0.0F, plain);
  EXPECT_EQ(plain.least_ess, 1.0);
  for (const char* correction : {"tis", "icepop", "mis"}) {
    UpdateReport report;
    EXPECT_TRUE(same.equal(masters_after(correction, 0.0F, report))) << correction;
    EXPECT_EQ(report.least_ess, 1.0) << correction;
  }
  const at::Tensor shifted = masters_after("none", 2.0F, plain);
  EXPECT_LT(plain.least_ess, 1.0);
  for (const char* correction : {"tis", "icepop", "mis"}) {
    UpdateReport report;
    EXPECT_FALSE(shifted.equal(masters_after(correction, 2.0F, report))) << correction;
    EXPECT_EQ(report.least_ess, plain.least_ess) << correction;
  }
}

TEST(PolicyUpdateTest, TheKlToTheStartPullsBack) {
  RlConfig config = a_config("grpo");
  config.kl_loss_coef = 10.0;
  config.kl_loss_type = "k3";
  train::Trainer trainer = a_trainer(config);
  RolloutBatch batch = a_batch(config);
  fill_logprobs(batch, trainer);
  const auto passes = passes_of(trainer);
  PolicyUpdate update(config, *passes);
  update.set_reference(a_trainer(config).masters().values());
  EXPECT_NEAR(value_of(update.run(batch, 0), "train/kl_loss"), 0.0, 0.1);
  EXPECT_GT(value_of(update.run(batch, 0), "train/kl_loss"), 0.0);
}

/// Mean log-probability per answer: of those with reward, less that of those without.
double preference(const RolloutBatch& batch) {
  double sums[2] = {0.0, 0.0};
  double counts[2] = {0.0, 0.0};
  for (const RolloutGroup& group : batch.groups) {
    for (const RolloutSample& sample : group.samples) {
      const int right = sample.reward > 0.0 ? 1 : 0;
      counts[right] += 1.0;
      for (const float logprob : sample.logprobs) {
        sums[right] += static_cast<double>(logprob);
      }
    }
  }
  return sums[1] / counts[1] - sums[0] / counts[0];
}

TEST(PolicyUpdateTest, EveryOptimizerLearnsToPreferRewardedAnswers) {
  for (const char* optimizer : {"adamw", "muon"}) {
    RlConfig config = a_config("grpo");
    config.optimizer = optimizer;
    config.weight_decay = 0.01;
    config.lr = 1e-3;
    train::Trainer trainer = a_trainer(config);
    RolloutBatch batch = a_batch(config);
    fill_logprobs(batch, trainer);
    const double before = preference(batch);
    const auto passes = passes_of(trainer);
    PolicyUpdate update(config, *passes);
    for (int64_t version = 0; version < 6; ++version) {
      EXPECT_EQ(update.run(batch, version).steps, 2) << optimizer;
      fill_logprobs(batch, trainer);
    }
    EXPECT_GT(preference(batch), before + 1.0) << optimizer;
  }
}

}  // namespace
}  // namespace baleen::rl
