#include "rl/rollout_manager.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "engine/scripted_executor.h"
#include "rl/nano_tokenizer.h"
#include "train/sort_task.h"

namespace baleen::rl {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// Prompt n is "s" and the four digits of n.
class NumberedPrompts final : public PromptSource {
 public:
  static constexpr std::size_t kTokens = 6;
  static int64_t number_of(std::span<const int32_t> ids) {
    int64_t number = 0;
    for (std::size_t i = 1; i <= 4; ++i) {
      number = number * 10 + (ids[i] - 8);
    }
    return number;
  }
  Prompt prompt(int64_t number) const override {
    Prompt out;
    out.number = number;
    std::string digits = std::to_string(10000 + number).substr(1);
    out.text = "s" + digits + "=";
    out.ids = train::sort_ids(out.text);
    out.label = digits;
    return out;
  }
  int64_t epoch_size() const override { return 0; }
  Prompt evaluation_prompt(int64_t number) const override { return prompt(5000 + number); }
  int64_t num_evaluation_prompts() const override { return 16; }
  std::string digest() const override { return "numbered"; }
};

/// Scores by a function of group and place.
class ScriptedJudge final : public AnswerJudge {
 public:
  using Rule = std::function<Verdict(const Prompt&, const RolloutSample&)>;
  explicit ScriptedJudge(Rule rule) : rule_(std::move(rule)) {}
  void submit(const Prompt& prompt, const RolloutSample& sample) override {
    Verdict verdict = rule_(prompt, sample);
    verdict.index = sample.index;
    ready_.push_back(std::move(verdict));
  }
  int64_t pending() const override { return static_cast<int64_t>(ready_.size()); }
  std::vector<Verdict> take(std::chrono::milliseconds) override {
    return std::exchange(ready_, {});
  }

 private:
  Rule rule_;
  std::vector<Verdict> ready_;
};

Verdict score(double value) {
  Verdict verdict;
  verdict.score = value;
  return verdict;
}

/// A started engine whose answer to prompt n is `answer(n)`, continued where the prompt ends.
class ManagerTest : public testing::Test {
 protected:
  using Answer = std::function<engine::Script(int64_t number)>;

  /// `broken`, where it is there: what the scripts of a second engine are turned into.
  void serve(Answer answer,
             ScriptedJudge::Rule rule,
             std::function<engine::Script(engine::Script)> broken = {}) {
    add_engine(answer);
    if (broken) {
      add_engine([answer, broken](int64_t number) { return broken(answer(number)); });
    }
    judge_ = std::make_unique<ScriptedJudge>(std::move(rule));
    settle(config_);
    std::vector<RolloutEngine*> engines;
    for (const auto& engine : engines_) {
      engines.push_back(local_.emplace_back(std::make_unique<LocalEngine>(*engine)).get());
    }
    manager_ = std::make_unique<RolloutManager>(config_, engines, source_, *tokenizer_, *judge_);
  }

  void add_engine(Answer answer) {
    engine::ScriptedExecutor::Options options;
    options.capacity.vocab_size = 32;
    options.capacity.num_slots = 16;
    options.step_delay = step_delay_;
    options.lookup = [answer](std::span<const int32_t> prompt) {
      engine::Script script = answer(NumberedPrompts::number_of(prompt));
      const std::size_t known = prompt.size() - NumberedPrompts::kTokens;
      script.steps.erase(script.steps.begin(), script.steps.begin() + static_cast<int64_t>(known));
      return script;
    };
    engine::EngineConfig config = engine::EngineConfig::for_tokenizer(*tokenizer_);
    config.max_running = 16;
    config.max_queued = 10000;
    engines_.push_back(std::make_unique<engine::Engine>(
        config,
        std::make_unique<engine::ScriptedExecutor>(options),
        tokenizer_,
        *metrics_.emplace_back(std::make_unique<MetricRegistry>())));
    engines_.back()->start();
  }

  static engine::Script digits(const std::string& text) {
    return engine::script_of_ids(train::sort_ids(text));
  }
  static std::vector<int64_t> numbers(const std::vector<RolloutGroup>& groups) {
    std::vector<int64_t> out;
    for (const RolloutGroup& group : groups) {
      out.push_back(group.group);
    }
    return out;
  }

