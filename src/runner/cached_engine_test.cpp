// An engine whose sequences share a paged cache answers as one that computes everything: over long
// conversations, with common prefixes, and on a cache so small that sequences are preempted. Freed
// pages are painted, so a stale row would change the answer.

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "cache/memory_plan.h"
#include "engine/collecting_sink.h"
#include "engine/engine.h"
#include "model/initialize.h"
#include "runner/model_executor.h"
#include "runner/some_ids_for_tests.h"
#include "text/tokenizer.h"
#include "weights/model_presets.h"

namespace baleen::runner {
namespace {

constexpr int64_t kContext = 3000;
// Chunks cut differently sum in another order; over a few layers of random weights that stays here.
constexpr double kLogprobTolerance = 2e-4;

model::Model random_model(const std::string& numerics, int64_t index_topk) {
  ModelConfig config = weights::tiny_config();
  config.index_topk = index_topk;
  model::FreshOptions fresh;
  fresh.seed = 1;
  fresh.matrix_std = 0.15;
  fresh.vector_noise = 0.1;
  model::ForwardConfig forward;
  forward.numerics = numerics;
  forward.max_context = kContext;
  return {model::make_fresh_parameters(config, fresh, at::TensorOptions(at::kFloat)), forward};
}

/// Bytes of a cache with about this many full pages for the tiny model.
int64_t bytes_of(int32_t full_pages, int32_t num_slots, int32_t step_tokens) {
  const cache::CacheShape shape =
      cache::cache_shape(weights::tiny_config(),
                         {.kv = cache::KvFormat::kRawF32, .index = cache::IndexFormat::kRawF32});
  cache::CachePlanOptions plan{
      .max_running_requests = num_slots, .chunk_tokens = step_tokens, .drafts = false};
  int64_t bytes = 1 << 20;
  while (true) {
    try {
      if (cache::fit_cache(shape, bytes, plan).full_pages >= full_pages) {
        return bytes;
      }
    } catch (const ConfigError&) {
      // Not even one page: more.
    }
    bytes += bytes / 16;
  }
}

class Bench {
 public:
  Bench(const std::string& numerics,
        const RunnerConfig& runner,
        int32_t prefill_chunk,
        int64_t index_topk = weights::tiny_config().index_topk) {
    engine::EngineConfig config;
    config.max_prefill_chunk = prefill_chunk;
    engine_ = std::make_unique<engine::Engine>(
        config,
        std::make_unique<ModelExecutor>(random_model(numerics, index_topk), runner, "tiny"),
        text::Tokenizer::load("src/text/testdata/tiny_tokenizer.json"),
        metrics_);
    engine_->start();
  }
  ~Bench() { engine_->stop(); }

  std::shared_ptr<engine::CollectingSink> submit(std::vector<int32_t> prompt,
                                                 int32_t max_new,
                                                 float temperature = 0) {
    engine::GenerationRequest request;
    request.id = std::to_string(next_++);
    request.prompt = std::move(prompt);
    request.max_new_tokens = max_new;
    request.ignore_eos = true;
    request.want_logprobs = true;
    request.sampling.temperature = temperature;
    request.sampling.frequency_penalty = temperature > 0 ? 0.5F : 0.0F;
    request.sampling.seed = 77;
    auto sink = std::make_shared<engine::CollectingSink>();
    const Status status = engine_->submit(std::move(request), sink);
    EXPECT_TRUE(status.ok()) << status.message;
    return sink;
  }

