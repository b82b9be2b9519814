// One story of prompts that share prefixes, on a small model with every layer kind: each answer is
// that of an engine without a cache. In between, the windows of what has ended are given up while
// the compressed entries stay. The last one is drafted, and most of its drafts are refused.

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cache/cache_audit.h"
#include "cache/memory_plan.h"
#include "engine/collecting_sink.h"
#include "engine/engine_core.h"
#include "model/initialize.h"
#include "runner/model_executor.h"
#include "text/tokenizer.h"
#include "weights/model_presets.h"

namespace baleen::runner {
namespace {

constexpr int32_t kNewTokens = 16;
constexpr double kLogitTolerance = 1e-4;
constexpr int32_t kCaseDrafts = 3;

model::Model case_model() {
  ModelConfig config = weights::tiny_config();
  config.hidden_size = 64;
  config.vocab_size = 1024;
  config.num_hidden_layers = 5;
  config.index_topk = 16;
  config.layers.clear();
  const std::vector<std::pair<LayerKind, int64_t>> kinds = {{LayerKind::kSwa, 0},
                                                            {LayerKind::kC4, 4},
                                                            {LayerKind::kC128, 128},
                                                            {LayerKind::kC4, 4},
                                                            {LayerKind::kC128, 128},
                                                            {LayerKind::kSwa, 0}};  // the last: MTP
  for (const auto& [kind, ratio] : kinds) {
    config.layers.push_back({kind, ratio, config.layers.empty()});
  }
  model::FreshOptions fresh;
  fresh.seed = 1;
  fresh.matrix_std = 0.15;
  fresh.vector_noise = 0.1;
  model::ForwardConfig forward;
  forward.numerics = "plain";
  forward.max_context = 1000;
  forward.with_mtp = true;
  forward.max_rollback = kCaseDrafts;
  return {model::make_fresh_parameters(config, fresh, at::TensorOptions(at::kFloat)), forward};
}

std::vector<int32_t> case_ids(int32_t count, int32_t seed) {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < count; ++i) {
    ids.push_back(10 + (i * 7919 + seed) % 997);
  }
  return ids;
}

std::vector<int32_t> behind(const std::vector<int32_t>& ids,
                            int32_t keep,
                            const std::vector<int32_t>& more) {
  std::vector<int32_t> out(ids.begin(), ids.begin() + keep);
  out.insert(out.end(), more.begin(), more.end());
  return out;
}

/// Drafts of which the first is right and the others are wrong, for a text that is known.
class OneRightDraft {
 public:
  void know(const std::vector<int32_t>& prompt, const std::vector<int32_t>& answer) {
    text_ = behind(prompt, static_cast<int32_t>(prompt.size()), answer);
    chain_begin_ = -1;
  }
  int32_t operator()(int64_t position) {
    // A chain begins at the first position that none has drafted yet, or behind what was refused.
    if (chain_begin_ < 0 || position != last_ + 1 || last_ + 1 - chain_begin_ == kCaseDrafts) {
      chain_begin_ = position;
    }
    last_ = position;
    const int32_t right = text_.at(static_cast<size_t>(position));
    return position == chain_begin_ ? right : (right + 1) % 1000;
  }

 private:
  std::vector<int32_t> text_;
  int64_t chain_begin_ = -1;
  int64_t last_ = -1;
};

/// An engine without its thread.
class CaseEngine {
 public:
  explicit CaseEngine(int64_t cache_bytes, bool overlap)
      : executor_(case_model(),
                  {.num_slots = 2,
                   .max_step_tokens = 512,
                   .cache_bytes = cache_bytes,
                   .paint_pages = cache_bytes > 0,
                   .drafts = {.max_drafts = kCaseDrafts,
                              .replace = [this](RequestSlot,
                                                int64_t position,
                                                int32_t) { return drafts_(position); }}},
                  "case"),
        capacity_(executor_.capacity()),
        metrics_(registry_),
        rules_{.end_token_ids = {},
               .max_context = capacity_.max_context,
               .vocab_size = capacity_.vocab_size},
        core_({.num_slots = 2, .max_step_tokens = 512, .max_prefill_chunk = 256},
              capacity_,
              executor_,
              metrics_,
              [] { return std::chrono::steady_clock::now(); },
              {.overlap = overlap, .drafts = {.max_drafts = kCaseDrafts, .adaptive = false}}) {}

