#pragma once
// What the tests of speculation share: an engine over a small random model with its draft layer,
// drafts forced right and wrong, requests with every sampling field, and what makes two answers
// equal. Tests only.
//
//   DraftBench drafted({.max_drafts = 3, .full_pages = 40});
//   expect_same_answer(*drafted.run(request), *plain.run(request), "what");

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
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

using engine::CollectingSink;
using engine::FinishReason;
using engine::GenerationRequest;

/// Sums in fixed order: the answers are equal to the bit.
struct DraftArithmetic {
  const char* numerics = "plain+invariant";
  bool doubles = false;
};

/// `nan_id`: a token whose embedding is not a number; -1: none.
inline model::Model drafting_model(int32_t max_drafts,
                                   const DraftArithmetic& arithmetic = {},
                                   int32_t nan_id = -1) {
  const ModelConfig config = weights::tiny_config();
  model::FreshOptions fresh;
  fresh.seed = 1;
  fresh.matrix_std = 0.15;
  fresh.vector_noise = 0.1;
  model::ForwardConfig forward;
  forward.numerics = arithmetic.numerics;
  forward.compute =
      arithmetic.doubles ? model::ComputeType::kFloat64 : model::ComputeType::kFloat32;
  forward.max_context = 2000;
  forward.record_choices = true;
  forward.with_mtp = max_drafts > 0;
  forward.max_rollback = max_drafts;
  const at::ScalarType dtype = arithmetic.doubles ? at::kDouble : at::kFloat;
  model::ModelParameters params =
      model::make_fresh_parameters(config, fresh, at::TensorOptions(dtype));
  if (nan_id >= 0) {
    params.embed[nan_id].fill_(std::numeric_limits<double>::quiet_NaN());
  }
  return {std::move(params), forward};
}

inline int64_t cache_bytes_of(const model::Model& model,
                              int32_t full_pages,
                              int32_t num_slots,
                              int32_t step_tokens) {
  const cache::CacheShape shape = cache::cache_shape(model.config(), model.cache_formats());
  const cache::CachePlanOptions plan{
      .max_running_requests = num_slots, .chunk_tokens = step_tokens, .drafts = true};
  for (int64_t bytes = 1 << 20;; bytes += bytes / 16) {
    try {
      if (cache::fit_cache(shape, bytes, plan).full_pages >= full_pages) {
        return bytes;
      }
    } catch (const ConfigError&) {
      // Not even one page: more.
    }
  }
}

inline constexpr int32_t kKnownDrafts = 3;

/// Drafts for texts that are known from plain runs, in chains of kKnownDrafts: right for the first
/// so many of a step.
class KnownTexts {
 public:
  void add(const std::vector<int32_t>& prompt, const std::vector<int32_t>& answer) {
    std::lock_guard lock(mutex_);
    text_ = prompt;
    text_.insert(text_.end(), answer.begin(), answer.end());
    step_ = 0;
    last_position_ = -2;
  }
  /// Right drafts per verify step, over and over.
  void set_pattern(std::vector<int32_t> num_right) { pattern_ = std::move(num_right); }

  int32_t replace(int64_t position, int32_t own) {
    std::lock_guard lock(mutex_);
    if (position >= static_cast<int64_t>(text_.size()) || pattern_.empty()) {
      return own;
    }
    if (position != last_position_ + 1 || ++chain_length_ > kKnownDrafts) {
      chain_length_ = 1;
      right_left_ = pattern_[step_++ % pattern_.size()];
    }
    last_position_ = position;
    const int32_t right = text_[static_cast<size_t>(position)];
    return right_left_-- > 0 ? right : (right + 1) % 512;
  }

 private:
  std::mutex mutex_;
  std::vector<int32_t> text_;
  std::vector<int32_t> pattern_;
  size_t step_ = 0;
  int64_t last_position_ = -2;
  int32_t chain_length_ = 0;
  int32_t right_left_ = 0;
};

