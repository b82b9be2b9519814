// The engine under many callers: aborts in every state, full queues, shutdown, concurrency.
#include <atomic>
#include <random>
#include <thread>

#include <gtest/gtest.h>

#include "engine/engine.h"
#include "engine/engine_test_bench.h"

namespace baleen::engine {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

Script endless() {
  return script_of_text(ScriptedBench::tokenizer(), "abc ", ScriptEnd::kRepeat);
}

GenerationRequest long_request(ScriptedBench& bench, int32_t key) {
  GenerationRequest request = bench.request(key);
  request.max_new_tokens = 300;
  return request;
}

TEST(EngineLoadTest, AbortWhileDecoding) {
  ScriptedBench::Options options;
  options.step_delay = microseconds(500);
  ScriptedBench bench(options);
  GenerationRequest request = long_request(bench, bench.script(endless()));
  const std::string id = request.id;
  const auto sink = bench.submit(std::move(request));
  ASSERT_TRUE(sink->wait_for_tokens(3, kPatience));
  bench.engine().abort(id);
  ASSERT_TRUE(sink->wait_for(kPatience));
  EXPECT_EQ(sink->finish().reason, FinishReason::kAbort);
  EXPECT_EQ(sink->finish().error.code, StatusCode::kCancelled);
  EXPECT_LT(sink->finish().completion_tokens, 300);
  EXPECT_EQ(bench.engine().stats().num_running, 0);
  bench.engine().abort(id);        // ended already
  bench.engine().abort("nobody");  // never known
  EXPECT_TRUE(bench.page_has("sglang:num_aborted_requests_total 1"));
  EXPECT_TRUE(bench.page_has("baleen:late_events_total 2"));
  EXPECT_EQ(bench.run(bench.request(bench.script("on")))->finish().message.content, "on");
}

TEST(EngineLoadTest, AbortWhilePrefilling) {
  ScriptedBench::Options options;
  options.step_delay = milliseconds(2);
  options.config.max_prefill_chunk = 1;  // 390 steps of prompt
  ScriptedBench bench(options);
  GenerationRequest request = bench.request(bench.script("a"), 390);
  const std::string id = request.id;
  const auto sink = bench.submit(std::move(request));
  while (bench.engine().stats().num_running == 0) {
    std::this_thread::yield();
  }
  bench.engine().abort(id);
  ASSERT_TRUE(sink->wait_for(kPatience));
  EXPECT_EQ(sink->finish().reason, FinishReason::kAbort);
  EXPECT_EQ(sink->finish().completion_tokens, 0);
  EXPECT_LT(bench.engine().stats().num_steps, 390);
}

TEST(EngineLoadTest, AbortWhileWaitingLeavesTheQueueAndNeverRuns) {
  ScriptedBench::Options options;
  options.capacity.num_slots = 1;
  options.step_delay = microseconds(500);
  ScriptedBench bench(options);
  GenerationRequest first = long_request(bench, bench.script(endless()));
  const std::string first_id = first.id;
  const auto running = bench.submit(std::move(first));
  ASSERT_TRUE(running->wait_for_tokens(1, kPatience));
  GenerationRequest second = bench.request(bench.script("never"));
  const std::string id = second.id;
  const auto waiting = bench.submit(std::move(second));
  bench.engine().abort(id);
  ASSERT_TRUE(waiting->wait_for(kPatience));
  EXPECT_FALSE(running->ended());
  EXPECT_EQ(waiting->finish().reason, FinishReason::kAbort);
  EXPECT_TRUE(waiting->ids().empty());
  EXPECT_EQ(bench.engine().stats().num_waiting, 0);
  bench.engine().abort(first_id);
  EXPECT_TRUE(running->wait_for(kPatience));
}

TEST(EngineLoadTest, IdIsFreeAgainWhenTheLastEventComes) {
  ScriptedBench bench;
  const int32_t key = bench.script("a");
  GenerationRequest request = bench.request(key);
  for (int i = 0; i < 50; ++i) {
    bench.run(request);  // the same id again and again
  }
  ScriptedBench::Options slow;
  slow.step_delay = milliseconds(1);
  ScriptedBench other(slow);
  GenerationRequest twice = long_request(other, other.script(endless()));
  const auto sink = other.submit(twice);
  const Status status = other.engine().submit(twice, std::make_shared<CollectingSink>());
  EXPECT_EQ(status.code, StatusCode::kInvalidArgument);
  EXPECT_EQ(status.param, "id");
  other.engine().abort(twice.id);
  EXPECT_TRUE(sink->wait_for(kPatience));
}

TEST(EngineLoadTest, FullQueueRefuses) {
  ScriptedBench::Options options;
  options.capacity.num_slots = 2;
  options.config.max_queued = 3;
  options.step_delay = milliseconds(1);
  ScriptedBench bench(options);
  const int32_t key = bench.script(endless());
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  std::vector<std::string> ids;
  for (int i = 0; i < 5; ++i) {
    GenerationRequest request = long_request(bench, key);
    ids.push_back(request.id);
    sinks.push_back(bench.submit(std::move(request)));
  }
  const auto extra = std::make_shared<CollectingSink>();
  const Status status = bench.engine().submit(long_request(bench, key), extra);
  EXPECT_EQ(status.code, StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message, "The request queue is full.");
  bench.engine().abort(ids[4]);
  ASSERT_TRUE(sinks[4]->wait_for(kPatience));
  sinks.push_back(bench.submit(long_request(bench, key)));  // there is room again
  bench.engine().stop();
  for (const auto& sink : sinks) {
    EXPECT_TRUE(sink->ended());
  }
  EXPECT_EQ(extra->num_events(), 0U);
}

TEST(EngineLoadTest, QueueTimeoutEndsWhatWaitsTooLong) {
  std::atomic<int64_t> time_ms = 0;
  ScriptedBench::Options options;
  options.capacity.num_slots = 1;
  options.config.queue_timeout_s = 5.0;
  options.step_delay = microseconds(200);
  options.environment.now = [&] {
    return std::chrono::steady_clock::time_point(milliseconds(time_ms));
  };
  ScriptedBench bench(options);
  GenerationRequest first = long_request(bench, bench.script(endless()));
  first.max_new_tokens = 390;
  first.ignore_eos = true;
  const auto running = bench.submit(first);
  ASSERT_TRUE(running->wait_for_tokens(1, kPatience));
  const auto waiting = bench.submit(bench.request(bench.script("late")));
  time_ms = 5001;
  ASSERT_TRUE(waiting->wait_for(kPatience));
  if (waiting->finish().reason == FinishReason::kError) {
    EXPECT_EQ(waiting->finish().error.code, StatusCode::kUnavailable);
    EXPECT_EQ(waiting->finish().error.message, "Request queue timeout reached.");
  } else {
    EXPECT_TRUE(running->ended());  // this machine was too slow to keep the slot taken
  }
  bench.engine().abort(first.id);
  EXPECT_TRUE(running->wait_for(kPatience));
}

TEST(EngineLoadTest, DrainLetsAcceptedRequestsEnd) {
  ScriptedBench::Options options;
  options.capacity.num_slots = 2;
  options.step_delay = microseconds(100);
  ScriptedBench bench(options);
  const int32_t key = bench.script("hello hello");
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 6; ++i) {
    sinks.push_back(bench.submit(bench.request(key)));
  }
  EXPECT_TRUE(bench.engine().drain(kPatience));
  for (const auto& sink : sinks) {
    ASSERT_TRUE(sink->ended());
    EXPECT_EQ(sink->finish().message.content, "hello hello");
  }
  EXPECT_EQ(bench.engine().submit(bench.request(key), std::make_shared<CollectingSink>()).code,
            StatusCode::kUnavailable);
}

