// The engine with its cache and scheduler on abacus in device memory: cached answers
// are those of a cold run on the device, and those of the CPU. Freed pages are painted, so a stale
// row would change the answer.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/metrics.h"
#include "engine/collecting_sink.h"
#include "engine/engine.h"
#include "model/forward.h"
#include "runner/model_executor.h"
#include "runner/some_ids_for_tests.h"
#include "text/tokenizer.h"

namespace baleen::runner {
namespace {

constexpr const char* kFolder = "models/abacus";
// Plain numerics in float: sums in another order, over five layers.
constexpr double kLogprobError = 2e-3;

class AbacusEngine {
 public:
  AbacusEngine(const std::string& device, const RunnerConfig& runner, int32_t chunk) {
    model::ForwardConfig forward;
    forward.device = device;
    forward.numerics = "plain";
    engine::EngineConfig config;
    config.max_prefill_chunk = chunk;
    engine_ = std::make_unique<engine::Engine>(
        config,
        std::make_unique<ModelExecutor>(model::Model::load(kFolder, forward), runner, "abacus"),
        text::Tokenizer::load(std::string(kFolder) + "/tokenizer.json"),
        metrics_);
    engine_->start();
  }
  ~AbacusEngine() { engine_->stop(); }

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

 private:
  MetricRegistry metrics_;
  std::unique_ptr<engine::Engine> engine_;
  int next_ = 0;
};

/// Equal tokens as long as the best one is clear: where two are as good as equal, the rest may
/// differ.
void expect_alike(const engine::CollectingSink& a,
                  const engine::CollectingSink& b,
                  const std::string& what) {
  const auto left = a.tokens();
  const auto right = b.tokens();
  ASSERT_EQ(left.size(), right.size()) << what;
  for (std::size_t i = 0; i < left.size(); ++i) {
    ASSERT_NEAR(left[i].logprob, right[i].logprob, kLogprobError) << what << " token " << i;
    if (left[i].id != right[i].id) {
      return;
    }
  }
}

const RunnerConfig kRoomy{
    .num_slots = 2, .max_step_tokens = 512, .cache_bytes = 64 << 20, .paint_pages = true};

TEST(CachedEngineGpu, TurnsGiveTheAnswersOfAColdRunAndOfTheCpu) {
  AbacusEngine cached("cuda", kRoomy, 256);
  AbacusEngine cold("cuda", {.num_slots = 2, .max_step_tokens = 512}, 256);
  AbacusEngine on_cpu("cpu", kRoomy, 256);
  std::vector<int32_t> history;
  for (int32_t turn = 0; turn < 6; ++turn) {
    const auto told = static_cast<int64_t>(history.size());
    const std::vector<int32_t> added = some_ids(90 + (turn * 13) % 40, turn);
    history.insert(history.end(), added.begin(), added.end());
    const auto a = cached.submit(history, 9);
    const auto b = cold.submit(history, 9);
    const auto c = on_cpu.submit(history, 9);
    a->wait();
    b->wait();
    c->wait();
    ASSERT_NO_FATAL_FAILURE(expect_alike(*a, *b, "turn " + std::to_string(turn)));
    ASSERT_NO_FATAL_FAILURE(expect_alike(*a, *c, "CPU, turn " + std::to_string(turn)));
    EXPECT_EQ(a->finish().cached_tokens, c->finish().cached_tokens);
    if (turn > 0) {
      ASSERT_GE(a->finish().cached_tokens, told - 1 - 4) << "turn " << turn;
    }
    const std::vector<int32_t> answer = a->ids();
    history.insert(history.end(), answer.begin(), answer.end());
  }
}

TEST(CachedEngineGpu, ManyRequestsAtOnceAnswerAsEachAlone) {
  AbacusEngine crowded(
      "cuda",
      {.num_slots = 6, .max_step_tokens = 128, .cache_bytes = 24 << 20, .paint_pages = true},
      64);
  AbacusEngine alone("cuda", {.num_slots = 1, .max_step_tokens = 128}, 64);
  std::vector<std::shared_ptr<engine::CollectingSink>> sinks;
  for (int32_t i = 0; i < 8; ++i) {
    sinks.push_back(crowded.submit(some_ids(200 + 17 * i, i % 3), 40));
  }
  for (int32_t i = 0; i < 8; ++i) {
    const auto& sink = sinks[static_cast<std::size_t>(i)];
    sink->wait();
    ASSERT_EQ(sink->finish().reason, engine::FinishReason::kLength) << sink->finish().error.message;
    const auto own = alone.submit(some_ids(200 + 17 * i, i % 3), 40);
    own->wait();
    ASSERT_NO_FATAL_FAILURE(expect_alike(*sink, *own, "request " + std::to_string(i)));
  }
}

}  // namespace
}  // namespace baleen::runner