struct DraftBenchOptions {
  int32_t max_drafts = 0;
  int32_t num_slots = 2;
  int32_t step_tokens = 256;
  int32_t chunk = 128;
  int32_t full_pages = 0;  // 0: every sequence has memory of its own
  bool adaptive = false;
  bool overlap = true;
  int32_t nan_id = -1;
  DraftArithmetic arithmetic = {};
  DraftSampling sampling = DraftSampling::kCoupled;
  std::function<int32_t(RequestSlot, int64_t, int32_t)> replace = {};
};

/// Rows that a step planned ahead, and those of them that lay further on than planned.
struct RowsAhead {
  std::atomic<int64_t> verify = 0;
  std::atomic<int64_t> moved = 0;
};

/// Looks at what passes.
class WatchedExecutor final : public engine::Executor {
 public:
  WatchedExecutor(std::unique_ptr<ModelExecutor> inner, RowsAhead& ahead)
      : inner_(std::move(inner)), ahead_(ahead) {}
  engine::ExecutorCapacity capacity() const override { return inner_->capacity(); }
  engine::ExecutorInfo info() const override { return inner_->info(); }
  cache::PageObserver* page_observer() override { return inner_->page_observer(); }
  engine::Ticket submit(const engine::BatchPlan& plan, const engine::MaskProvider& masks) override {
    for (const engine::BatchRow& row : plan.rows) {
      if (row.follows >= 0 && row.kind == engine::RowKind::kVerify) {
        ++ahead_.verify;
        ahead_.moved += before_.at(static_cast<size_t>(row.follows)) > 1 ? 1 : 0;
      }
    }
    return inner_->submit(plan, masks);
  }
  engine::StepResult wait(engine::Ticket ticket) override {
    engine::StepResult result = inner_->wait(ticket);
    before_.clear();
    for (const engine::RowResult& row : result.rows) {
      before_.push_back(row.ids.size());
    }
    return result;
  }

 private:
  std::unique_ptr<ModelExecutor> inner_;
  RowsAhead& ahead_;
  std::vector<size_t> before_;  // tokens of the rows of the latest step
};

class DraftBench {
 public:
  explicit DraftBench(const DraftBenchOptions& options) {
    engine::EngineConfig config;
    config.max_prefill_chunk = options.chunk;
    config.adaptive_drafts = options.adaptive;
    config.overlap = options.overlap;
    RunnerConfig runner;
    runner.num_slots = options.num_slots;
    runner.max_step_tokens = options.step_tokens;
    model::Model model = drafting_model(options.max_drafts, options.arithmetic, options.nan_id);
    if (options.full_pages > 0) {
      runner.cache_bytes =
          cache_bytes_of(model, options.full_pages, options.num_slots, options.step_tokens);
    }
    runner.paint_pages = true;
    runner.drafts.max_drafts = options.max_drafts;
    runner.drafts.sampling = options.sampling;
    runner.drafts.replace = options.replace;
    engine_ = std::make_unique<engine::Engine>(
        config,
        std::make_unique<WatchedExecutor>(
            std::make_unique<ModelExecutor>(std::move(model), runner, "tiny"), ahead_),
        text::Tokenizer::load("src/text/testdata/tiny_tokenizer.json"),
        metrics_);
    engine_->start();
  }
  ~DraftBench() { engine_->stop(); }

  std::shared_ptr<CollectingSink> submit(GenerationRequest request) {
    request.id = std::to_string(next_++);
    auto sink = std::make_shared<CollectingSink>();
    const Status status = engine_->submit(std::move(request), sink);
    EXPECT_TRUE(status.ok()) << status.message;
    return sink;
  }
  std::shared_ptr<CollectingSink> run(GenerationRequest request) {
    auto sink = submit(std::move(request));
    sink->wait();
    return sink;
  }
  std::string metrics() const { return metrics_.expose(); }
  engine::EngineStats stats() const { return engine_->stats(); }
  const RowsAhead& ahead() const { return ahead_; }
  void abort(const std::string& id) { engine_->abort(id); }
  std::string last_id() const { return std::to_string(next_ - 1); }
  /// No step is run, requests are queued.
  void pause(engine::PauseMode mode = engine::PauseMode::kInPlace) {
    EXPECT_TRUE(engine_->pause(mode).ok());
  }
  void flush_cache() { EXPECT_TRUE(engine_->flush_cache().ok()); }
  void resume() { EXPECT_TRUE(engine_->resume().ok()); }

