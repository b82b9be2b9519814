#include "engine/engine.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "engine/engine_test_bench.h"

namespace baleen::engine {
namespace {

using text::OutputPart;

TEST(EngineTest, AnswersUntilTheEndToken) {
  ScriptedBench bench;
  const auto sink = bench.run(bench.request(bench.script("hello there")));
  const FinishInfo finish = sink->finish();
  EXPECT_EQ(finish.reason, FinishReason::kStop);
  EXPECT_EQ(finish.message.content, "hello there");
  EXPECT_EQ(sink->text(OutputPart::kContent), "hello there");
  EXPECT_FALSE(finish.matched_stop);
  EXPECT_FALSE(finish.matched_stop_token);
  EXPECT_EQ(finish.prompt_tokens, 3);
  EXPECT_EQ(finish.cached_tokens, 0);
  // The end token counts as generated and is no text.
  const auto num_text = static_cast<int64_t>(bench.tokenizer().encode("hello there").size());
  EXPECT_EQ(finish.completion_tokens, num_text + 1);
  EXPECT_EQ(sink->ids().back(), 1);
  EXPECT_TRUE(finish.error.ok());
}

TEST(EngineTest, LimitEndsWithLength) {
  ScriptedBench bench;
  const int32_t key = bench.script("abcdefgh");
  GenerationRequest request = bench.request(key);
  request.max_new_tokens = 3;
  const auto sink = bench.run(std::move(request));
  EXPECT_EQ(sink->finish().reason, FinishReason::kLength);
  EXPECT_EQ(sink->finish().message.content, "abc");
  EXPECT_EQ(sink->finish().completion_tokens, 3);
}

TEST(EngineTest, EndTokenAsLastAllowedTokenIsAStop) {
  ScriptedBench bench;
  GenerationRequest request = bench.request(bench.script("abc"));
  request.max_new_tokens = 4;
  EXPECT_EQ(bench.run(std::move(request))->finish().reason, FinishReason::kStop);
}

TEST(EngineTest, ContextEndsWithLength) {
  ScriptedBench bench;
  Script script = script_of_text(bench.tokenizer(), "ab", ScriptEnd::kRepeat);
  GenerationRequest request = bench.request(bench.script(script), 390);
  request.max_new_tokens = 1000;
  const auto sink = bench.run(std::move(request));
  EXPECT_EQ(sink->finish().reason, FinishReason::kLength);
  EXPECT_EQ(sink->finish().completion_tokens, 10);
  EXPECT_EQ(sink->finish().message.content, "ababababab");
}

TEST(EngineTest, SequenceOutOfRoomEndsWithLength) {
  ScriptedBench bench;
  const auto sink = bench.run(bench.request(bench.script("abc", ScriptEnd::kLength)));
  EXPECT_EQ(sink->finish().reason, FinishReason::kLength);
  EXPECT_EQ(sink->finish().message.content, "abc");
  EXPECT_EQ(sink->finish().completion_tokens, 3);
}

TEST(EngineTest, StopStringSplitOverTokensIsCutBeforeItIsSent) {
  ScriptedBench bench;
  const std::vector<std::string> pieces = {"abc E", "N", "D", ". tail"};
  GenerationRequest request =
      bench.request(bench.script(script_of_pieces(bench.tokenizer(), pieces)));
  request.output.stop = {"END."};
  const auto sink = bench.run(std::move(request));
  EXPECT_EQ(sink->finish().reason, FinishReason::kStop);
  EXPECT_EQ(sink->finish().matched_stop, "END.");
  EXPECT_EQ(sink->finish().message.content, "abc ");
  EXPECT_EQ(sink->text(OutputPart::kContent), "abc ");
}

TEST(EngineTest, PartialStopStringIsReleasedAtTheEnd) {
  ScriptedBench bench;
  GenerationRequest request = bench.request(bench.script("abc EN"));
  request.output.stop = {"END."};
  const auto sink = bench.run(std::move(request));
  EXPECT_EQ(sink->text(OutputPart::kContent), "abc EN");
  EXPECT_FALSE(sink->finish().matched_stop);
}

TEST(EngineTest, StopStringInsideAStepOfSeveralTokens) {
  ScriptedBench bench;
  const std::vector<std::string> pieces = {"x", "abENDcd", "never"};
  GenerationRequest request =
      bench.request(bench.script(script_of_pieces(bench.tokenizer(), pieces)));
  request.output.stop = {"END"};
  const auto sink = bench.run(std::move(request));
  EXPECT_EQ(sink->finish().message.content, "xab");
  // Tokens behind the one that completed the stop string are dropped and not counted.
  EXPECT_EQ(sink->finish().completion_tokens, 6);
  EXPECT_EQ(sink->ids().size(), 6U);
}

TEST(EngineTest, StopStringLeavesReasoningAlone) {
  ScriptedBench bench;
  const int32_t key = bench.script("36*17 = 612, fine.</think>The product = 612.");
  GenerationRequest request = bench.request(key);
  request.output.starts_in_reasoning = true;
  request.output.stop = {"="};
  const auto sink = bench.run(std::move(request));
  EXPECT_EQ(sink->finish().message.reasoning, "36*17 = 612, fine.");
  EXPECT_EQ(sink->finish().message.content, "The product ");
  EXPECT_EQ(sink->finish().reason, FinishReason::kStop);
}

TEST(EngineTest, StopTokenEndsAndIsNamed) {
  ScriptedBench bench;
  const int32_t key = bench.script("abcd");
  GenerationRequest request = bench.request(key);
  const int32_t c = bench.tokenizer().encode("c").at(0);
  request.stop_token_ids = {c};
  const auto sink = bench.run(std::move(request));
  EXPECT_EQ(sink->finish().reason, FinishReason::kStop);
  EXPECT_EQ(sink->finish().matched_stop_token, c);
  EXPECT_EQ(sink->finish().message.content, "ab");
  EXPECT_EQ(sink->finish().completion_tokens, 3);
}

TEST(EngineTest, IgnoredEndTokenGoesOnToTheLimit) {
  ScriptedBench bench;
  GenerationRequest request = bench.request(bench.script("ab"));
  request.ignore_eos = true;
  request.max_new_tokens = 7;
  const auto sink = bench.run(std::move(request));
  EXPECT_EQ(sink->finish().reason, FinishReason::kLength);
  EXPECT_EQ(sink->finish().completion_tokens, 7);
}

TEST(EngineTest, NoEndTokenBeforeTheMinimum) {
  ScriptedBench bench;
  Script script = script_of_text(bench.tokenizer(), "ab");
  script.filler_id = bench.tokenizer().encode("z").at(0);
  const int32_t key = bench.script(script);
  for (const int32_t min : {0, 1, 2, 3, 5}) {
    GenerationRequest request = bench.request(key);
    request.min_new_tokens = min;
    const auto sink = bench.run(std::move(request));
    EXPECT_EQ(sink->finish().reason, FinishReason::kStop);
    EXPECT_EQ(sink->finish().completion_tokens, std::max(min, 2) + 1);
    EXPECT_EQ(sink->finish().message.content,
              "ab" + std::string(static_cast<size_t>(std::max(min - 2, 0)), 'z'));
  }
}

TEST(EngineTest, NoStopTokenBeforeTheMinimumEvenInAStepOfSeveral) {
  ScriptedBench bench;
  const int32_t b = bench.tokenizer().encode("b").at(0);
  Script script = script_of_pieces(bench.tokenizer(), std::vector<std::string>{"aaab", "xb"});
  script.filler_id = bench.tokenizer().encode("z").at(0);
  GenerationRequest request = bench.request(bench.script(script));
  request.min_new_tokens = 5;
  request.stop_token_ids = {b};
  const auto sink = bench.run(std::move(request));
  EXPECT_EQ(sink->finish().message.content, "aaazz");
  EXPECT_EQ(sink->finish().matched_stop_token, b);
}

TEST(EngineTest, ReasoningBudgetForcesItsEnd) {
  ScriptedBench bench;
  for (const bool whole_steps : {false, true}) {
    // 20 tokens of reasoning, one by one or all in one step.
    Script script =
        whole_steps
            ? script_of_pieces(bench.tokenizer(),
                               std::vector<std::string>{"abcdefghijklmnopqrst", "</think>", "yes"})
            : script_of_text(bench.tokenizer(), "abcdefghijklmnopqrst</think>yes");
    const int32_t key = bench.script(script);
    for (const int32_t budget : {1, 7, 19, 20, 21, 1000}) {
      GenerationRequest request = bench.request(key);
      request.output.starts_in_reasoning = true;
      request.reasoning_budget = budget;
      const auto sink = bench.run(std::move(request));
      const std::string all = "abcdefghijklmnopqrst";
      EXPECT_EQ(sink->finish().message.reasoning, all.substr(0, static_cast<size_t>(budget)));
      EXPECT_EQ(sink->finish().message.content, "yes");
      EXPECT_EQ(sink->finish().reason, FinishReason::kStop);
      EXPECT_EQ(sink->finish().reasoning_tokens, std::min(budget, 20) + 1);
    }
  }
}

TEST(EngineTest, ReasoningBudgetLeavesRoomForTheAnswer) {
  ScriptedBench bench;
  GenerationRequest request =
      bench.request(bench.script(script_of_text(bench.tokenizer(), "x", ScriptEnd::kRepeat)));
  request.output.starts_in_reasoning = true;
  request.reasoning_budget = 1000;
  request.max_new_tokens = 16;
  const auto sink = bench.run(std::move(request));
  EXPECT_EQ(sink->finish().message.reasoning, std::string(12, 'x'));
  EXPECT_EQ(sink->finish().message.content, "xxx");
}

TEST(EngineTest, PromptOnlyRequestDrawsNothing) {
  ScriptedBench bench;
  GenerationRequest request = bench.request(bench.script("abc"), 100);
  request.max_new_tokens = 0;
  request.want_prompt_logprobs = true;
  const auto sink = bench.run(std::move(request));
  EXPECT_EQ(sink->finish().reason, FinishReason::kLength);
  EXPECT_EQ(sink->finish().completion_tokens, 0);
  EXPECT_EQ(sink->num_events(), 1U);
  ASSERT_EQ(sink->prompt_logprobs().size(), 99U);  // over several chunks, without the first token
  EXPECT_EQ(sink->prompt_logprobs()[0].id, 5);
}

TEST(EngineTest, LogprobsComeWithEveryToken) {
  ScriptedBench bench;
  GenerationRequest request = bench.request(
      bench.script(script_of_pieces(bench.tokenizer(), std::vector<std::string>{"ab", "c"})));
  request.want_logprobs = true;
  request.top_logprobs = 3;
  request.want_prompt_logprobs = true;
  const auto sink = bench.run(std::move(request));
  ASSERT_EQ(sink->tokens().size(), 4U);
  for (const GeneratedToken& token : sink->tokens()) {
    ASSERT_EQ(token.top_logprobs.size(), 3U);
    EXPECT_EQ(token.top_logprobs[0].id, token.id);
    EXPECT_FLOAT_EQ(token.top_logprobs[0].logprob, token.logprob);
    EXPECT_LT(token.top_logprobs[1].logprob, token.logprob);
  }
  EXPECT_EQ(sink->prompt_logprobs().size(), 2U);
}

TEST(EngineTest, NanLogitsEndOneRequestAlone) {
  ScriptedBench bench;
  Script bad = script_of_text(bench.tokenizer(), "abcdef");
  bad.nan_after = 2;
  const auto sick = bench.submit(bench.request(bench.script(bad)));
  const auto well = bench.submit(bench.request(bench.script("hello")));
  ASSERT_TRUE(sick->wait_for(kPatience));
  ASSERT_TRUE(well->wait_for(kPatience));
  EXPECT_EQ(sick->finish().reason, FinishReason::kError);
  EXPECT_EQ(sick->finish().error.code, StatusCode::kInternal);
  EXPECT_EQ(sick->finish().message.content, "ab");
  EXPECT_EQ(well->finish().message.content, "hello");
  EXPECT_TRUE(bench.page_has("baleen:nan_logits_total 1"));
  EXPECT_TRUE(bench.engine().healthy());
  EXPECT_EQ(bench.run(bench.request(bench.script("on")))->finish().message.content, "on");
}

TEST(EngineTest, ExecutorFailureEndsEverythingAndRefusesMore) {
  ScriptedBench::Options options;
  options.capacity.num_slots = 2;
  ScriptedBench bench(options);
  Script bad = script_of_text(bench.tokenizer(), "x", ScriptEnd::kRepeat);
  bad.fail_after = 20;
  const int32_t key = bench.script(bad);
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 5; ++i) {  // two run, three wait
    sinks.push_back(bench.submit(bench.request(key)));
  }
  for (const auto& sink : sinks) {
    ASSERT_TRUE(sink->wait_for(kPatience));
    EXPECT_EQ(sink->finish().reason, FinishReason::kError);
    EXPECT_EQ(sink->finish().error.code, StatusCode::kUnavailable);
  }
  EXPECT_FALSE(bench.engine().healthy());
  EXPECT_EQ(bench.engine().health_message(), "scripted failure after 20 tokens");
  EXPECT_EQ(bench.engine().stats().num_running, 0);
  EXPECT_EQ(bench.engine().stats().num_waiting, 0);
  const Status status =
      bench.engine().submit(bench.request(key), std::make_shared<CollectingSink>());
  EXPECT_EQ(status.code, StatusCode::kUnavailable);
  bench.engine().abort("r0");  // no effect
  EXPECT_FALSE(bench.engine().drain(std::chrono::milliseconds(10)));
  EXPECT_EQ(bench.engine().stats().state, EngineState::kFailed);
}

TEST(EngineTest, RefusesBadRequestsByField) {
  ScriptedBench bench;
  GenerationRequest request = bench.request(bench.script("a"));
  request.sampling.top_p = 0.0F;
  const Status bad = bench.engine().submit(request, std::make_shared<CollectingSink>());
  EXPECT_EQ(bad.code, StatusCode::kInvalidArgument);
  EXPECT_EQ(bad.param, "top_p");
  GenerationRequest long_prompt = bench.request(10, 400);
  const Status full = bench.engine().submit(long_prompt, std::make_shared<CollectingSink>());
  EXPECT_EQ(full.api_code, "context_length_exceeded");
}

TEST(EngineTest, RefusesBeforeStartAndAfterStop) {
  ScriptedBench::Options options;
  options.start = false;
  ScriptedBench bench(options);
  const int32_t key = bench.script("a");
  const auto submit = [&] {
    return bench.engine().submit(bench.request(key), std::make_shared<CollectingSink>()).code;
  };
  EXPECT_EQ(submit(), StatusCode::kUnavailable);
  bench.engine().start();
  EXPECT_EQ(submit(), StatusCode::kOk);
  bench.engine().stop();
  bench.engine().stop();
  EXPECT_EQ(submit(), StatusCode::kUnavailable);
  EXPECT_EQ(bench.engine().stats().state, EngineState::kStopped);
}

TEST(EngineTest, RefusesAConfigThatContradictsTheExecutor) {
  ScriptedBench::Options options;
  options.config.max_running = 0;
  EXPECT_THROW(ScriptedBench{options}, ConfigError);
  options = {};
  options.config.max_step_tokens = 7;  // fewer than slots
  EXPECT_THROW(ScriptedBench{options}, ConfigError);
  options = {};
  options.config.queue_timeout_s = -1;
  EXPECT_THROW(ScriptedBench{options}, ConfigError);
  options = {};
  options.capacity.vocab_size = 200;  // </think> is 283
  EXPECT_THROW(ScriptedBench{options}, ConfigError);
}

TEST(EngineTest, UnparsableToolBlocksAreCounted) {
  ScriptedBench bench;
  const auto sink = bench.run(bench.request(bench.script(
      "Sure.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"delete_all\">\n</｜DSML｜invoke>\n"
      "</｜DSML｜tool_calls>")));
  EXPECT_TRUE(sink->finish().message.tool_calls.empty());
  EXPECT_TRUE(bench.page_has("baleen:unparsable_tool_blocks_total 1"));
}

TEST(EngineTest, SeedsReachTheExecutorAndAreDrawnOncePerRequest) {
  // An executor that remembers the sampling rows it was given.
  struct Recorder final : Executor {
    std::vector<SamplingRow>* seen = nullptr;
    StepResult result;
    ExecutorCapacity capacity() const override { return {4, 100, 64, 297}; }
    ExecutorInfo info() const override { return {}; }
    Ticket submit(const BatchPlan& plan, const MaskProvider&) override {
      result = {};
      result.step = plan.step;
      for (const BatchRow& row : plan.rows) {
        RowResult& out = result.rows.emplace_back();
        if (row.sampling_index >= 0) {
          seen->push_back(plan.sampling[static_cast<size_t>(row.sampling_index)]);
          out.ids = {5};
        }
      }
      return Ticket(0);
    }
    StepResult wait(Ticket) override { return result; }
  };
  std::vector<SamplingRow> seen;
  auto recorder = std::make_unique<Recorder>();
  recorder->seen = &seen;
  MetricRegistry metrics;
  uint64_t next_seed = 1000;
  EngineEnvironment environment;
  environment.draw_seed = [&] { return next_seed++; };
  EngineConfig config;
  config.max_running = 1;
  Engine engine(
      config, std::move(recorder), ScriptedBench::shared_tokenizer(), metrics, environment);
  engine.start();
  const auto run = [&](std::optional<uint64_t> seed, float temperature) {
    GenerationRequest request;
    request.id = "r";
    request.prompt = {7};
    request.max_new_tokens = 3;
    request.sampling.seed = seed;
    request.sampling.sample_index = 2;
    request.sampling.temperature = temperature;
    auto sink = std::make_shared<CollectingSink>();
    ASSERT_TRUE(engine.submit(request, sink).ok());
    ASSERT_TRUE(sink->wait_for(kPatience));
  };
  run(77, 1.0F);
  run(std::nullopt, 0.5F);
  run(std::nullopt, 1e-7F);
  engine.stop();
  ASSERT_EQ(seen.size(), 9U);
  for (size_t i = 0; i < 9; ++i) {
    EXPECT_EQ(seen[i].seed, (std::vector<uint64_t>{77, 1000, 1001}[i / 3]));
    EXPECT_EQ(seen[i].sample_index, 2);
    EXPECT_EQ(seen[i].temperature, (std::vector<float>{1.0F, 0.5F, 0.0F}[i / 3]));
    EXPECT_EQ(seen[i].accept_limit, 3 - static_cast<int32_t>(i % 3));
  }
}

TEST(EngineTest, ExecutorThatBreaksTheContractIsAFailure) {
  struct Broken final : Executor {
    RowResult answer;
    StepResult result;
    ExecutorCapacity capacity() const override { return {4, 100, 64, 297}; }
    ExecutorInfo info() const override { return {}; }
    Ticket submit(const BatchPlan& plan, const MaskProvider&) override {
      result.step = plan.step;
      result.rows.assign(plan.rows.size(), answer);
      return Ticket(0);
    }
    StepResult wait(Ticket) override { return result; }
  };
  for (const std::vector<int32_t>& ids : {std::vector<int32_t>{}, {297}, {-1}, {5, 5, 5, 5}}) {
    auto broken = std::make_unique<Broken>();
    broken->answer.ids = ids;
    MetricRegistry metrics;
    Engine engine({}, std::move(broken), ScriptedBench::shared_tokenizer(), metrics);
    engine.start();
    GenerationRequest request;
    request.id = "r";
    request.prompt = {7};
    request.max_new_tokens = 3;
    request.ignore_eos = true;
    auto sink = std::make_shared<CollectingSink>();
    ASSERT_TRUE(engine.submit(request, sink).ok());
    ASSERT_TRUE(sink->wait_for(kPatience));
    if (ids.size() == 4) {  // cut at the limit is the engine's right, more is never looked at
      EXPECT_EQ(sink->finish().reason, FinishReason::kLength);
    } else {
      EXPECT_EQ(sink->finish().error.code, StatusCode::kUnavailable);
      EXPECT_FALSE(engine.healthy());
    }
  }
}

}  // namespace
}  // namespace baleen::engine