  std::shared_ptr<engine::CollectingSink> add(const std::vector<int32_t>& prompt,
                                              int32_t max_drafts = 0) {
    engine::GenerationRequest request;
    request.id = std::to_string(next_);
    request.prompt = prompt;
    request.max_new_tokens = kNewTokens;
    request.sampling.temperature = 0;
    request.want_logprobs = true;
    request.top_logprobs = 20;
    request.ignore_eos = true;
    request.max_drafts = max_drafts;
    auto sink = std::make_shared<engine::CollectingSink>();
    const engine::EnginePoint now = std::chrono::steady_clock::now();
    core_.add(std::unique_ptr<engine::LiveRequest>(
        new engine::LiveRequest{engine::SequenceId(next_++),
                                engine::Generation(std::move(request), rules_, tokenizer_, 7),
                                sink,
                                now,
                                now}));
    return sink;
  }
  void run() {
    while (core_.has_work()) {
      core_.turn();
      for (engine::Delivery& delivery : core_.deliveries()) {
        delivery.sink->on_event(std::move(delivery.event));
      }
      core_.clear_deliveries();
    }
  }
  std::shared_ptr<engine::CollectingSink> run(const std::vector<int32_t>& prompt,
                                              int32_t max_drafts = 0) {
    auto sink = add(prompt, max_drafts);
    run();
    return sink;
  }
  OneRightDraft& drafts() { return drafts_; }
  cache::SequenceCache& cache() { return *core_.cache(); }

 private:
  OneRightDraft drafts_;
  ModelExecutor executor_;
  engine::ExecutorCapacity capacity_;
  std::shared_ptr<const text::Tokenizer> tokenizer_ =
      text::Tokenizer::load("src/text/testdata/tiny_tokenizer.json");
  MetricRegistry registry_;
  engine::EngineMetrics metrics_;
  engine::GenerationRules rules_;
  engine::EngineCore core_;
  int64_t next_ = 0;
};

void expect_like_cold(const engine::CollectingSink& sink, const std::vector<int32_t>& prompt) {
  CaseEngine cold(0, false);
  const auto wanted = cold.run(prompt);
  ASSERT_EQ(sink.ids(), wanted->ids());
  const auto a = sink.tokens();
  const auto b = wanted->tokens();
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_NEAR(a[i].logprob, b[i].logprob, kLogitTolerance) << "token " << i;
    for (size_t k = 0; k < a[i].top_logprobs.size(); ++k) {
      ASSERT_NEAR(a[i].top_logprobs[k].logprob, b[i].top_logprobs[k].logprob, kLogitTolerance);
    }
  }
}

TEST(CachedCaseTest, PromptsThatShareAPrefixAnswerLikeColdRuns) {
  const std::vector<int32_t> p1 = case_ids(640, 13);
  const std::vector<int32_t> p2 = behind(p1, 512, case_ids(128, 500));
  const std::vector<int32_t> p3 = behind(p1, 300, case_ids(40, 77));
  for (const bool overlap : {false, true}) {
    CaseEngine engine(64 << 20, overlap);
    const cache::PageBudget all = engine.cache().budget();
    const auto step1 = engine.run(p1);
    expect_like_cold(*step1, p1);
    EXPECT_EQ(step1->finish().cached_tokens, 0);
    const auto step2 = engine.run(p2);
    expect_like_cold(*step2, p2);
    EXPECT_GE(step2->finish().cached_tokens, 256);
    EXPECT_LE(step2->finish().cached_tokens, 512);
    ASSERT_TRUE(engine.cache().make_room(0, all.swa())) << "windows of ended requests are in use";
    const auto step4 = engine.run(p3);
    expect_like_cold(*step4, p3);
    EXPECT_LE(step4->finish().cached_tokens, 300);
    const auto step5 = engine.run(p1);
    expect_like_cold(*step5, p1);
    EXPECT_GE(step5->finish().cached_tokens, 512);
    EXPECT_LE(step5->finish().cached_tokens, 639);
    const auto a = engine.add(p2);
    const auto b = engine.add(p3);
    engine.run();
    expect_like_cold(*a, p2);
    expect_like_cold(*b, p3);
    engine.drafts().know(p1, step1->ids());
    const auto step7 = engine.run(p1, kCaseDrafts);
    expect_like_cold(*step7, p1);
    EXPECT_GE(step7->finish().cached_tokens, 512);
    // A token from the prompt, then two a step: of three drafts one stands, of the last two too.
    const engine::DraftCounts drafts = step7->finish().drafts;
    EXPECT_EQ(drafts.verify_steps, 7);
    EXPECT_EQ(drafts.drafted, 6 * kCaseDrafts + 2);
    EXPECT_EQ(drafts.accepted, 7);
    EXPECT_EQ(cache::audit(engine.cache()), "");
    EXPECT_EQ(engine.cache().budget().full(), all.full()) << "what is used is held by the tree";
    EXPECT_EQ(engine.cache().budget().swa(), all.swa());
    engine.cache().flush();
    EXPECT_EQ(engine.cache().budget().free_full, all.free_full);
    EXPECT_EQ(engine.cache().budget().free_swa, all.free_swa);
  }
}

}  // namespace
}  // namespace baleen::runner
