// The engine with decode rows on kernels: a checkpoint of Flash's widths (window, kC4, kC128, kC4;
// 64 narrow experts, a small vocabulary) on one GPU. Prompts run in the model's body and answers
// through the captured graphs over the same pages, so what is held against the model in double
// crosses from one to the other at every length. Freed pages are painted: a stale row is NaN.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include "base/metrics.h"
#include "cache/allocation_counter.h"
#include "cache/memory_plan.h"
#include "device/cuda_check.h"
#include "engine/collecting_sink.h"
#include "engine/engine.h"
#include "model/forward.h"
#include "model/load_parameters.h"
#include "model/parameters.h"
#include "ops/rope.h"
#include "runner/decode/kernel_decode.h"
#include "runner/model_executor.h"
#include "runner/some_ids_for_tests.h"
#include "text/tokenizer.h"
#include "weights/model_presets.h"
#include "weights/synth.h"

namespace baleen::runner {
namespace {

constexpr int64_t kMostContext = 6000;  // two context shapes

std::filesystem::path narrow_flash_folder() {
  return std::filesystem::temp_directory_path() / "baleen_narrow_flash";
}

class KernelEngine {
 public:
  KernelEngine(const model::ModelParameters& weights,
               bool kernels,
               RunnerConfig runner,
               int32_t chunk) {
    const int32_t drafts = runner.drafts.max_drafts;
    model::ForwardConfig forward;
    forward.device = "cuda";
    forward.max_context = kMostContext;
    forward.with_mtp = drafts > 0;
    forward.max_rollback = drafts;
    model::Model model(weights, forward);
    if (kernels) {
      EXPECT_EQ(kernel_decode_refusal(model.config(), model.cache_formats(), model.numerics_name()),
                "");
      runner.decode_path = kernel_decode();
    }
    runner.paint_pages = true;
    runner.weights_folder = narrow_flash_folder().string();
    auto executor = std::make_unique<ModelExecutor>(std::move(model), runner, "flash");
    executor_ = executor.get();
    engine::EngineConfig config;
    config.max_prefill_chunk = chunk;
    engine_ = std::make_unique<engine::Engine>(
        config,
        std::move(executor),
        text::Tokenizer::load("src/text/testdata/tiny_tokenizer.json"),
        metrics_);
    engine_->start();
  }
  ~KernelEngine() { engine_->stop(); }

  std::shared_ptr<engine::CollectingSink> submit(const std::vector<int32_t>& prompt,
                                                 int32_t tokens) {
    engine::GenerationRequest request;
    request.id = std::to_string(next_++);
    request.prompt = prompt;
    request.max_new_tokens = tokens;
    request.ignore_eos = true;
    request.want_logprobs = true;
    request.sampling.temperature = 0;
    auto sink = std::make_shared<engine::CollectingSink>();
    const Status status = engine_->submit(std::move(request), sink);
    EXPECT_TRUE(status.ok()) << status.message;
    return sink;
  }
  void abort_latest() { engine_->abort(std::to_string(next_ - 1)); }
  engine::Engine& engine() { return *engine_; }
  /// While no request runs.
  int64_t kernel_rows() const { return executor_->rows_of_decode_path(); }

 private:
  MetricRegistry metrics_;
  const ModelExecutor* executor_ = nullptr;
  std::unique_ptr<engine::Engine> engine_;
  int next_ = 0;
};

/// Distances of greedy answers from the model in double, given the same tokens before.
struct Distances {
  double square = 0.0;      // of the chosen tokens' log-probs
  double gap_square = 0.0;  // of the shortfalls of chosen tokens behind the best one in double
  double worst_gap = 0.0;   // the largest of them; grows with the number of tokens, so not compared
  int64_t best = 0;         // chosen tokens that are the best one in double
  int64_t count = 0;

