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

/// How the model computes, and how far a log-prob of the cached engine may lie from the cold one's.
struct Arithmetic {
  std::string numerics;
  bool doubles = false;
  double tolerance = kLogprobTolerance;
};

/// Sums in fixed order: nothing may differ.
const std::vector<Arithmetic>& fixed_order() {
  static const std::vector<Arithmetic> all = {{"plain+invariant", true, 0.0},
                                              {"reference+invariant", true, 0.0},
                                              {"reference+invariant", false, 0.0}};
  return all;
}

model::Model random_model(const Arithmetic& arithmetic, int64_t index_topk) {
  ModelConfig config = weights::tiny_config();
  config.index_topk = index_topk;
  model::FreshOptions fresh;
  fresh.seed = 1;
  fresh.matrix_std = 0.15;
  fresh.vector_noise = 0.1;
  model::ForwardConfig forward;
  forward.numerics = arithmetic.numerics;
  forward.max_context = kContext;
  forward.compute =
      arithmetic.doubles ? model::ComputeType::kFloat64 : model::ComputeType::kFloat32;
  forward.record_choices = true;
  const at::ScalarType dtype = arithmetic.doubles ? at::kDouble : at::kFloat;
  return {model::make_fresh_parameters(config, fresh, at::TensorOptions(dtype)), forward};
}

/// Bytes of a cache with about this many full pages for the tiny model.
int64_t bytes_of(int32_t full_pages,
                 int32_t num_slots,
                 int32_t step_tokens,
                 const cache::CacheFormats& formats) {
  const cache::CacheShape shape = cache::cache_shape(weights::tiny_config(), formats);
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
  /// `full_pages` of cache, in the formats of the model; 0: none.
  Bench(const Arithmetic& arithmetic,
        RunnerConfig runner,
        int32_t full_pages,
        int32_t prefill_chunk,
        int64_t index_topk = weights::tiny_config().index_topk) {
    model::Model model = random_model(arithmetic, index_topk);
    if (full_pages > 0) {
      runner.cache_bytes =
          bytes_of(full_pages, runner.num_slots, runner.max_step_tokens, model.cache_formats());
      runner.paint_pages = true;
    }
    engine::EngineConfig config;
    config.max_prefill_chunk = prefill_chunk;
    engine_ = std::make_unique<engine::Engine>(
        config,
        std::make_unique<ModelExecutor>(std::move(model), runner, "tiny"),
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
    request.want_routes = true;
    request.want_picks = true;
    request.sampling.temperature = temperature;
    request.sampling.frequency_penalty = temperature > 0 ? 0.5F : 0.0F;
    request.sampling.seed = 77;
    auto sink = std::make_shared<engine::CollectingSink>();
    const Status status = engine_->submit(std::move(request), sink);
    EXPECT_TRUE(status.ok()) << status.message;
    return sink;
  }
  engine::Engine& engine() { return *engine_; }

 private:
  MetricRegistry metrics_;
  std::unique_ptr<engine::Engine> engine_;
  int next_ = 0;
};

void expect_same(const engine::CollectingSink& cached,
                 const engine::CollectingSink& cold,
                 double tolerance,
                 const std::string& what) {
  const auto a = cached.tokens();
  const auto b = cold.tokens();
  ASSERT_EQ(cached.ids(), cold.ids()) << what;
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_LE(std::abs(a[i].logprob - b[i].logprob), tolerance) << what << " token " << i;
  }
  // Experts and entries: positions of the prompt that another sequence ran included.
  const auto& found = cached.finish().choices;
  const auto& expected = cold.finish().choices;
  ASSERT_TRUE(found && expected) << what;
  ASSERT_EQ(found->first_position, 0);
  ASSERT_EQ(found->count, static_cast<int32_t>(cold.finish().prompt_tokens + b.size() - 1)) << what;
  if (tolerance == 0.0) {
    ASSERT_EQ(*found, *expected) << what;
  }
}