  ManagerTest() {
    config_ = default_rl_config("sort", "grpo");
    config_.rollout_batch_size = 4;
    config_.n_samples_per_prompt = 2;
    config_.num_steps_per_rollout = 1;
    config_.filter = "nonzero_std";
    config_.rollout_progress_timeout_s = 20.0;
  }

  RlConfig config_;
  std::chrono::microseconds step_delay_{0};
  std::shared_ptr<const text::Tokenizer> tokenizer_ = nano_tokenizer();
  NumberedPrompts source_;
  std::vector<std::unique_ptr<MetricRegistry>> metrics_;
  std::unique_ptr<ScriptedJudge> judge_;
  std::vector<std::unique_ptr<engine::Engine>> engines_;
  std::vector<std::unique_ptr<LocalEngine>> local_;
  std::unique_ptr<RolloutManager> manager_;
};

TEST_F(ManagerTest, KeepsTheFirstSubmittedGroupsWithSpread) {
  // Groups 1 and 3 have equal rewards, once both wrong, once both right.
  serve([](int64_t) { return digits("12"); },
        [](const Prompt& prompt, const RolloutSample& sample) {
          const double value = prompt.number == 1   ? 0.0
                               : prompt.number == 3 ? 1.0
                                                    : static_cast<double>(sample.index % 2);
          return score(value);
        });
  const RolloutBatch batch = manager_->generate(0, 0, nullptr);
  EXPECT_THAT(numbers(batch.groups), ElementsAre(0, 2, 4, 5));
  EXPECT_EQ(batch.counts.rounds, 2);
  EXPECT_EQ(batch.counts.groups_judged, 6);
  EXPECT_EQ(batch.counts.groups_submitted, 8);
  EXPECT_EQ(policy::metric(batch.counts.filter, "rollout/zero_std/count_0"), 1.0);
  EXPECT_EQ(policy::metric(batch.counts.filter, "rollout/zero_std/count_1"), 1.0);
  EXPECT_EQ(batch.counts.unfinished, 2);
  EXPECT_EQ(batch.counts.first_samples, 8);
  EXPECT_DOUBLE_EQ(batch.counts.first_reward, 4.0 / 8.0);
  EXPECT_EQ(manager_->data().next_group, 8);
  const RolloutSample& sample = batch.groups[1].samples[1];
  EXPECT_EQ(sample.index, 5);
  EXPECT_EQ(sample.status, SampleStatus::kCompleted);
  EXPECT_EQ(sample.response, "12");
  EXPECT_THAT(sample.ids, ElementsAre(3, 8, 8, 8, 10, 4, 9, 10, 1));  // the end token is the last
  EXPECT_EQ(sample.logprobs.size(), 3U);
  EXPECT_THAT(sample.versions, ElementsAre(VersionRun{0, 3}));
  // The next rollout goes on behind the prompts that were submitted.
  EXPECT_THAT(numbers(manager_->generate(1, 1, nullptr).groups), ElementsAre(8, 9, 10, 11));
}

TEST_F(ManagerTest, BoundedRoundsSayWhatWasMissing) {
  config_.max_filter_rounds = 3;
  serve(
      [](int64_t) { return digits("1"); },
      [](const Prompt& prompt, const RolloutSample&) { return score(prompt.number < 5 ? 1 : 0); });
  try {
    manager_->generate(0, 0, nullptr);
    FAIL() << "no group has spread";
  } catch (const Error& error) {
    EXPECT_THAT(
        error.what(),
        HasSubstr(
            "after 3 rounds kept 0 of 4 groups needed from 12 attempted; all samples wrong in "
            "7, right in 5"));
  }
}

TEST_F(ManagerTest, ShrinksToWhatPassed) {
  config_.max_filter_rounds = 2;
  config_.on_exhausted = "shrink";
  serve([](int64_t) { return digits("1"); },
        [](const Prompt& prompt, const RolloutSample& sample) {
          return score(prompt.number == 6 ? static_cast<double>(sample.index % 2) : 0.0);
        });
  const RolloutBatch batch = manager_->generate(0, 0, nullptr);
  EXPECT_THAT(numbers(batch.groups), ElementsAre(6));
  EXPECT_EQ(batch.counts.groups_judged, 8);
}

TEST_F(ManagerTest, TheLengthLimitTruncates) {
  config_.filter = "none";
  config_.rollout_max_response_len = 3;
  serve([](int64_t) { return digits("98765"); },
        [](const Prompt&, const RolloutSample&) { return score(1.0); });
  const RolloutBatch batch = manager_->generate(0, 0, nullptr);
  ASSERT_EQ(batch.groups.size(), 4U);
  for (const RolloutSample& sample : batch.groups[2].samples) {
    EXPECT_EQ(sample.status, SampleStatus::kTruncated);
    EXPECT_EQ(sample.response, "987");
  }
}

TEST_F(ManagerTest, AnswersThatFailForGoodDropTheirGroup) {
  config_.filter = "none";
  config_.max_sample_retries = 1;
  serve(
      [](int64_t number) {
        engine::Script script = digits("12");
        if (number == 2) {
          script.nan_after = 1;
        }
        return script;
      },
      [](const Prompt&, const RolloutSample&) { return score(1.0); });
  const RolloutBatch batch = manager_->generate(0, 0, nullptr);
  EXPECT_THAT(numbers(batch.groups), ElementsAre(0, 1, 3, 4));
  EXPECT_EQ(policy::metric(batch.counts.filter, "rollout/dynamic_filter/drop_failed"), 1.0);
  EXPECT_EQ(batch.counts.retries, 4);  // both answers, each tried twice
}

TEST_F(ManagerTest, FaultsOfTheVerifierFollowThePolicy) {
  const ScriptedJudge::Rule faulty = [](const Prompt& prompt, const RolloutSample& sample) {
    Verdict verdict = score(static_cast<double>(sample.index % 2));
    if (prompt.number == 1 && sample.index % 2 == 0) {
      verdict.kind = VerdictKind::kTimeout;
      verdict.message = "too late";
    }
    return verdict;
  };
  serve([](int64_t) { return digits("1"); }, faulty);
  const RolloutBatch dropped = manager_->generate(0, 0, nullptr);
  EXPECT_THAT(numbers(dropped.groups), ElementsAre(0, 2, 3, 4));
  EXPECT_EQ(dropped.counts.reward_timeouts, 1);
  EXPECT_EQ(policy::metric(dropped.counts.filter, "rollout/dynamic_filter/drop_failed"), 1.0);

  config_.on_reward_error = "zero";
  serve([](int64_t) { return digits("1"); }, faulty);
  EXPECT_THAT(numbers(manager_->generate(0, 0, nullptr).groups), ElementsAre(0, 1, 2, 3));

  config_.on_reward_error = "fail";
  serve([](int64_t) { return digits("1"); }, faulty);
  EXPECT_THROW(manager_->generate(0, 0, nullptr), Error);
}

TEST_F(ManagerTest, PartialAnswersGoOnInTheNextRollout) {
  config_.filter = "none";
  config_.keep_order = "finish";
  config_.partial_rollout = true;
  config_.mask_offpolicy_in_partial_rollout = true;
  config_.over_sampling_batch_size = 8;
  config_.rollout_max_response_len = 64;
  step_delay_ = std::chrono::milliseconds(2);
  const std::string longest(60, '7');
  serve([&](int64_t number) { return digits(number < 4 ? longest : "12"); },
        [](const Prompt&, const RolloutSample&) { return score(1.0); });
  EXPECT_THAT(numbers(manager_->generate(0, 0, nullptr).groups), ElementsAre(4, 5, 6, 7));
  ASSERT_THAT(numbers(manager_->data().unfinished), ElementsAre(0, 1, 2, 3));
  const int64_t known = manager_->data().unfinished[0].samples[0].response_tokens();
  EXPECT_GT(known, 0);
  EXPECT_LT(known, 60);

  config_.over_sampling_batch_size = 4;
  const RolloutBatch next = manager_->generate(1, 1, nullptr);
  EXPECT_THAT(numbers(next.groups), ElementsAre(0, 1, 2, 3));
  const RolloutSample& sample = next.groups[0].samples[0];
  EXPECT_EQ(sample.response, longest);
  EXPECT_THAT(sample.versions, ElementsAre(VersionRun{0, known}, VersionRun{1, 61 - known}));
  EXPECT_EQ(std::count(sample.mask.begin(), sample.mask.end(), 0), known);
  EXPECT_EQ(sample.mask.back(), 1);
  EXPECT_TRUE(manager_->data().unfinished.empty());
}

TEST_F(ManagerTest, TheTokenLogIsTakenUpBehindItsTornEnd) {
  const std::filesystem::path file =
      std::filesystem::path(testing::TempDir()) / "rollout_manager_tokens.log";
  std::filesystem::remove(file);
  {
    TokenLog log(file);
    log.append(0, 9, -0.25F, 0);  // "1" of "12", then the end is torn
    log.append(2, 9, -0.25F, 0);  // a whole answer
    log.append(2, 10, -0.25F, 0);
    log.append(2, 1, -0.25F, 0);
    log.append(5, 9, -0.25F, 0);
    log.restart(5);
    log.append(0, 10, -0.25F, 0);
    log.flush();
  }
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 5);
  config_.filter = "none";
  serve([](int64_t) { return digits("12"); },
        [](const Prompt&, const RolloutSample&) { return score(1.0); });
  TokenLog log(file);
  EXPECT_EQ(log.known_tokens(), 4);
  const RolloutBatch batch = manager_->generate(0, 0, &log);
  EXPECT_EQ(manager_->timings().resumed_tokens, 4);
  for (const RolloutGroup& group : batch.groups) {
    for (const RolloutSample& sample : group.samples) {
      EXPECT_EQ(sample.response, "12") << sample.index;
      EXPECT_EQ(sample.ids.back(), 1);
    }
  }
  EXPECT_EQ(batch.groups[0].samples[0].logprobs[0], -0.25F);
  EXPECT_NE(batch.groups[0].samples[0].logprobs[1], -0.25F);
  // Everything that was drawn is in the log now.
  const TokenLog after(file);
  EXPECT_EQ(after.known_tokens(), 8 * 3);
}