  double rms() const { return std::sqrt(square / static_cast<double>(count)); }
  double gap_rms() const { return std::sqrt(gap_square / static_cast<double>(count)); }
  double agreement() const { return static_cast<double>(best) / static_cast<double>(count); }
};

class NarrowFlashGpu : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    std::filesystem::remove_all(narrow_flash_folder());
    ModelConfig config = weights::flash_4layer_config();  // window, kC4, kC128, kC4
    config.index_topk = 64;
    config.n_routed_experts = 64;
    config.moe_intermediate_size = 512;
    config.vocab_size = 512;
    weights::SynthOptions options;
    options.num_threads = 16;
    weights::write_synthetic(narrow_flash_folder(), config, options);
    const c10::InferenceMode inference;
    weights_ = std::make_unique<model::ModelParameters>(
        model::load_parameters(narrow_flash_folder(),
                               at::TensorOptions(at::kFloat).device(at::kCUDA),
                               /*with_mtp=*/true));
    model::ModelParameters doubles = *weights_;
    model::convert_parameters(doubles, at::kDouble, at::Device(at::kCUDA, 0));
    model::ForwardConfig forward;
    forward.device = "cuda";
    forward.compute = model::ComputeType::kFloat64;
    reference_ = std::make_unique<model::Model>(std::move(doubles), forward);
  }
  static void TearDownTestSuite() {
    reference_.reset();
    weights_.reset();
    std::filesystem::remove_all(narrow_flash_folder());
  }

  /// Adds the answer to a prompt to `distances`.
  static void measure(const std::vector<int32_t>& prompt,
                      const engine::CollectingSink& answer,
                      Distances& distances) {
    const auto tokens = answer.tokens();
    std::vector<int32_t> ids = prompt;
    for (const auto& token : tokens) {
      ids.push_back(token.id);
    }
    model::Sequence sequence = reference_->new_sequence();
    model::ForwardOutput output;
    const model::RowInput row{.sequence = &sequence,
                              .ids = std::span<const int32_t>(ids),
                              .logits = model::LogitsWanted::kAll};
    reference_->forward({&row, 1}, output);
    const auto vocab = static_cast<std::size_t>(output.vocab_size);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const double* logits = output.logits_f64.data() + (prompt.size() - 1 + i) * vocab;
      const double best = *std::max_element(logits, logits + vocab);
      double sum = 0.0;
      for (std::size_t v = 0; v < vocab; ++v) {
        sum += std::exp(logits[v] - best);
      }
      const double chosen = logits[tokens[i].id];
      const double error = tokens[i].logprob - (chosen - best - std::log(sum));
      distances.square += error * error;
      distances.gap_square += (best - chosen) * (best - chosen);
      distances.worst_gap = std::max(distances.worst_gap, best - chosen);
      distances.best += chosen == best ? 1 : 0;
      ++distances.count;
    }
  }

  static void print(const char* what, const Distances& distances) {
    std::printf(
        "%s: %lld tokens, log-prob rms from double %.4f, best token %.3f, gap rms %.4f worst "
        "%.3f\n",
        what,
        static_cast<long long>(distances.count),
        distances.rms(),
        distances.agreement(),
        distances.gap_rms(),
        distances.worst_gap);
  }

  // Both engines round at the same points; a last bit that falls the other way becomes a whole step
  // of bf16, e4m3 or e2m1 in either. The kernels have one rounding more (the weights of attention)
  // and sums of tensor cores, so twice the distance of the body in float is allowed, as for logits.
  static void expect_close(const Distances& kernels, const Distances& body) {
    print("kernels", kernels);
    print("body", body);
    EXPECT_LE(kernels.rms(), 2 * body.rms());
    EXPECT_LE(kernels.gap_rms(), 2 * body.gap_rms());
    EXPECT_GE(kernels.agreement(), body.agreement() - 0.1);
  }

  static inline std::unique_ptr<model::ModelParameters> weights_;  // float; engines share them
  static inline std::unique_ptr<model::Model> reference_;          // double
};

const RunnerConfig kWide{.num_slots = 6, .max_step_tokens = 256, .cache_bytes = 512 << 20};

TEST_F(NarrowFlashGpu, AnswersAreAsCloseToDoubleAsTheBodys) {
  Distances of_kernels;
  Distances of_body;
  for (const bool kernels : {true, false}) {
    KernelEngine engine(*weights_, kernels, kWide, 256);
    std::vector<std::vector<int32_t>> prompts;
    std::vector<std::shared_ptr<engine::CollectingSink>> answers;
    // Below and over a group, the window, a page; past 64 entries of ratio 4, so that picks count.
    for (const int32_t length : {1, 3, 100, 126, 254, 300, 777}) {
      prompts.push_back(some_ids(length, length));
      answers.push_back(engine.submit(prompts.back(), 160));
    }
    for (std::size_t i = 0; i < answers.size(); ++i) {
      answers[i]->wait();
      ASSERT_EQ(answers[i]->finish().reason, engine::FinishReason::kLength)
          << answers[i]->finish().error.message;
      measure(prompts[i], *answers[i], kernels ? of_kernels : of_body);
    }
    EXPECT_EQ(engine.kernel_rows(), kernels ? 7 * 159 : 0);  // the first one comes with the prompt
  }
  expect_close(of_kernels, of_body);
}

