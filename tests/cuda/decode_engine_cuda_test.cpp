// The engine on kernels: a checkpoint of Flash's widths (window, kC4, kC128, kC4; 64 narrow
// experts, a small vocabulary) on one GPU, prompts in passes, answers through captured graphs,
// drafts by the draft layer, all over the pages of the cache. Every text that comes out is run once
// more by the body in float and in double: at the same tokens the kernels must be about as far from
// double as the body in float is. Freed pages are painted: a stale row is NaN.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <iterator>
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
#include "cache/pick_codec.h"
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
  KernelEngine(const model::ModelParameters& weights, const RunnerConfig& runner, int32_t chunk)
      : KernelEngine(model::Model(weights, forward_config(runner)), runner, chunk) {}
  /// With nothing but what the kernels hold, from the files.
  KernelEngine(const std::string& numerics,
               const RunnerConfig& runner,
               int32_t chunk,
               bool record_choices = false)
      : KernelEngine(model::Model::load(narrow_flash_folder(),
                                        forward_config(runner, numerics, false, record_choices)),
                     runner,
                     chunk) {}
  KernelEngine(model::Model model, RunnerConfig runner, int32_t chunk) {
    EXPECT_EQ(
        kernel_decode_refusal(
            model.config(), model.cache_formats(), model.numerics_name(), model.max_context()),
        "");
    runner.decode_path = kernel_decode();
    runner.paint_pages = true;
    runner.weights_folder = narrow_flash_folder().string();
    auto executor = std::make_unique<ModelExecutor>(std::move(model), runner, "flash");
    executor_ = executor.get();
    engine::EngineConfig config;
    config.max_prefill_chunk = chunk;
    config.adaptive_drafts = false;
    engine_ = std::make_unique<engine::Engine>(
        config,
        std::move(executor),
        text::Tokenizer::load("src/text/testdata/tiny_tokenizer.json"),
        metrics_);
    engine_->start();
  }
  ~KernelEngine() { engine_->stop(); }

  std::shared_ptr<engine::CollectingSink> submit(const std::vector<int32_t>& prompt,
                                                 int32_t tokens,
                                                 bool scores = false) {
    engine::GenerationRequest request;
    request.id = std::to_string(next_++);
    request.prompt = prompt;
    request.max_new_tokens = tokens;
    request.ignore_eos = true;
    request.want_logprobs = true;
    request.want_prompt_logprobs = scores;
    request.want_routes = executor_->capacity().choices.has_value();
    request.want_picks = request.want_routes;
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
  int64_t prompt_tokens() const { return executor_->prompt_tokens_of_path(); }

 private:
  static model::ForwardConfig forward_config(const RunnerConfig& runner,
                                             const std::string& numerics = "checkpoint",
                                             bool keep_layers = true,
                                             bool record_choices = false) {
    model::ForwardConfig forward;
    forward.device = "cuda";
    forward.numerics = numerics;
    forward.max_context = kMostContext;
    forward.with_mtp = runner.drafts.max_drafts > 0;
    forward.max_rollback = runner.drafts.max_drafts;
    forward.keep_layers = keep_layers;
    forward.record_choices = record_choices;
    return forward;
  }

  MetricRegistry metrics_;
  const ModelExecutor* executor_ = nullptr;
  std::unique_ptr<engine::Engine> engine_;
  int next_ = 0;
};

/// Distances from the model in double of greedy answers, or of the body in float on the same texts.
struct Distances {
  double square = 0.0;      // of the log-probs of the texts' tokens
  double gap_square = 0.0;  // of the shortfalls of preferred tokens behind the best one in double
  double worst_gap = 0.0;   // the largest of them; grows with the number of tokens, so not compared
  int64_t best = 0;         // preferred tokens that are the best one in double
  int64_t count = 0;        // of answers
  int64_t scored = 0;       // tokens with log-probs, of prompts too