 private:
  MetricRegistry metrics_;
  std::unique_ptr<engine::Engine> engine_;
  int next_ = 0;
};

void expect_same(const engine::CollectingSink& cached,
                 const engine::CollectingSink& cold,
                 const std::string& what) {
  const auto a = cached.tokens();
  const auto b = cold.tokens();
  ASSERT_EQ(cached.ids(), cold.ids()) << what;
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_NEAR(a[i].logprob, b[i].logprob, kLogprobTolerance) << what << " token " << i;
  }
}

TEST(CachedEngineTest, ThirtyTurnsRecomputeAlmostNothing) {
  const RunnerConfig cached_runner{.num_slots = 2,
                                   .max_step_tokens = 512,
                                   .cache_bytes = bytes_of(40, 2, 512),
                                   .paint_pages = true};
  Bench cached("plain", cached_runner, 256);
  Bench cold("plain", {.num_slots = 2, .max_step_tokens = 512}, 256);
  std::vector<int32_t> history;
  int64_t known = 0;       // prompt tokens that an earlier turn has run
  int64_t recomputed = 0;  // of those, run again
  for (int32_t turn = 0; turn < 30; ++turn) {
    const auto told = static_cast<int64_t>(history.size());
    const std::vector<int32_t> added = some_ids(50 + (turn * 13) % 40, turn);
    history.insert(history.end(), added.begin(), added.end());
    const auto a = cached.submit(history, 7);
    const auto b = cold.submit(history, 7);
    a->wait();
    b->wait();
    ASSERT_NO_FATAL_FAILURE(expect_same(*a, *b, "turn " + std::to_string(turn)));
    EXPECT_EQ(b->finish().cached_tokens, 0);
    if (turn > 0) {
      known += told - 1;  // the last token of an answer never ran
      recomputed += told - 1 - a->finish().cached_tokens;
      ASSERT_GE(a->finish().cached_tokens, told - 1 - 4) << "turn " << turn;
    }
    const std::vector<int32_t> answer = a->ids();
    history.insert(history.end(), answer.begin(), answer.end());
  }
  EXPECT_LT(static_cast<double>(recomputed), 0.03 * static_cast<double>(known));
}

TEST(CachedEngineTest, SharedPrefixesInPackedFormatsGiveTheColdTokens) {
  const RunnerConfig runner{.num_slots = 4,
                            .max_step_tokens = 256,
                            .cache_bytes = bytes_of(40, 4, 256),
                            .paint_pages = true};
  Bench cached("reference", runner, 128);
  Bench cold("reference", {.num_slots = 4, .max_step_tokens = 256}, 128);
  const std::vector<int32_t> system = some_ids(600, 3);
  int64_t cached_tokens = 0;
  for (const int32_t keep : {600, 600, 512, 511, 300, 256, 255, 129, 600}) {
    std::vector<int32_t> prompt(system.begin(), system.begin() + keep);
    const std::vector<int32_t> own = some_ids(30, keep);
    prompt.insert(prompt.end(), own.begin(), own.end());
    const auto a = cached.submit(prompt, 5);
    const auto b = cold.submit(prompt, 5);
    a->wait();
    b->wait();
    // Hits lie on multiples of the chunk, so both runs cut alike and rounding to 8 bits cannot turn
    // last-bit differences into whole steps.
    ASSERT_EQ(a->finish().cached_tokens % 128, 0);
    ASSERT_NO_FATAL_FAILURE(expect_same(*a, *b, "keep " + std::to_string(keep)));
    cached_tokens += a->finish().cached_tokens;
  }
  EXPECT_GT(cached_tokens, 2000);
}

TEST(CachedEngineTest, ACrowdedCachePreemptsAndStillAnswersAlike) {
  const RunnerConfig runner{.num_slots = 6,
                            .max_step_tokens = 128,
                            .cache_bytes = bytes_of(9, 6, 128),
                            .paint_pages = true};
  // Which chunks a prompt falls into depends on timing here. Other chunks sum in another order, and
  // two index scores that are as good as equal then change places, with or without a cache: so
  // every entry is picked.
  constexpr int64_t kAllEntries = 512;
  Bench crowded("plain", runner, 64, kAllEntries);
  Bench cold("plain", {.num_slots = 6, .max_step_tokens = 128}, 64, kAllEntries);
  std::vector<std::shared_ptr<engine::CollectingSink>> a;
  std::vector<std::shared_ptr<engine::CollectingSink>> b;
  for (int32_t i = 0; i < 8; ++i) {
    // Each grows over a page border; together they need more pages than there are.
    const std::vector<int32_t> prompt = some_ids(200 + 17 * i, i % 3);
    const float temperature = i % 2 == 0 ? 0.0F : 0.9F;
    a.push_back(crowded.submit(prompt, 120, temperature));
    b.push_back(cold.submit(prompt, 120, temperature));
  }
  for (size_t i = 0; i < a.size(); ++i) {
    a[i]->wait();
    b[i]->wait();
    ASSERT_EQ(a[i]->finish().reason, engine::FinishReason::kLength) << a[i]->finish().error.message;
    ASSERT_NO_FATAL_FAILURE(expect_same(*a[i], *b[i], "request " + std::to_string(i)));
  }
}

TEST(CachedEngineTest, ARequestLargerThanTheCacheEndsWithAnError) {
  const RunnerConfig runner{
      .num_slots = 2, .max_step_tokens = 128, .cache_bytes = bytes_of(2, 2, 128)};
  Bench bench("plain", runner, 64);
  const auto sink = bench.submit(some_ids(1500, 1), 5);
  sink->wait();
  EXPECT_EQ(sink->finish().reason, engine::FinishReason::kError);
  EXPECT_EQ(sink->finish().error.code, StatusCode::kResourceExhausted);
  const auto next = bench.submit(some_ids(50, 1), 5);
  next->wait();
  EXPECT_EQ(next->finish().reason, engine::FinishReason::kLength);
}

}  // namespace
}  // namespace baleen::runner