TEST_F(NarrowFlashGpu, TurnsHitTheCacheWhereTheBodysDo) {
  KernelEngine kernels(*weights_, true, kWide, 256);
  KernelEngine body(*weights_, false, kWide, 256);
  Distances of_kernels;
  Distances of_body;
  std::vector<int32_t> history;
  for (int32_t turn = 0; turn < 6; ++turn) {
    const auto told = static_cast<int64_t>(history.size());
    const std::vector<int32_t> added = some_ids(60 + (turn * 13) % 40, turn);
    history.insert(history.end(), added.begin(), added.end());
    const int32_t tokens = turn == 2 ? 300 : 30;
    const auto a = kernels.submit(history, tokens);
    const auto b = body.submit(history, tokens);
    a->wait();
    b->wait();
    ASSERT_EQ(a->finish().reason, engine::FinishReason::kLength) << a->finish().error.message;
    ASSERT_NO_FATAL_FAILURE(measure(history, *a, of_kernels));
    ASSERT_NO_FATAL_FAILURE(measure(history, *b, of_body));
    if (turn > 0) {
      ASSERT_GE(a->finish().cached_tokens, told - 1 - 4) << "turn " << turn;
    }
    // The text goes on by the kernels' answer; the body's prefix then ends where the two differ.
    const std::vector<int32_t> answer = a->ids();
    history.insert(history.end(), answer.begin(), answer.end());
  }
  expect_close(of_kernels, of_body);
}