TEST(EngineLoadTest, DrainCutsOffAtItsDeadline) {
  ScriptedBench::Options options;
  options.capacity.num_slots = 1;
  options.step_delay = milliseconds(5);
  ScriptedBench bench(options);
  const int32_t key = bench.script(endless());
  const auto running = bench.submit(long_request(bench, key));
  const auto waiting = bench.submit(long_request(bench, key));
  EXPECT_FALSE(bench.engine().drain(milliseconds(30)));
  for (const auto& sink : {running, waiting}) {
    ASSERT_TRUE(sink->ended());
    EXPECT_EQ(sink->finish().reason, FinishReason::kError);
    EXPECT_EQ(sink->finish().error.code, StatusCode::kUnavailable);
  }
}

TEST(EngineLoadTest, SinkMaySubmitAndAbort) {
  struct Chain final : OutputSink {
    ScriptedBench* bench = nullptr;
    int32_t key = 0;
    int left = 0;
    std::shared_ptr<CollectingSink> last;
    void on_event(OutputEvent&& event) override {
      bench->engine().abort("nobody");
      if (!event.finish) {
        return;
      }
      if (left == 0) {
        last->on_event(std::move(event));
        return;
      }
      auto next = std::make_shared<Chain>(*this);
      --next->left;
      EXPECT_TRUE(bench->engine().submit(bench->request(key), next).ok());
    }
  };
  ScriptedBench bench;
  auto chain = std::make_shared<Chain>();
  chain->bench = &bench;
  chain->key = bench.script("a");
  chain->left = 20;
  chain->last = std::make_shared<CollectingSink>();
  ASSERT_TRUE(bench.engine().submit(bench.request(chain->key), chain).ok());
  EXPECT_TRUE(chain->last->wait_for(kPatience));
}