  double rms() const { return std::sqrt(square / static_cast<double>(scored)); }
  double gap_rms() const { return std::sqrt(gap_square / static_cast<double>(count)); }
  double agreement() const { return static_cast<double>(best) / static_cast<double>(count); }
  void add_logprob(double error) {
    square += error * error;
    ++scored;
  }
  void add_choice(double gap) {
    gap_square += gap * gap;
    worst_gap = std::max(worst_gap, gap);
    best += gap == 0.0 ? 1 : 0;
    ++count;
  }
};

/// Of kernels and body, on the same tokens.
struct Comparison {
  Distances kernels;
  Distances body;
};

template <class Number>
double log_sum(const Number* logits, std::size_t vocab) {
  const double best = *std::max_element(logits, logits + vocab);
  double sum = 0.0;
  for (std::size_t v = 0; v < vocab; ++v) {
    sum += std::exp(logits[v] - best);
  }
  return best + std::log(sum);
}

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
    body_ = std::make_unique<model::Model>(*weights_, forward);
    forward.compute = model::ComputeType::kFloat64;
    reference_ = std::make_unique<model::Model>(std::move(doubles), forward);
  }
  static void TearDownTestSuite() {
    reference_.reset();
    body_.reset();
    weights_.reset();
    std::filesystem::remove_all(narrow_flash_folder());
  }

  static std::vector<float> body_logits(const std::vector<int32_t>& ids) {
    model::Sequence sequence = body_->new_sequence();
    model::ForwardOutput output;
    const model::RowInput row{.sequence = &sequence,
                              .ids = std::span<const int32_t>(ids),
                              .logits = model::LogitsWanted::kAll};
    body_->forward({&row, 1}, output);
    return output.logits;
  }

  /// Adds a prompt's answer, and the prompt's own log-probs where it has them.
  static void measure(const std::vector<int32_t>& prompt,
                      const engine::CollectingSink& answer,
                      Comparison& compared) {
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
    const std::vector<float> in_float = body_logits(ids);
    const auto vocab = static_cast<std::size_t>(output.vocab_size);
    const auto add_logprob = [&](std::size_t at, double of_kernels) {
      const double* doubles = output.logits_f64.data() + (at - 1) * vocab;
      const float* floats = in_float.data() + (at - 1) * vocab;
      const auto id = static_cast<std::size_t>(ids[at]);
      const double expected = doubles[id] - log_sum(doubles, vocab);
      compared.kernels.add_logprob(of_kernels - expected);
      compared.body.add_logprob(double{floats[id]} - log_sum(floats, vocab) - expected);
    };
    const auto scores = answer.prompt_logprobs();
    for (std::size_t i = 0; i < scores.size(); ++i) {
      ASSERT_EQ(scores[i].id, ids[i + 1]);
      add_logprob(i + 1, scores[i].logprob);
    }
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const std::size_t at = prompt.size() + i;
      add_logprob(at, tokens[i].logprob);
      const double* doubles = output.logits_f64.data() + (at - 1) * vocab;
      const float* floats = in_float.data() + (at - 1) * vocab;
      const double best = *std::max_element(doubles, doubles + vocab);
      compared.kernels.add_choice(best - doubles[tokens[i].id]);
      compared.body.add_choice(best - doubles[std::max_element(floats, floats + vocab) - floats]);
    }
  }

  static void print(const char* what, const Distances& distances) {
    std::printf(
        "%s: %lld tokens of answers, %lld log-probs, their rms from double %.4f, best token %.3f, "
        "gap rms %.4f worst %.3f\n",
        what,
        static_cast<long long>(distances.count),
        static_cast<long long>(distances.scored),
        distances.rms(),
        distances.agreement(),
        distances.gap_rms(),
        distances.worst_gap);
  }

  // Both round at the same points; a last bit that falls the other way becomes a whole step of
  // bf16, e4m3 or e2m1 in either. The kernels have one rounding more (the weights of attention) and
  // sums of tensor cores, so half as far again as the body in float is allowed. Both are measured
  // on the same texts: on texts of their own the two differ by up to twice, because greedy answers
  // repeat themselves and few of their tokens are independent.
  static void expect_close(const Comparison& compared) {
    print("kernels", compared.kernels);
    print("body", compared.body);
    EXPECT_LE(compared.kernels.rms(), 1.5 * compared.body.rms());
    EXPECT_LE(compared.kernels.gap_rms(), 1.5 * compared.body.gap_rms());
    EXPECT_GE(compared.kernels.agreement(), compared.body.agreement() - 0.1);
  }

  static inline std::unique_ptr<model::ModelParameters> weights_;  // float; engines share them
  static inline std::unique_ptr<model::Model> body_;               // float
  static inline std::unique_ptr<model::Model> reference_;          // double
};

