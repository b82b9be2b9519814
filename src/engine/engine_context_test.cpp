// A cache smaller than the model's context bounds what a request may hold: said when it is handed
// in, not found when the pages run out.
#include <gtest/gtest.h>

#include "cache/cache_test_options.h"
#include "engine/engine.h"
#include "engine/engine_test_bench.h"
#include "engine/synthetic_executor.h"

namespace baleen::engine {
namespace {

constexpr int32_t kContextPages = 6;  // of 16 tokens

/// An engine over a small cache and a model that could take more.
class SmallCache {
 public:
  SmallCache(bool overlap, int32_t max_drafts) {
    SyntheticExecutor::Options options;
    options.capacity = {.num_slots = 3,
                        .max_context = 400,
                        .max_step_tokens = 32,
                        .vocab_size = 297,
                        .max_accepted = max_drafts + 1,
                        .max_drafts = max_drafts};
    options.capacity.cache = cache::small_size(kContextPages, kContextPages).cache;
    options.capacity.cache->verified_tokens = max_drafts + 1;
    EngineConfig config;
    config.overlap = overlap;
    engine_ = std::make_unique<Engine>(config,
                                       std::make_unique<SyntheticExecutor>(options),
                                       ScriptedBench::shared_tokenizer(),
                                       metrics_);
    engine_->start();
  }
  Status submit(int32_t num_prompt, int32_t max_new) {
    GenerationRequest request;
    request.id = std::to_string(next_++);
    for (int32_t i = 0; i < num_prompt; ++i) {
      request.prompt.push_back((i * 37) % 290);
    }
    request.max_new_tokens = max_new;
    request.ignore_eos = true;
    request.sampling.seed = 3;
    sink_ = std::make_shared<CollectingSink>();
    return engine_->submit(std::move(request), sink_);
  }
  const CollectingSink& answer() {
    EXPECT_TRUE(sink_->wait_for(kPatience));
    return *sink_;
  }
  EngineStats stats() const { return engine_->stats(); }

 private:
  MetricRegistry metrics_;
  std::unique_ptr<Engine> engine_;
  std::shared_ptr<CollectingSink> sink_;
  int next_ = 0;
};

TEST(EngineContextTest, APromptThatCanNeverFitTheCacheIsRefusedWhenItComes) {
  SmallCache small(true, 0);
  EXPECT_EQ(small.stats().capacity.max_context, 96);
  const Status status = small.submit(96, 1);
  EXPECT_EQ(status.code, StatusCode::kInvalidArgument);
  EXPECT_EQ(status.param, "prompt");
  EXPECT_EQ(status.api_code, "context_length_exceeded");
  EXPECT_EQ(status.message,
            "the prompt has 96 tokens; the cache holds 96 tokens, the answer included");
  EXPECT_FALSE(small.submit(97, 0).ok());
  EXPECT_EQ(small.stats().num_steps, 0);
  EXPECT_EQ(small.stats().num_waiting, 0);
}

TEST(EngineContextTest, AnAnswerEndsWhereTheCacheDoes) {
  for (const bool overlap : {false, true}) {
    for (const int32_t max_drafts : {0, 3}) {
      SmallCache small(overlap, max_drafts);
      for (int again = 0; again < 2; ++again) {  // the second one meets what the first left
        for (const int32_t num_prompt : {95, 60, 80, 81, 1}) {
          ASSERT_TRUE(small.submit(num_prompt, 1000).ok());
          const FinishInfo end = small.answer().finish();
          ASSERT_EQ(end.reason, FinishReason::kLength) << end.error.message;
          ASSERT_EQ(end.completion_tokens, 96 - num_prompt);
        }
      }
      ASSERT_TRUE(small.submit(96, 0).ok()) << "without an answer the prompt may fill it";
      EXPECT_EQ(small.answer().finish().reason, FinishReason::kLength);
    }
  }
}

}  // namespace
}  // namespace baleen::engine
