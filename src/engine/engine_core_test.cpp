// The engine turn by turn, without its thread: what a request keeps when it is given up in the
// middle and had again, and what the cache keeps of one that was aborted.
#include "engine/engine_core.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "cache/cache_test_options.h"
#include "engine/engine_test_bench.h"
#include "engine/synthetic_executor.h"

namespace baleen::engine {
namespace {

/// A core on made-up steps over a cache of small pages.
class CoreBench {
 public:
  explicit CoreBench(bool overlap)
      : executor_(options()),
        metrics_(registry_),
        core_({.num_slots = 3, .max_step_tokens = 32, .max_prefill_chunk = 10},
              options().capacity,
              executor_,
              metrics_,
              [] { return std::chrono::steady_clock::now(); },
              {.overlap = overlap}) {}
  ~CoreBench() {
    core_.end_all(FinishReason::kAbort, {});
    core_.settle_down();
  }

  std::shared_ptr<CollectingSink> add(GenerationRequest request) {
    auto sink = std::make_shared<CollectingSink>();
    const EnginePoint now = std::chrono::steady_clock::now();
    request.id = std::to_string(next_);
    core_.add(std::unique_ptr<LiveRequest>(new LiveRequest{
        SequenceId(next_++),
        Generation(std::move(request), rules_, ScriptedBench::shared_tokenizer(), 7),
        sink,
        now,
        now}));
    return sink;
  }
  void turns(int count) {
    for (; count > 0 && core_.has_work(); --count) {
      core_.turn();
      deliver();
    }
  }
  void deliver() {
    for (Delivery& delivery : core_.deliveries()) {
      delivery.sink->on_event(std::move(delivery.event));
    }
    core_.clear_deliveries();
  }
  EngineCore& core() { return core_; }

 private:
  static SyntheticExecutor::Options options() {
    SyntheticExecutor::Options options;
    options.capacity = {
        .num_slots = 3, .max_context = 300, .max_step_tokens = 32, .vocab_size = 297};
    options.capacity.cache = cache::small_size(40, 40).cache;
    return options;
  }

  SyntheticExecutor executor_;
  MetricRegistry registry_;
  EngineMetrics metrics_;
  const GenerationRules rules_{.end_token_ids = {}, .max_context = 300, .vocab_size = 297};
  EngineCore core_;
  int64_t next_ = 0;
};

GenerationRequest scored_request() {
  GenerationRequest request;
  for (int32_t i = 0; i < 75; ++i) {
    request.prompt.push_back(5 + i * 3);
  }
  request.max_new_tokens = 9;
  request.ignore_eos = true;
  request.want_prompt_logprobs = true;
  request.sampling.seed = 3;
  return request;
}

TEST(EngineCoreTest, ScoresOfAPromptComeOnceHoweverOftenItIsBegun) {
  // Given up after each number of turns: in the middle of the prompt, at its end, behind its first
  // token; what the cache holds of it is run again, as scores come from running.
  for (const bool overlap : {false, true}) {
    for (int num_turns = 0; num_turns < 14; ++num_turns) {
      CoreBench bench(overlap);
      const GenerationRequest request = scored_request();
      const auto sink = bench.add(request);
      bench.turns(num_turns);
      bench.core().pause(PauseMode::kRetract);
      bench.deliver();
      EXPECT_EQ(bench.core().scheduler().num_running(), 0);
      ASSERT_TRUE(bench.core().resume().ok());
      bench.turns(100);
      const auto again = bench.add(request);  // the whole prompt is in the cache
      bench.turns(100);
      for (const auto& of : {sink, again}) {
        ASSERT_TRUE(of->ended()) << num_turns << overlap;
        EXPECT_EQ(of->finish().completion_tokens, 9);
        const std::vector<TokenLogprob> scores = of->prompt_logprobs();
        ASSERT_EQ(scores.size(), request.prompt.size() - 1) << num_turns << overlap;
        for (size_t i = 0; i < scores.size(); ++i) {
          ASSERT_EQ(scores[i].id, request.prompt[i + 1]);
        }
      }
      EXPECT_EQ(sink->ids(), again->ids());
    }
  }
}

TEST(EngineCoreTest, OnlyWhatFinishedIsMadeResumable) {
  for (const bool overlap : {false, true}) {
    for (const bool aborts : {false, true}) {
      CoreBench bench(overlap);
      GenerationRequest request = scored_request();
      request.max_new_tokens = aborts ? 100 : 9;
      const auto sink = bench.add(std::move(request));
      while (aborts ? sink->ids().size() < 5 : !sink->ended()) {
        bench.turns(1);
      }
      bench.core().abort(SequenceId(0));
      bench.deliver();
      EXPECT_TRUE(sink->ended());
      EXPECT_EQ(bench.core().scheduler().has_end_captures(), !aborts) << overlap;
    }
  }
}

}  // namespace
}  // namespace baleen::engine