const RunnerConfig kWide{.num_slots = 6, .max_step_tokens = 256, .cache_bytes = 512 << 20};

TEST_F(NarrowFlashGpu, AnswersAreAsCloseToDoubleAsTheBodys) {
  Comparison compared;
  KernelEngine engine(*weights_, kWide, 256);
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::shared_ptr<engine::CollectingSink>> answers;
  int64_t told = 0;
  // Below and over a group, the window, a page; past 64 entries of ratio 4, so that picks count.
  for (const int32_t length : {1, 3, 100, 126, 254, 300, 777}) {
    prompts.push_back(some_ids(length, length));
    answers.push_back(engine.submit(prompts.back(), 160, /*scores=*/length % 2 == 0));
    told += length;
  }
  for (std::size_t i = 0; i < answers.size(); ++i) {
    answers[i]->wait();
    ASSERT_EQ(answers[i]->finish().reason, engine::FinishReason::kLength)
        << answers[i]->finish().error.message;
    ASSERT_NO_FATAL_FAILURE(measure(prompts[i], *answers[i], compared));
  }
  EXPECT_EQ(engine.kernel_rows(), 7 * 159);  // the first one comes with the prompt
  EXPECT_EQ(engine.prompt_tokens(), told);
  expect_close(compared);
}

TEST_F(NarrowFlashGpu, TurnsHitTheCache) {
  KernelEngine kernels(*weights_, kWide, 256);
  Comparison compared;
  std::vector<int32_t> history;
  for (int32_t turn = 0; turn < 6; ++turn) {
    const auto told = static_cast<int64_t>(history.size());
    const std::vector<int32_t> added = some_ids(60 + (turn * 13) % 40, turn);
    history.insert(history.end(), added.begin(), added.end());
    const auto sink = kernels.submit(history, turn == 2 ? 300 : 30);
    sink->wait();
    ASSERT_EQ(sink->finish().reason, engine::FinishReason::kLength) << sink->finish().error.message;
    ASSERT_NO_FATAL_FAILURE(measure(history, *sink, compared));
    if (turn > 0) {
      ASSERT_GE(sink->finish().cached_tokens, told - 1 - 4) << "turn " << turn;
    }
    const std::vector<int32_t> answer = sink->ids();
    history.insert(history.end(), answer.begin(), answer.end());
  }
  expect_close(compared);
}

TEST_F(NarrowFlashGpu, ACrowdWithAbortsOnASmallCacheAnswersAndGivesEveryPageBack) {
  KernelEngine kernels(
      *weights_, {.num_slots = 6, .max_step_tokens = 128, .cache_bytes = 96 << 20}, 64);
  const std::vector<int32_t> shared = some_ids(600, 5);
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::shared_ptr<engine::CollectingSink>> sinks;
  Comparison compared;
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
    ASSERT_NO_FATAL_FAILURE(measure(prompts[i], *sinks[i], compared));
  }
  expect_close(compared);
  for (int32_t i = 0; i < 500 && kernels.engine().stats().num_running > 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(kernels.engine().stats().num_used_tokens, 0);
}

