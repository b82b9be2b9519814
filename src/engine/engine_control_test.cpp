// Orders to a running engine: pause in its three modes, resume, flush, time-outs, priorities.
#include <atomic>
#include <functional>
#include <thread>

#include <gtest/gtest.h>

#include "cache/cache_test_options.h"
#include "engine/engine.h"
#include "engine/engine_test_bench.h"
#include "engine/synthetic_executor.h"

namespace baleen::engine {
namespace {

using std::chrono::milliseconds;

std::string long_text() {
  std::string text;
  for (int i = 0; i < 60; ++i) {
    text += static_cast<char>('a' + i % 26);
  }
  return text;
}

ScriptedBench::Options slow_options() {
  ScriptedBench::Options options;
  options.step_delay = milliseconds(1);
  options.capacity.num_slots = 2;
  return options;
}

TEST(EngineControlTest, PausedInPlaceNothingMovesAndThenGoesOn) {
  ScriptedBench bench(slow_options());
  const auto a = bench.submit(bench.request(bench.script(long_text())));
  ASSERT_TRUE(a->wait_for_tokens(3, kPatience));
  ASSERT_TRUE(bench.engine().pause(PauseMode::kInPlace).ok());
  EXPECT_TRUE(bench.engine().stats().is_paused);
  EXPECT_EQ(bench.engine().stats().num_running, 1);
  const size_t num_tokens = a->ids().size();
  const int64_t num_steps = bench.engine().stats().num_steps;
  const auto b = bench.submit(bench.request(bench.script("later")));
  EXPECT_EQ(bench.engine().flush_cache().code, StatusCode::kInvalidArgument);
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_EQ(a->ids().size(), num_tokens);
  EXPECT_FALSE(b->ended());
  EXPECT_EQ(bench.engine().stats().num_steps, num_steps);
  ASSERT_TRUE(bench.engine().resume().ok());
  ASSERT_TRUE(a->wait_for(kPatience));
  ASSERT_TRUE(b->wait_for(kPatience));
  EXPECT_EQ(a->finish().message.content, long_text());
  EXPECT_EQ(b->finish().message.content, "later");
}

TEST(EngineControlTest, PausedByAbortEverythingEnds) {
  ScriptedBench bench(slow_options());
  const int32_t key = bench.script(long_text());
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 4; ++i) {  // two run, two wait
    sinks.push_back(bench.submit(bench.request(key)));
  }
  ASSERT_TRUE(sinks[0]->wait_for_tokens(3, kPatience));
  ASSERT_TRUE(bench.engine().pause(PauseMode::kAbort).ok());
  for (const auto& sink : sinks) {
    ASSERT_TRUE(sink->ended());
    EXPECT_EQ(sink->finish().reason, FinishReason::kAbort);
  }
  EXPECT_TRUE(bench.engine().flush_cache().ok());
  ASSERT_TRUE(bench.engine().resume().ok());
  EXPECT_EQ(bench.run(bench.request(bench.script("on")))->finish().message.content, "on");
}

/// Tokens of requests over a small paged cache; `interrupt` is called while they run.
std::vector<std::vector<int32_t>> cached_answers(const std::function<void(Engine&)>& interrupt,
                                                 int32_t max_drafts = 0) {
  SyntheticExecutor::Options options;
  options.capacity = {.num_slots = 3,
                      .max_context = 400,
                      .max_step_tokens = 32,
                      .vocab_size = 297,
                      .max_accepted = max_drafts + 1,
                      .max_drafts = max_drafts};
  options.capacity.cache = cache::small_size(60, 30).cache;
  options.capacity.cache->verified_tokens = max_drafts + 1;
  options.step_base = milliseconds(1);
  MetricRegistry metrics;
  Engine engine(
      {}, std::make_unique<SyntheticExecutor>(options), ScriptedBench::shared_tokenizer(), metrics);
  engine.start();
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 4; ++i) {
    GenerationRequest request;
    request.id = std::to_string(i);
    request.prompt = cache::some_ids(30 + i, 100 * i);
    for (int32_t& id : request.prompt) {
      id %= 297;
    }
    request.max_new_tokens = 80;
    request.sampling.seed = 5;
    sinks.push_back(std::make_shared<CollectingSink>());
    EXPECT_TRUE(engine.submit(request, sinks.back()).ok());
  }
  EXPECT_TRUE(sinks[0]->wait_for_tokens(5, kPatience));
  interrupt(engine);
  std::vector<std::vector<int32_t>> out;
  for (const auto& sink : sinks) {
    EXPECT_TRUE(sink->wait_for(kPatience));
    EXPECT_EQ(sink->finish().reason, FinishReason::kLength);
    out.push_back(sink->ids());
  }
  return out;
}

