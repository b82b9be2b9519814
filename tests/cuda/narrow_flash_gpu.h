#pragma once
// A checkpoint of Flash's widths (window, kC4, kC128, kC4; 64 narrow experts, a small vocabulary)
// and engines that run it on kernels on one GPU, for the tests that compare them with the model's
// body. Freed pages are painted: a stale row is NaN.
//
//   TEST_F(NarrowFlashGpu, ...) { KernelEngine engine(*weights_, kWide, 256); ... }

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include "base/metrics.h"
#include "engine/collecting_sink.h"
#include "engine/engine.h"
#include "model/forward.h"
#include "model/load_parameters.h"
#include "model/parameters.h"
#include "runner/decode/kernel_decode.h"
#include "runner/model_executor.h"
#include "text/tokenizer.h"
#include "weights/checkpoint.h"
#include "weights/model_presets.h"
#include "weights/synth.h"

namespace baleen::runner {

inline constexpr int64_t kMostContext = 6000;  // two context shapes

inline std::filesystem::path narrow_flash_folder() {
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
    runner.decode_path = [this](const DecodePathContext& context) {
      std::unique_ptr<DecodePath> path = kernel_decode()(context);
      path_bytes_ = path->device_bytes();
      return path;
    };
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
  int64_t path_bytes() const { return path_bytes_; }  // of the decode path in device memory

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
  int64_t path_bytes_ = 0;
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

inline const RunnerConfig kWide{.num_slots = 6, .max_step_tokens = 256, .cache_bytes = 512 << 20};

}  // namespace baleen::runner