TEST_F(NarrowFlashGpu, DraftsAreMadeAndVerifiedByKernels) {
  RunnerConfig runner = kWide;
  runner.drafts.max_drafts = 3;
  KernelEngine engine(*weights_, runner, 256);
  Comparison compared;
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::shared_ptr<engine::CollectingSink>> answers;
  for (const int32_t length : {1, 100, 253, 300, 500}) {
    prompts.push_back(some_ids(length, length));
    answers.push_back(engine.submit(prompts.back(), 140));
  }
  int64_t drafted = 0;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    answers[i]->wait();
    ASSERT_EQ(answers[i]->finish().reason, engine::FinishReason::kLength)
        << answers[i]->finish().error.message;
    ASSERT_NO_FATAL_FAILURE(measure(prompts[i], *answers[i], compared));
    drafted += answers[i]->finish().drafts.drafted;
  }
  EXPECT_GT(engine.kernel_rows(), 200);
  // A model that learned nothing seldom guesses right; whether the guesses are the body's the check
  // at start says.
  EXPECT_GT(drafted, 1000);
  expect_close(compared);
}

TEST_F(NarrowFlashGpu, InvariantNumericsGiveEqualBits) {
  const std::vector<int32_t> lengths = {1, 100, 300, 777};
  std::vector<std::vector<engine::GeneratedToken>> expected;
  std::vector<std::vector<engine::TokenLogprob>> scores;
  struct Way {
    int32_t drafts;
    int32_t chunk;
    int32_t slots;  // 6: all prompts at once; 1: one after the other
  };
  for (const auto& [drafts, chunk, slots] :
       {Way{0, 256, 6}, Way{0, 60, 1}, Way{3, 256, 6}, Way{3, 60, 2}}) {
    RunnerConfig runner = kWide;
    runner.num_slots = slots;
    runner.drafts.max_drafts = drafts;
    KernelEngine engine("reference+invariant", runner, chunk);
    std::vector<std::shared_ptr<engine::CollectingSink>> answers;
    for (const int32_t length : lengths) {
      answers.push_back(engine.submit(some_ids(length, length), 60, /*scores=*/length == 100));
    }
    for (std::size_t i = 0; i < answers.size(); ++i) {
      answers[i]->wait();
      ASSERT_EQ(answers[i]->finish().reason, engine::FinishReason::kLength)
          << answers[i]->finish().error.message;
      const auto tokens = answers[i]->tokens();
      const auto found = answers[i]->prompt_logprobs();
      if (expected.size() < lengths.size()) {
        expected.push_back(tokens);
        scores.push_back(found);
        continue;
      }
      const std::string what = "drafts " + std::to_string(drafts) + " chunk " +
                               std::to_string(chunk) + " prompt " + std::to_string(lengths[i]);
      ASSERT_EQ(tokens.size(), expected[i].size()) << what;
      for (std::size_t t = 0; t < tokens.size(); ++t) {
        ASSERT_EQ(tokens[t].id, expected[i][t].id) << what << " token " << t;
        ASSERT_EQ(tokens[t].logprob, expected[i][t].logprob) << what << " token " << t;
      }
      ASSERT_EQ(found.size(), scores[i].size()) << what;
      for (std::size_t t = 0; t < found.size(); ++t) {
        ASSERT_EQ(found[t].logprob, scores[i][t].logprob) << what << " prompt token " << t;
      }
    }
  }
}

/// Share of expert ids, and of picked entries where a query leaves some out, that two records of
/// the same tokens have in common.
struct Agreement {
  double routes = 0.0;
  double picks = 0.0;
};

Agreement agreement(const cache::ChoiceLayout& layout,
                    const cache::ChoiceRecords& a,
                    const std::vector<uint8_t>& routes,
                    const std::vector<uint8_t>& picks) {
  const auto share = [](const auto& left, const auto& right) {
    std::vector<int32_t> common;
    std::set_intersection(
        left.begin(), left.end(), right.begin(), right.end(), std::back_inserter(common));
    return static_cast<double>(common.size());
  };
  EXPECT_EQ(a.routes.size(), routes.size());
  EXPECT_EQ(a.picks.size(), picks.size());
  Agreement out;
  const auto top = static_cast<std::size_t>(layout.experts_per_token);
  for (std::size_t at = 0; at + top <= routes.size(); at += top) {
    out.routes += share(std::span(a.routes).subspan(at, top), std::span(routes).subspan(at, top));
  }
  out.routes /= static_cast<double>(routes.size());
  double picked = 0.0;
  std::size_t at = 0;
  std::vector<int32_t> left;
  std::vector<int32_t> right;
  for (int32_t position = 0; position < a.count; ++position) {
    const int32_t visible = layout.visible_entries(position);
    for (std::size_t layer = 0; visible > layout.topk && layer < layout.picking_layers.size();
         ++layer) {
      const std::size_t used =
          cache::decode_picks(std::span(a.picks).subspan(at), visible, layout.topk, left);
      cache::decode_picks(std::span(picks).subspan(at), visible, layout.topk, right);
      at += used;
      out.picks += share(left, right);
      picked += layout.topk;
    }
  }
  EXPECT_EQ(at, picks.size());
  out.picks /= picked;
  return out;
}

