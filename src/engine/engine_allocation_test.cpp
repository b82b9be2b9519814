// The step loop allocates nothing once its slots have been used before: neither planning nor cache
// bookkeeping nor the rules of the streams nor handing over. (Text is another matter: an answer's
// characters grow. The tokens here have none.) And it takes no lock but those that hand steps over
// to the thread that runs them and results back.
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/lock_counter.h"
#include "cache/allocation_counter.h"
#include "cache/cache_test_options.h"
#include "engine/engine_core.h"
#include "engine/engine_test_bench.h"
#include "engine/synthetic_executor.h"

namespace baleen::engine {
namespace {

/// Reads what it gets and leaves its memory to the engine.
class ReadingSink final : public OutputSink {
 public:
  void on_event(OutputEvent&& event) override { num_tokens += event.tokens.size(); }
  size_t num_tokens = 0;
};

constexpr int32_t kCounted = 300;  // steps, over several page borders

struct Costs {
  int64_t allocations = 0;
  int64_t locks = 0;
};

/// Of kCounted warm steps, on the engine's thread.
Costs costs_of_decoding(bool overlap, int32_t max_drafts) {
  constexpr int32_t kSlots = 16;
  constexpr int32_t kNewTokens = 1500;
  constexpr int32_t kPromptTurns = 20;
  const text::Tokenizer& tokenizer = ScriptedBench::tokenizer();
  const int32_t silent = EngineConfig::for_tokenizer(tokenizer).end_token_ids.at(0);
  SyntheticExecutor::Options options;
  options.capacity = {.num_slots = kSlots,
                      .max_context = 8000,
                      .max_step_tokens = 400,
                      .vocab_size = silent + 1,
                      .max_accepted = max_drafts + 1,
                      .max_drafts = max_drafts};
  options.first_id = silent;
  options.capacity.cache = cache::full_size(kSlots * 20, kSlots * 20).cache;
  options.capacity.cache->request_slots = kSlots;
  options.capacity.cache->verified_tokens = max_drafts + 1;
  SyntheticExecutor executor(options);
  MetricRegistry registry;
  EngineMetrics metrics(registry);
  DraftMetrics draft_metrics(registry, max_drafts);
  const GenerationRules rules{.end_token_ids = {},
                              .max_context = options.capacity.max_context,
                              .vocab_size = options.capacity.vocab_size};
  EngineCore core({.num_slots = kSlots, .max_step_tokens = 400, .max_prefill_chunk = 64},
                  options.capacity,
                  executor,
                  metrics,
                  [] { return std::chrono::steady_clock::now(); },
                  {.overlap = overlap,
                   .drafts = {.max_drafts = max_drafts, .adaptive = false},
                   .draft_metrics = &draft_metrics});
  auto sink = std::make_shared<ReadingSink>();
  int64_t next = 0;
  const auto add = [&](int32_t i) {
    GenerationRequest request;
    request.id = std::to_string(next);
    request.prompt.assign(static_cast<size_t>(20 + i), i % silent);
    request.max_new_tokens = kNewTokens;
    request.ignore_eos = true;
    request.output.parse_markup = false;
    request.sampling.seed = static_cast<uint64_t>(i);
    request.sampling.frequency_penalty = 0.5F;
    const EnginePoint now = std::chrono::steady_clock::now();
    core.add(std::unique_ptr<LiveRequest>(
        new LiveRequest{SequenceId(next++),
                        Generation(std::move(request), rules, ScriptedBench::shared_tokenizer(), 7),
                        sink,
                        now,
                        now}));
  };
  const auto run = [&](int32_t num_turns) {
    for (int32_t i = 0; i < num_turns; ++i) {
      core.turn();
      core.report();
      for (Delivery& delivery : core.deliveries()) {
        delivery.sink->on_event(std::move(delivery.event));
      }
      core.clear_deliveries();
    }
  };
  for (int32_t i = 0; i < kSlots; ++i) {
    add(i);
  }
  while (core.has_work()) {
    run(1);
  }
  EXPECT_TRUE(core.flush_cache());
  for (int32_t i = 0; i < kSlots; ++i) {
    add(i);
  }
  run(kPromptTurns);
  EXPECT_EQ(core.scheduler().num_running(), kSlots);
  const size_t tokens_before = sink->num_tokens;
  const Costs before{cache::num_allocations_of_thread(), num_locks_of_thread()};
  run(kCounted);
  const Costs after{cache::num_allocations_of_thread(), num_locks_of_thread()};
  EXPECT_GE(sink->num_tokens - tokens_before, static_cast<size_t>(kSlots * kCounted));
  EXPECT_EQ(core.scheduler().num_running(), kSlots) << "some have ended";
  core.end_all(FinishReason::kAbort, {});
  core.settle_down();
  return {after.allocations - before.allocations, after.locks - before.locks};
}

TEST(EngineAllocationTest, ADecodingStepAllocatesNothingOnceWarm) {
  for (const bool overlap : {false, true}) {
    for (const int32_t max_drafts : {0, 3}) {
      EXPECT_EQ(costs_of_decoding(overlap, max_drafts).allocations, 0) << overlap << max_drafts;
    }
  }
}

TEST(EngineAllocationTest, ADecodingStepTakesNoLockButToHandOver) {
  if (!locks_are_counted()) {
    GTEST_SKIP() << "sanitizers have the lock function";
  }
  std::mutex mutex;
  const int64_t before = num_locks_of_thread();
  mutex.lock();
  mutex.unlock();
  ASSERT_EQ(num_locks_of_thread(), before + 1);  // it does count
  for (const int32_t max_drafts : {0, 3}) {
    for (const bool overlap : {false, true}) {  // one to hand the plan over, one for its result
      EXPECT_EQ(costs_of_decoding(overlap, max_drafts).locks, 2 * kCounted)
          << overlap << max_drafts;
    }
  }
}

}  // namespace
}  // namespace baleen::engine