TEST_F(ManagerTest, SilenceEndsTheRun) {
  config_.rollout_progress_timeout_s = 0.3;
  serve([](int64_t) { return digits("12"); },
        [](const Prompt&, const RolloutSample&) { return score(1.0); });
  ASSERT_TRUE(engines_[0]->pause(engine::PauseMode::kRetract).ok());
  EXPECT_THROW(manager_->generate(0, 0, nullptr), Error);
}

engine::Script failing_after(engine::Script script, int32_t tokens) {
  script.fail_after = tokens;
  return script;
}

TEST_F(ManagerTest, AnEngineThatDiesWhileItDrawsLosesNoAnswer) {
  config_.filter = "none";
  config_.max_sample_retries = 0;  // what is taken over is no retry
  const std::string answer = "123456";
  serve([&](int64_t) { return digits(answer); },
        [](const Prompt&, const RolloutSample& sample) {
          return score(static_cast<double>(sample.index));
        },
        [](engine::Script script) { return failing_after(std::move(script), 3); });
  const RolloutBatch batch = manager_->generate(0, 7, nullptr);
  EXPECT_FALSE(engines_[1]->healthy());
  EXPECT_THAT(numbers(batch.groups), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(manager_->timings().moved_samples, 4);  // of groups 1 and 3
  EXPECT_EQ(manager_->timings().engines, 1);
  EXPECT_EQ(manager_->timings().generated_tokens, 8 * 7) << "tokens that came are not drawn again";
  EXPECT_EQ(batch.counts.retries, 0);
  for (const RolloutGroup& group : batch.groups) {
    for (const RolloutSample& sample : group.samples) {
      EXPECT_EQ(sample.status, SampleStatus::kCompleted);
      EXPECT_EQ(sample.response, answer) << sample.index;
      EXPECT_EQ(sample.logprobs.size(), 7U);
      EXPECT_THAT(sample.versions, ElementsAre(VersionRun{7, 7}));
    }
  }
  // The next rollout and evaluations go on with what is left.
  EXPECT_THAT(numbers(manager_->generate(1, 8, nullptr).groups), ElementsAre(4, 5, 6, 7));
  EXPECT_EQ(manager_->timings().moved_samples, 0);
}

TEST_F(ManagerTest, AnEvaluationOutlivesAnEngineToo) {
  serve([](int64_t) { return digits("12"); },
        [](const Prompt&, const RolloutSample&) { return score(1.0); },
        [](engine::Script script) { return failing_after(std::move(script), 1); });
  std::vector<Prompt> prompts;
  for (int64_t i = 0; i < 4; ++i) {
    prompts.push_back(source_.evaluation_prompt(i));
  }
  for (const RolloutSample& sample : manager_->answer(prompts, 0.0, 1, *judge_)) {
    EXPECT_EQ(sample.response, "12") << sample.index;
    EXPECT_EQ(sample.logprobs.size(), 3U);
  }
  EXPECT_FALSE(engines_[1]->healthy());
}

/// Its first answers end behind one token, aborted by nobody of this process.
class AbortedByOthers final : public RolloutEngine {
 public:
  AbortedByOthers(RolloutEngine& inner, int cut) : inner_(inner), cut_(cut) {}
  Status submit(engine::GenerationRequest request,
                std::shared_ptr<engine::OutputSink> sink) override {
    if (cut_ == 0) {
      return inner_.submit(std::move(request), std::move(sink));
    }
    --cut_;
    engine::OutputEvent event;
    event.tokens.emplace_back().id = train::sort_ids("1").front();
    event.finish.emplace().reason = engine::FinishReason::kAbort;
    event.finish->error.message = "aborted by others";
    sink->on_event(std::move(event));
    return {};
  }
  void abort(std::string_view id) override { inner_.abort(id); }
  bool healthy() const override { return inner_.healthy(); }
  std::string health_message() const override { return inner_.health_message(); }
  std::optional<cache::ChoiceLayout> choices() const override { return inner_.choices(); }
  std::vector<int32_t> end_token_ids() const override { return inner_.end_token_ids(); }

 private:
  RolloutEngine& inner_;
  int cut_;
};

TEST_F(ManagerTest, AnswersThatOthersAbortAreNoAnswers) {
  config_.filter = "none";
  config_.max_sample_retries = 1;
  serve([](int64_t) { return digits("12"); },
        [](const Prompt&, const RolloutSample&) { return score(1.0); });
  const auto cut = [&](int count) {
    auto engine = std::make_unique<AbortedByOthers>(*local_.front(), count);
    manager_ = std::make_unique<RolloutManager>(
        config_, std::vector<RolloutEngine*>{engine.get()}, source_, *tokenizer_, *judge_);
    return engine;
  };
  const auto drawing = cut(3);
  const RolloutBatch batch = manager_->generate(0, 0, nullptr);
  EXPECT_THAT(numbers(batch.groups), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(batch.counts.retries, 3);
  for (const RolloutGroup& group : batch.groups) {
    for (const RolloutSample& sample : group.samples) {
      EXPECT_EQ(sample.status, SampleStatus::kCompleted);
      EXPECT_EQ(sample.response, "12");
      EXPECT_EQ(sample.logprobs.size(), 3U);
      EXPECT_EQ(sample.reward, 1.0);
    }
  }
  std::vector<Prompt> prompts{source_.evaluation_prompt(0), source_.evaluation_prompt(1)};
  const auto judging = cut(2);
  for (const RolloutSample& sample : manager_->answer(prompts, 0.0, 1, *judge_)) {
    EXPECT_EQ(sample.response, "12");
  }
  config_.max_sample_retries = 0;
  const auto dropping = cut(1);
  EXPECT_THAT(numbers(manager_->generate(0, 0, nullptr).groups), ElementsAre(1, 2, 3, 4));
  const auto failing = cut(1);
  EXPECT_THROW(manager_->answer(prompts, 0.0, 1, *judge_), Error);
}

TEST_F(ManagerTest, WithoutAnyEngineTheRunEnds) {
  serve([](int64_t) { return failing_after(digits("12"), 1); },
        [](const Prompt&, const RolloutSample&) { return score(1.0); },
        [](engine::Script script) { return script; });
  try {
    manager_->generate(0, 0, nullptr);
    FAIL() << "no engine is left";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("every engine failed"));
  }
}

TEST(SampleSeedTest, IsAFunctionOfAllThree) {
  EXPECT_EQ(sample_seed(1, 2, 3), sample_seed(1, 2, 3));
  const std::set<uint64_t> seeds = {
      sample_seed(1, 2, 3), sample_seed(2, 2, 3), sample_seed(1, 3, 3), sample_seed(1, 2, 4)};
  EXPECT_EQ(seeds.size(), 4U);
}

}  // namespace
}  // namespace baleen::rl