 private:
  MetricRegistry metrics_;
  RowsAhead ahead_;
  std::unique_ptr<engine::Engine> engine_;
  int next_ = 0;
};

inline GenerationRequest greedy_request(std::vector<int32_t> prompt, int32_t max_new) {
  GenerationRequest request;
  request.prompt = std::move(prompt);
  request.max_new_tokens = max_new;
  request.ignore_eos = true;
  request.want_logprobs = true;
  request.top_logprobs = 3;
  request.want_routes = true;
  request.want_picks = true;
  request.sampling.temperature = 0.0F;
  request.sampling.seed = 77;
  return request;
}

/// One request per sampling field, and one with all.
inline std::vector<GenerationRequest> requests_of_all_kinds(int32_t max_new) {
  std::vector<GenerationRequest> requests;
  for (int32_t i = 0; i < 8; ++i) {
    GenerationRequest request = greedy_request(some_ids(9 + 31 * i, i), max_new);
    engine::SamplingConfig& s = request.sampling;
    s.temperature = i == 0 ? 0.0F : 0.8F;
    s.top_k = i == 2 || i == 7 ? 12 : -1;
    s.top_p = i == 3 || i == 7 ? 0.8F : 1.0F;
    s.min_p = i == 4 || i == 7 ? 0.05F : 0.0F;
    s.frequency_penalty = i == 5 || i == 7 ? 1.1F : 0.0F;
    s.presence_penalty = i == 5 ? -0.5F : 0.0F;
    s.repetition_penalty = i == 6 || i == 7 ? 1.3F : 1.0F;
    if (i >= 6) {
      s.logit_bias = {{3, 2.5F}, {100, 1.5F}};
      s.sample_index = i;
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

inline void expect_same_answer(const CollectingSink& drafted,
                               const CollectingSink& plain,
                               const std::string& what) {
  ASSERT_EQ(drafted.ids(), plain.ids()) << what;
  const auto a = drafted.tokens();
  const auto b = plain.tokens();
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].logprob, b[i].logprob) << what << " token " << i;
    ASSERT_EQ(a[i].top_logprobs.size(), b[i].top_logprobs.size()) << what << " token " << i;
    for (size_t k = 0; k < a[i].top_logprobs.size(); ++k) {
      ASSERT_EQ(a[i].top_logprobs[k].id, b[i].top_logprobs[k].id) << what << " token " << i;
      ASSERT_EQ(a[i].top_logprobs[k].logprob, b[i].top_logprobs[k].logprob)
          << what << " token " << i;
    }
  }
  const engine::FinishInfo end_a = drafted.finish();
  const engine::FinishInfo end_b = plain.finish();
  ASSERT_EQ(end_a.reason, end_b.reason) << what << ": " << end_a.error.message;
  ASSERT_EQ(end_a.matched_stop, end_b.matched_stop) << what;
  ASSERT_EQ(end_a.matched_stop_token, end_b.matched_stop_token) << what;
  ASSERT_EQ(end_a.message.content, end_b.message.content) << what;
  ASSERT_EQ(end_a.completion_tokens, end_b.completion_tokens) << what;
  // One record of each position that ran and stands: refused drafts leave none.
  ASSERT_TRUE(end_a.choices && end_b.choices) << what;
  ASSERT_EQ(end_a.choices->count, end_a.prompt_tokens + end_a.completion_tokens - 1) << what;
  ASSERT_EQ(*end_a.choices, *end_b.choices) << what;
}

}  // namespace baleen::runner