TEST(EngineControlTest, RetractedRequestsGiveUpTheirPagesAndGoOnAlike) {
  const auto plain = cached_answers([](Engine&) {});
  for (const bool flushes : {false, true}) {
    for (const int32_t max_drafts : {0, 3}) {
      const auto interrupted = cached_answers(
          [&](Engine& engine) {
            ASSERT_TRUE(engine.pause(PauseMode::kRetract).ok());
            EXPECT_EQ(engine.stats().num_running, 0);
            EXPECT_EQ(engine.stats().num_waiting, 4);
            if (flushes) {
              EXPECT_TRUE(engine.flush_cache().ok());
            }
            ASSERT_TRUE(engine.resume().ok());
          },
          max_drafts);
      EXPECT_EQ(interrupted, plain);
    }
  }
  for (const int32_t max_drafts : {0, 3}) {
    const auto held = cached_answers(
        [](Engine& engine) {
          ASSERT_TRUE(engine.pause(PauseMode::kInPlace).ok());
          EXPECT_EQ(engine.stats().num_running, 3);
          const int64_t num_steps = engine.stats().num_steps;
          std::this_thread::sleep_for(milliseconds(20));
          EXPECT_EQ(engine.stats().num_steps, num_steps) << "no step is left in flight";
          ASSERT_TRUE(engine.resume().ok());
        },
        max_drafts);
    EXPECT_EQ(held, plain);
  }
}

TEST(EngineControlTest, AbortReachesAPausedEngine) {
  ScriptedBench bench(slow_options());
  GenerationRequest request = bench.request(bench.script(long_text()));
  const std::string id = request.id;
  const auto sink = bench.submit(std::move(request));
  ASSERT_TRUE(sink->wait_for_tokens(1, kPatience));
  ASSERT_TRUE(bench.engine().pause(PauseMode::kInPlace).ok());
  bench.engine().abort(id);
  ASSERT_TRUE(sink->wait_for(kPatience));
  EXPECT_EQ(sink->finish().reason, FinishReason::kAbort);
  EXPECT_TRUE(bench.engine().flush_cache().ok());
}

TEST(EngineControlTest, OrdersToAnEngineThatDoesNotRunAreRefused) {
  ScriptedBench::Options options;
  options.start = false;
  ScriptedBench bench(options);
  EXPECT_EQ(bench.engine().pause(PauseMode::kAbort).code, StatusCode::kUnavailable);
  bench.engine().start();
  EXPECT_TRUE(bench.engine().pause(PauseMode::kInPlace).ok());
  bench.engine().stop();
  EXPECT_EQ(bench.engine().resume().code, StatusCode::kUnavailable);
  EXPECT_EQ(bench.engine().flush_cache().code, StatusCode::kUnavailable);
}

TEST(EngineControlTest, APausedEngineStops) {
  ScriptedBench bench(slow_options());
  const auto sink = bench.submit(bench.request(bench.script(long_text())));
  ASSERT_TRUE(bench.engine().pause(PauseMode::kInPlace).ok());
  EXPECT_FALSE(bench.engine().drain(milliseconds(10)));
  ASSERT_TRUE(sink->ended());
}

TEST(EngineControlTest, RequestTimeoutEndsWhatLivesTooLong) {
  std::atomic<int64_t> time_ms = 0;
  ScriptedBench::Options options = slow_options();
  options.config.request_timeout_s = 10.0;
  options.environment.now = [&] {
    return std::chrono::steady_clock::time_point(milliseconds(time_ms));
  };
  ScriptedBench bench(options);
  GenerationRequest request =
      bench.request(bench.script(script_of_text(bench.tokenizer(), "ab", ScriptEnd::kRepeat)));
  request.max_new_tokens = 390;
  const auto sink = bench.submit(request);
  ASSERT_TRUE(sink->wait_for_tokens(2, kPatience));
  time_ms = 9000;
  const size_t before = sink->ids().size();
  ASSERT_TRUE(sink->wait_for_tokens(before + 4, kPatience));
  EXPECT_FALSE(sink->ended());
  time_ms = 10'001;
  ASSERT_TRUE(sink->wait_for(kPatience));
  EXPECT_EQ(sink->finish().reason, FinishReason::kError);
  EXPECT_EQ(sink->finish().error.code, StatusCode::kUnavailable);
  EXPECT_EQ(sink->finish().error.message, "Request timeout reached.");
}

TEST(EngineControlTest, AnUrgentRequestTakesTheSlotOfAnother) {
  ScriptedBench::Options options = slow_options();
  options.capacity.num_slots = 1;
  ScriptedBench bench(options);
  const auto low = bench.submit(bench.request(bench.script(long_text())));
  ASSERT_TRUE(low->wait_for_tokens(2, kPatience));
  GenerationRequest near = bench.request(bench.script("near"));
  near.priority = 10;  // no more than the threshold above
  const auto waits = bench.submit(near);
  GenerationRequest urgent = bench.request(bench.script("urgent"));
  urgent.priority = 11;
  const auto first = bench.submit(urgent);
  ASSERT_TRUE(first->wait_for(kPatience));
  EXPECT_FALSE(low->ended());
  EXPECT_EQ(first->finish().message.content, "urgent");
  ASSERT_TRUE(waits->wait_for(kPatience));
  ASSERT_TRUE(low->wait_for(kPatience));
  EXPECT_EQ(low->finish().message.content, long_text()) << "it goes on where it was";
  EXPECT_EQ(bench.engine().stats().num_preemptions, 1);
  EXPECT_TRUE(bench.page_has("sglang:num_retracted_requests_total 1"));
}

}  // namespace
}  // namespace baleen::engine
