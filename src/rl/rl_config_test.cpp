#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "ops/numerics_config.h"
#include "rl/rl_options.h"

namespace baleen::rl {
namespace {

using testing::HasSubstr;

std::string refusal(const std::function<void(RlConfig&)>& change) {
  RlConfig config = default_rl_config("sort", "dapo");
  change(config);
  try {
    settle(config);
    validate(config);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(RlConfigTest, TheFourBatchNumbersGiveOneAnother) {
  RlConfig config = default_rl_config("sort", "dapo");
  settle(config);
  validate(config);
  EXPECT_EQ(config.global_batch_size, 128);
  EXPECT_EQ(groups_per_step(config), 16);
  EXPECT_EQ(config.over_sampling_batch_size, 32);
  EXPECT_EQ(config.rollout_seed, config.seed);

  config = default_rl_config("sort", "dapo");
  config.num_steps_per_rollout = 0;
  config.global_batch_size = 64;
  settle(config);
  EXPECT_EQ(config.num_steps_per_rollout, 4);

  EXPECT_THAT(refusal([](RlConfig& c) { c.global_batch_size = 64; }),
              HasSubstr("rollout_batch_size 32 x n_samples_per_prompt 8 = 256, but "
                        "global_batch_size 64 x num_steps_per_rollout 2 = 128"));
  EXPECT_THAT(refusal([](RlConfig& c) { c.num_steps_per_rollout = 3; }),
              HasSubstr("global_batch_size cannot be 256 / 3"));
  EXPECT_THAT(refusal([](RlConfig& c) { c.num_steps_per_rollout = 64; }),
              HasSubstr("4 answers per step would cut a group of 8 in two"));
}

TEST(RlConfigTest, RefusalsNameTheOptionAndTheFix) {
  EXPECT_EQ(refusal([](RlConfig&) {}), "accepted");
  EXPECT_THAT(refusal([](RlConfig& c) { c.rollout_top_p = 0.9; }),
              HasSubstr("rollout_top_p: filters change the distribution"));
  EXPECT_THAT(refusal([](RlConfig& c) { c.rollout_top_k = 5; }), HasSubstr("rollout_top_k: "));
  EXPECT_THAT(refusal([](RlConfig& c) { c.advantage_estimator = "reinforce_plus_plus"; }),
              HasSubstr("normalize_advantages: reinforce_plus_plus needs whitened advantages"));
  EXPECT_THAT(refusal([](RlConfig& c) { c.correction = "miss"; }),
              HasSubstr("correction: \"miss\" is unknown"));
  EXPECT_THAT(refusal([](RlConfig& c) {
                c.use_tis = true;
                c.correction = "mis";
              }),
              HasSubstr("turn use_tis off"));
  EXPECT_THAT(refusal([](RlConfig& c) { c.mis_lower = 3.0; }), HasSubstr("mis bounds"));
  EXPECT_THAT(refusal([](RlConfig& c) { c.advantage_estimator = "ppo"; }),
              HasSubstr("ppo needs a critic"));
  EXPECT_THAT(refusal([](RlConfig& c) { c.rollout_quant = "fp8"; }),
              HasSubstr("exactness: weights rounded to fp8"));
  EXPECT_THAT(refusal([](RlConfig& c) { c.prompt_data = {"p.jsonl"}; }),
              HasSubstr("label_key: rm_type exact compares answers with labels"));
  EXPECT_THAT(refusal([](RlConfig& c) { c.n_samples_per_prompt = 1; }),
              HasSubstr("n_samples_per_prompt: one answer has no spread"));
  EXPECT_THAT(refusal([](RlConfig& c) { c.task = "chess"; }), HasSubstr("task: \"chess\""));
  EXPECT_THAT(refusal([](RlConfig& c) { c.keep_order = "random"; }),
              HasSubstr("keep_order: \"random\" is none of submit, finish"));
  EXPECT_THAT(refusal([](RlConfig& c) { c.freeze_indexer = false; }), HasSubstr("freeze_indexer"));
  EXPECT_THROW(default_rl_config("sort", "ppo"), ConfigError);
}

TEST(RlConfigTest, WhoDrawsAndWhen) {
  const auto on_servers = [](RlConfig& c) {
    c = default_rl_config("abacus", "dapo");
    c.model = "models/abacus";
    c.rollout_url = {"http://127.0.0.1:1"};
  };
  EXPECT_EQ(refusal(on_servers), "accepted");
  EXPECT_THAT(refusal([](RlConfig& c) { c.rollout_url = {"http://127.0.0.1:1"}; }),
              HasSubstr("rollout_url: a server serves a folder"));
  EXPECT_THAT(refusal([&](RlConfig& c) {
                on_servers(c);
                c.replay = "both";
              }),
              HasSubstr("rollout_url: servers compute as the trainer does"));
  EXPECT_THAT(refusal([&](RlConfig& c) {
                on_servers(c);
                c.rollout_url = {"nowhere"};
              }),
              HasSubstr("rollout_url: not a URL"));
  EXPECT_THAT(refusal([](RlConfig& c) { c.async = "full"; }), HasSubstr("async: \"full\""));
  RlConfig ahead = default_rl_config("sort", "dapo");
  ahead.async = "one-step";
  settle(ahead);
  EXPECT_TRUE(ahead.use_rollout_logprobs) << "the ratio needs an anchor";
  ahead = default_rl_config("sort", "dapo");
  ahead.async = "one-step";
  ahead.use_tis = true;
  settle(ahead);
  EXPECT_FALSE(ahead.use_rollout_logprobs);
}

TEST(RlConfigTest, TheOptimizerIsToldAsInBaleenTrain) {
  const RlConfig config = default_rl_config("sort", "dapo");
  EXPECT_EQ(config.optimizer, "adamw");
  EXPECT_EQ(config.lr, 3e-4);
  EXPECT_EQ(config.lr_warmup_steps, 10);
  EXPECT_EQ(config.lr_decay_style, "constant");
  EXPECT_EQ(config.weight_decay, 0.0);
  EXPECT_EQ(refusal([](RlConfig& c) { c.optimizer = "muon"; }), "accepted");
  EXPECT_THAT(refusal([](RlConfig& c) { c.optimizer = "sgd"; }),
              HasSubstr("optimizer: \"sgd\" is none of adamw, muon"));
  EXPECT_THAT(refusal([](RlConfig& c) { c.lr = -1e-4; }), HasSubstr("lr: "));
  EXPECT_THAT(refusal([](RlConfig& c) { c.lr_warmup_steps = -1; }), HasSubstr("lr_warmup_steps: "));
  EXPECT_THAT(refusal([](RlConfig& c) { c.weight_decay = -0.1; }), HasSubstr("weight_decay: "));
  EXPECT_THAT(refusal([](RlConfig& c) { c.clip_grad = -1.0; }), HasSubstr("clip_grad: "));
  EXPECT_THAT(refusal([](RlConfig& c) { c.adam_beta2 = 1.0; }),
              HasSubstr("adam_beta2: 1 is outside of [0, 1)"));
  EXPECT_THAT(refusal([](RlConfig& c) { c.muon_momentum = 1.5; }),
              HasSubstr("muon_momentum: 1.5 is outside of [0, 1)"));
  EXPECT_THAT(refusal([](RlConfig& c) { c.lr_decay_style = "stairs"; }),
              HasSubstr("lr_decay_style: \"stairs\""));
  // 40 rollouts of two steps each.
  EXPECT_THAT(refusal([](RlConfig& c) {
                c.lr_decay_style = "wsd";
                c.wsd_decay_steps = 81;
              }),
              HasSubstr("wsd_decay_steps: 81 is longer than the run of 80 steps"));
  EXPECT_THAT(refusal([](RlConfig& c) {
                c.optimizer = "muon";
                c.exactness = "off";
                c.ranks = "tp2";
              }),
              HasSubstr("optimizer: muon needs whole matrices"));
}

TEST(RlConfigTest, ARunWithDecayHasItsLengthInItsSettings) {
  RlConfig config = default_rl_config("sort", "dapo");
  RlConfig longer = config;
  longer.num_rollout = 80;
  EXPECT_EQ(rl_settings(longer), rl_settings(config));
  config.lr_decay_style = longer.lr_decay_style = "cosine";
  EXPECT_NE(rl_settings(longer), rl_settings(config));
}

TEST(RlConfigTest, ARunFromAModelHasItsOwnRules) {
  const auto of_abacus = [](const std::function<void(RlConfig&)>& change) {
    RlConfig config = default_rl_config("abacus", "dapo");
    config.model = "models/abacus";
    change(config);
    try {
      settle(config);
      validate(config);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(of_abacus([](RlConfig&) {}), "accepted");
  EXPECT_THAT(of_abacus([](RlConfig& c) { c.model.clear(); }),
              HasSubstr("model: task abacus needs a checkpoint folder"));
  EXPECT_THAT(of_abacus([](RlConfig& c) { c.task = "sort"; }),
              HasSubstr("task: sort is made for the nano model"));
  EXPECT_THAT(of_abacus([](RlConfig& c) { c.sft_steps = 5; }), HasSubstr("sft_steps: 5 steps"));
  EXPECT_THAT(of_abacus([](RlConfig& c) { c.thinking = "hard"; }), HasSubstr("thinking: "));
  EXPECT_THAT(of_abacus([](RlConfig& c) {
                c.exactness = "off";
                c.rollout_quant = "bf16";
              }),
              HasSubstr("rollout_quant: a run from --model"));
  EXPECT_THAT(refusal([](RlConfig& c) { c.export_to = "x"; }),
              HasSubstr("model: export_to needs a checkpoint folder"));
}

TEST(RlConfigTest, NumericsFollowFromExactnessAndFormats) {
  RlConfig config = default_rl_config("sort", "dapo");
  EXPECT_EQ(rollout_numerics(config, false), "plain+invariant");
  EXPECT_EQ(trainer_numerics(config, true), "reference+invariant");
  config.exactness = "off";
  config.rollout_quant = "bf16+fp8kv";
  settle(config);
  EXPECT_NO_THROW(validate(config));
  EXPECT_EQ(rollout_numerics(config, false), "plain+fp8kv");
  EXPECT_EQ(trainer_numerics(config, false), "plain");
  ops::Numerics rounded = ops::Numerics::plain();
  rounded.kv_s8 = true;
  EXPECT_EQ(ops::Numerics::by_name("plain+fp8kv"), rounded);
  EXPECT_THROW(ops::Numerics::by_name("plain+invariant+fp8kv"), ConfigError);
  EXPECT_THAT(refusal([](RlConfig& c) {
                c.exactness = "off";
                c.rollout_quant = "bf16+int3";
              }),
              HasSubstr("rollout_quant: \"int3\""));
}

TEST(RlConfigTest, RecipesAreWhatTheirNamesSay) {
  const RlConfig dapo = default_rl_config("sort", "dapo");
  EXPECT_EQ(dapo.eps_clip_high, 0.28);
  EXPECT_EQ(dapo.loss_agg, "token_mean");
  EXPECT_EQ(dapo.filter, "nonzero_std");
  const RlConfig gspo = default_rl_config("sort", "gspo");
  EXPECT_EQ(loss_config(gspo).ratio, policy::RatioKind::kSequence);
  EXPECT_EQ(gspo.eps_clip, 3e-4);
  EXPECT_EQ(loss_config(default_rl_config("sort", "cispo")).ratio, policy::RatioKind::kCispo);
  EXPECT_EQ(advantage_config(default_rl_config("sort", "rloo")).estimator,
            policy::Estimator::kRloo);
  for (const char* algo : {"dapo",
                           "grpo",
                           "dr_grpo",
                           "gspo",
                           "cispo",
                           "rloo",
                           "reinforce_plus_plus",
                           "reinforce_plus_plus_baseline"}) {
    RlConfig config = default_rl_config("add", algo);
    settle(config);
    EXPECT_NO_THROW(validate(config)) << algo;
  }
}

TEST(RlConfigTest, AFileSetsWhatItNamesAndRefusesTheRest) {
  RlConfig config = default_rl_config("sort", "dapo");
  train::read_options(train::options_of(config),
                      R"({"lr": 1e-5, "num_rollout": 3, "prompt_data": ["a", "b"]})",
                      "rl.json");
  EXPECT_EQ(config.lr, 1e-5);
  EXPECT_EQ(config.num_rollout, 3);
  EXPECT_EQ(config.prompt_data.size(), 2U);
  try {
    train::read_options(train::options_of(config), R"({"num_rolout": 3})", "rl.json");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("rl.json: unknown key \"num_rolout\"; the nearest is \"num_rollout\""));
  }
  // The record of a run reads back to the same config.
  RlConfig copy = default_rl_config("sort", "grpo");
  train::read_options(
      train::options_of(copy), train::options_json(train::options_of(config)), "record");
  EXPECT_EQ(rl_settings(copy), rl_settings(config));
}

}  // namespace
}  // namespace baleen::rl