TEST_F(NarrowFlashGpu, ACrowdWithAbortsOnASmallCacheAnswersAndGivesEveryPageBack) {
  KernelEngine kernels(
      *weights_, true, {.num_slots = 6, .max_step_tokens = 128, .cache_bytes = 96 << 20}, 64);
  KernelEngine body(*weights_, false, kWide, 64);
  const std::vector<int32_t> shared = some_ids(600, 5);
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::shared_ptr<engine::CollectingSink>> sinks;
  Distances of_kernels;
  Distances of_body;
  for (int32_t i = 0; i < 16; ++i) {
    std::vector<int32_t> prompt(shared.begin(), shared.begin() + 60 * (i % 7));
    const std::vector<int32_t> own = some_ids(150 + 9 * i, i);
    prompt.insert(prompt.end(), own.begin(), own.end());
    prompts.push_back(prompt);
    sinks.push_back(kernels.submit(prompt, 120));
    if (i % 4 == 3) {
      sinks.back()->wait_for_tokens(5, std::chrono::seconds(60));
      kernels.abort_latest();
    }
  }
  for (std::size_t i = 0; i < sinks.size(); ++i) {
    sinks[i]->wait();
    const engine::FinishInfo finish = sinks[i]->finish();
    if (i % 4 == 3) {
      EXPECT_EQ(finish.reason, engine::FinishReason::kAbort) << finish.error.message;
    } else {
      ASSERT_EQ(finish.reason, engine::FinishReason::kLength) << finish.error.message;
    }
    measure(prompts[i], *sinks[i], of_kernels);
  }
  for (std::size_t i = 0; i < 4; ++i) {
    const auto alone = body.submit(prompts[i], 120);
    alone->wait();
    measure(prompts[i], *alone, of_body);
  }
  expect_close(of_kernels, of_body);
  for (int32_t i = 0; i < 500 && kernels.engine().stats().num_running > 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(kernels.engine().stats().num_used_tokens, 0);
}

TEST_F(NarrowFlashGpu, DraftsAreVerifiedByKernels) {
  Distances of_kernels;
  Distances of_body;
  for (const bool kernels : {true, false}) {
    RunnerConfig runner = kWide;
    runner.drafts.max_drafts = 3;
    KernelEngine engine(*weights_, kernels, runner, 256);
    std::vector<std::vector<int32_t>> prompts;
    std::vector<std::shared_ptr<engine::CollectingSink>> answers;
    for (const int32_t length : {1, 100, 253, 300, 500}) {
      prompts.push_back(some_ids(length, length));
      answers.push_back(engine.submit(prompts.back(), 140));
    }
    for (std::size_t i = 0; i < answers.size(); ++i) {
      answers[i]->wait();
      ASSERT_EQ(answers[i]->finish().reason, engine::FinishReason::kLength)
          << answers[i]->finish().error.message;
      measure(prompts[i], *answers[i], kernels ? of_kernels : of_body);
    }
    EXPECT_EQ(engine.kernel_rows() > 200, kernels);
  }
  expect_close(of_kernels, of_body);
}

TEST_F(NarrowFlashGpu, AStepAfterTheFirstAllocatesNothing) {
  model::ForwardConfig forward;
  forward.device = "cuda";
  forward.max_context = kMostContext;
  model::Model model(*weights_, forward);
  constexpr int32_t kSlots = 4;
  const cache::CacheSizes sizes =
      cache::fit_cache(cache::cache_shape(model.config(), model.cache_formats()),
                       256 << 20,
                       {.max_running_requests = kSlots, .chunk_tokens = 64, .drafts = false});
  cache::PoolMemory pools = model.make_pools(sizes, /*paint=*/false);
  const ModelConfig& config = model.config();
  const std::unique_ptr<DecodePath> path =
      kernel_decode()({.config = config,
                       .pools = pools,
                       .folder = narrow_flash_folder().string(),
                       .num_slots = kSlots,
                       .max_context = kMostContext,
                       .plain_frequencies = ops::rope_frequencies(
                           config.qk_rope_head_dim, config.rope_theta, std::nullopt),
                       .compressed_frequencies = ops::rope_frequencies(
                           config.qk_rope_head_dim, config.compress_rope_theta, config.yarn)});
  for (int32_t slot = 0; slot < kSlots; ++slot) {
    path->change_page({.slot = RequestSlot(slot),
                       .block = 0,
                       .full = cache::FullPage(1 + slot),
                       .swa = cache::SwaPage(1 + slot)});
  }
  engine::SamplingRow greedy;
  greedy.temperature = 0.0F;
  engine::SamplingRow warm;
  warm.want_logprobs = true;
  warm.top_logprobs = 5;
  const std::vector<int32_t> ids = some_ids(kSlots, 3);
  std::vector<DecodeRow> rows;
  int64_t allocations = 0;
  std::size_t device_before = 0;
  std::size_t device_after = 0;
  std::size_t total = 0;
  for (int32_t position = 0; position < 200; ++position) {
    rows.clear();
    // One row gives its logits to the host; the number of rows changes.
    for (int32_t slot = 0; slot < kSlots - position % 2; ++slot) {
      rows.push_back({.ids = std::span(ids).subspan(static_cast<std::size_t>(slot), 1),
                      .slot = RequestSlot(slot),
                      .position = position,
                      .draw = slot == 0   ? nullptr
                              : slot == 1 ? &warm
                                          : &greedy});
    }
    if (position == 8) {
      allocations = cache::num_allocations();
      BALEEN_CUDA_CHECK(cudaMemGetInfo(&device_before, &total));
    }
    path->run(rows);
  }
  EXPECT_EQ(cache::num_allocations(), allocations);
  BALEEN_CUDA_CHECK(cudaMemGetInfo(&device_after, &total));
  EXPECT_EQ(device_after, device_before);
}

TEST_F(NarrowFlashGpu, ContextsOfTheSecondShapeRun) {
  Distances of_kernels;
  Distances of_body;
  for (const bool kernels : {true, false}) {
    KernelEngine engine(*weights_,
                        kernels,
                        {.num_slots = 2, .max_step_tokens = 1024, .cache_bytes = 512 << 20},
                        1024);
    const std::vector<int32_t> prompt = some_ids(4080, 2);  // crosses 4,096 in the answer
    const auto answer = engine.submit(prompt, 60);
    answer->wait();
    ASSERT_EQ(answer->finish().reason, engine::FinishReason::kLength)
        << answer->finish().error.message;
    measure(prompt, *answer, kernels ? of_kernels : of_body);
  }
  expect_close(of_kernels, of_body);
}

}  // namespace
}  // namespace baleen::runner