TEST(EngineLoadTest, SixtyFourRequestsAtOnceGetTheirOwnAnswers) {
  ScriptedBench::Options options;
  options.capacity.num_slots = 16;
  ScriptedBench bench(options);
  std::vector<int32_t> keys;
  for (int i = 0; i < 64; ++i) {
    keys.push_back(bench.script("answer " + std::to_string(i) + " of many"));
  }
  std::vector<std::shared_ptr<CollectingSink>> sinks(64);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = t; i < 64; i += 8) {
        sinks[i] = bench.submit(bench.request(keys[i], 1 + static_cast<int32_t>(i)));
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (size_t i = 0; i < 64; ++i) {
    ASSERT_TRUE(sinks[i]->wait_for(kPatience));
    EXPECT_EQ(sinks[i]->finish().message.content, "answer " + std::to_string(i) + " of many");
  }
  const EngineStats stats = bench.engine().stats();
  EXPECT_EQ(stats.num_running, 0);
  EXPECT_EQ(stats.num_waiting, 0);
  EXPECT_EQ(stats.num_used_tokens, 0);
  EXPECT_TRUE(bench.page_has("sglang:num_requests_total 64"));
  EXPECT_TRUE(bench.page_has("sglang:num_running_reqs 0"));
  EXPECT_TRUE(bench.page_has("sglang:prompt_tokens_total 2080"));  // 1 + ... + 64
  EXPECT_TRUE(bench.page_has("sglang:time_to_first_token_seconds_count 64"));
  EXPECT_TRUE(bench.page_has("sglang:e2e_request_latency_seconds_count 64"));
}

TEST(EngineLoadTest, RandomAbortsFromOtherThreadsNeverLoseAnEnd) {
  ScriptedBench::Options options;
  options.capacity.num_slots = 4;
  options.config.max_queued = 1000;
  options.config.max_prefill_chunk = 5;
  options.step_delay = microseconds(50);
  ScriptedBench bench(options);
  const int32_t key = bench.script("some text of a few tokens");
  std::vector<std::thread> threads;
  std::atomic<int> num_ended = 0;
  std::atomic<int> num_aborted = 0;
  constexpr int kEach = 60;
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      for (int i = 0; i < kEach; ++i) {
        GenerationRequest request = bench.request(key, 1 + static_cast<int32_t>(random() % 40));
        const std::string id = request.id;
        const auto sink = bench.submit(std::move(request));
        if (random() % 2 == 0) {
          std::this_thread::sleep_for(microseconds(random() % 1500));
          bench.engine().abort(id);
        }
        if (sink->wait_for(kPatience)) {
          ++num_ended;
          num_aborted += sink->finish().reason == FinishReason::kAbort ? 1 : 0;
        }
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(num_ended, 4 * kEach);
  EXPECT_EQ(bench.engine().stats().num_running, 0);
  EXPECT_EQ(bench.engine().stats().num_waiting, 0);
  EXPECT_TRUE(bench.page_has("sglang:num_aborted_requests_total " + std::to_string(num_aborted)));
}

}  // namespace
}  // namespace baleen::engine