void expect_turns_alike(const Arithmetic& arithmetic,
                        int32_t turns,
                        int32_t full_pages,
                        int32_t cold_chunk) {
  const RunnerConfig runner{.num_slots = 2, .max_step_tokens = 512};
  Bench cached(arithmetic, runner, full_pages, 256);
  Bench cold(arithmetic, runner, /*full_pages=*/0, cold_chunk);
  std::vector<int32_t> history;
  int64_t known = 0;       // prompt tokens that an earlier turn has run
  int64_t recomputed = 0;  // of those, run again
  for (int32_t turn = 0; turn < turns; ++turn) {
    const auto told = static_cast<int64_t>(history.size());
    const std::vector<int32_t> added = some_ids(50 + (turn * 13) % 40, turn);
    history.insert(history.end(), added.begin(), added.end());
    const auto a = cached.submit(history, 7);
    const auto b = cold.submit(history, 7);
    a->wait();
    b->wait();
    ASSERT_NO_FATAL_FAILURE(expect_same(
        *a, *b, arithmetic.tolerance, arithmetic.numerics + " turn " + std::to_string(turn)));
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

TEST(CachedEngineTest, ThirtyTurnsRecomputeAlmostNothing) {
  expect_turns_alike({.numerics = "plain"}, 30, /*full_pages=*/40, /*cold_chunk=*/256);
}

TEST(CachedEngineTest, InFixedOrderTurnsGiveTheColdBits) {
  for (const Arithmetic& arithmetic : fixed_order()) {
    // Resume points keep their rows in the compute type, wide beside packed pages: more pages make
    // room for enough of them.
    expect_turns_alike(arithmetic, 6, /*full_pages=*/160, /*cold_chunk=*/77);
  }
}

void expect_prefixes_alike(const Arithmetic& arithmetic,
                           const std::vector<int32_t>& kept,
                           int32_t cold_chunk) {
  const RunnerConfig runner{.num_slots = 4, .max_step_tokens = 256};
  Bench cached(arithmetic, runner, /*full_pages=*/40, 128);
  Bench cold(arithmetic, runner, /*full_pages=*/0, cold_chunk);
  const std::vector<int32_t> system = some_ids(600, 3);
  int64_t cached_tokens = 0;
  for (const int32_t keep : kept) {
    std::vector<int32_t> prompt(system.begin(), system.begin() + keep);
    const std::vector<int32_t> own = some_ids(30, keep);
    prompt.insert(prompt.end(), own.begin(), own.end());
    const auto a = cached.submit(prompt, 5);
    const auto b = cold.submit(prompt, 5);
    a->wait();
    b->wait();
    ASSERT_EQ(a->finish().cached_tokens % 128, 0);
    ASSERT_NO_FATAL_FAILURE(expect_same(
        *a, *b, arithmetic.tolerance, arithmetic.numerics + " keep " + std::to_string(keep)));
    cached_tokens += a->finish().cached_tokens;
  }
  EXPECT_GT(cached_tokens, 2000);
}

TEST(CachedEngineTest, SharedPrefixesInPackedFormatsGiveTheColdTokens) {
  // Hits lie on multiples of the chunk, so both runs cut alike and rounding to 8 bits cannot turn
  // last-bit differences into whole steps.
  expect_prefixes_alike(
      {.numerics = "reference"}, {600, 600, 512, 511, 300, 256, 255, 129, 600}, 128);
}

TEST(CachedEngineTest, InFixedOrderSharedPrefixesGiveTheColdBitsOfOtherChunks) {
  for (const Arithmetic& arithmetic : fixed_order()) {
    expect_prefixes_alike(arithmetic, {600, 600, 511, 300, 255, 600, 600}, 50);
  }
}

void expect_crowd_alike(const Arithmetic& arithmetic, int32_t cold_chunk, int64_t index_topk) {
  const RunnerConfig runner{.num_slots = 6, .max_step_tokens = 128};
  Bench crowded(arithmetic, runner, /*full_pages=*/9, 64, index_topk);
  Bench cold(arithmetic, runner, /*full_pages=*/0, cold_chunk, index_topk);
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
    ASSERT_NO_FATAL_FAILURE(expect_same(
        *a[i], *b[i], arithmetic.tolerance, arithmetic.numerics + " request " + std::to_string(i)));
  }
}

TEST(CachedEngineTest, ACrowdedCachePreemptsAndStillAnswersAlike) {
  // Which chunks a prompt falls into depends on timing here. Other chunks sum in another order, and
  // two index scores that are as good as equal then change places, with or without a cache: so
  // every entry is picked.
  constexpr int64_t kAllEntries = 512;
  expect_crowd_alike({.numerics = "plain"}, 64, kAllEntries);
}

TEST(CachedEngineTest, InFixedOrderACrowdedCachePreemptsAndGivesTheColdBits) {
  for (const Arithmetic& arithmetic : fixed_order()) {
    expect_crowd_alike(arithmetic, 37, weights::tiny_config().index_topk);
  }
}

TEST(CachedEngineTest, ARequestLargerThanTheCacheIsRefusedOrEndsWithIt) {
  Bench bench({.numerics = "plain"}, {.num_slots = 2, .max_step_tokens = 128}, 2, 64);
  const auto context = static_cast<int32_t>(bench.engine().stats().capacity.max_context);
  ASSERT_GE(context, 512);
  ASSERT_LT(context, 1500);
  ASSERT_EQ(context % 256, 0);
  engine::GenerationRequest request;
  request.id = "too long";
  request.prompt = some_ids(1500, 1);
  const Status status = bench.engine().submit(request, std::make_shared<engine::CollectingSink>());
  EXPECT_EQ(status.code, StatusCode::kInvalidArgument);
  EXPECT_EQ(status.param, "prompt");
  EXPECT_EQ(status.api_code, "context_length_exceeded");
  for (int again = 0; again < 2; ++again) {
    const auto filling = bench.submit(some_ids(context - 20, 1), 50);
    filling->wait();
    EXPECT_EQ(filling->finish().reason, engine::FinishReason::kLength)
        << filling->finish().error.message;
    EXPECT_EQ(filling->finish().completion_tokens, 20);
  }
  const auto next = bench.submit(some_ids(50, 1), 5);
  next->wait();
  EXPECT_EQ(next->finish().reason, engine::FinishReason::kLength);
}

}  // namespace
}  // namespace baleen::runner