TEST_F(NarrowFlashGpu, ChoicesAreAsCloseToDoubleAsTheBodys) {
  cache::ChoiceRecords of_kernels;
  std::vector<int32_t> ids = some_ids(777, 9);
  {
    RunnerConfig runner = kWide;
    runner.drafts.max_drafts = 3;
    KernelEngine engine("checkpoint", runner, 256, /*record_choices=*/true);
    const auto answer = engine.submit(ids, 120);
    answer->wait();
    ASSERT_EQ(answer->finish().reason, engine::FinishReason::kLength)
        << answer->finish().error.message;
    of_kernels = answer->finish().choices.value();
    const std::vector<int32_t> told = answer->ids();
    ids.insert(ids.end(), told.begin(), told.end() - 1);  // the last token has not run
  }
  ASSERT_EQ(of_kernels.first_position, 0);
  ASSERT_EQ(of_kernels.count, static_cast<int32_t>(ids.size()));
  model::ForwardConfig forward;
  forward.device = "cuda";
  forward.record_choices = true;
  const auto choices_of = [&](model::Model model) {
    model::Sequence sequence = model.new_sequence();
    model::ForwardOutput output;
    const model::RowInput row{.sequence = &sequence, .ids = std::span<const int32_t>(ids)};
    model.forward({&row, 1}, output);
    return output.choices;
  };
  const model::ForwardChoices in_float = choices_of(model::Model(*weights_, forward));
  model::ModelParameters doubles = *weights_;
  model::convert_parameters(doubles, at::kDouble, at::Device(at::kCUDA, 0));
  forward.compute = model::ComputeType::kFloat64;
  const model::ForwardChoices in_double = choices_of(model::Model(std::move(doubles), forward));
  const cache::ChoiceLayout& layout = reference_->choice_layout();
  cache::ChoiceRecords body{.routes = in_float.routes, .picks = in_float.picks};
  body.count = of_kernels.count;
  const Agreement kernels = agreement(layout, of_kernels, in_double.routes, in_double.picks);
  const Agreement float_body = agreement(layout, body, in_double.routes, in_double.picks);
  std::printf("choices that are those in double: kernels routes %.4f picks %.4f, body %.4f %.4f\n",
              kernels.routes,
              kernels.picks,
              float_body.routes,
              float_body.picks);
  EXPECT_GE(1.0 - float_body.routes, 0.5 * (1.0 - kernels.routes));
  EXPECT_GE(1.0 - float_body.picks, 0.5 * (1.0 - kernels.picks));
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
                       .checkpoint = nullptr,
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
  Comparison compared;
  KernelEngine engine(
      *weights_, {.num_slots = 2, .max_step_tokens = 1024, .cache_bytes = 512 << 20}, 1024);
  const std::vector<int32_t> prompt = some_ids(4080, 2);  // crosses 4,096 in the answer
  const auto answer = engine.submit(prompt, 60);
  answer->wait();
  ASSERT_EQ(answer->finish().reason, engine::FinishReason::kLength)
      << answer->finish().error.message;
  ASSERT_NO_FATAL_FAILURE(measure(prompt, *answer, compared));
  EXPECT_EQ(engine.prompt_tokens(), 4080);
  expect_close(compared);
}

}  // namespace
}  // namespace baleen::runner
