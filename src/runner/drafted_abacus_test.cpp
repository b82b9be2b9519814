// The trained model of this repository with its trained MTP block: drafts stand, and the answers
// are those without drafts.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "engine/collecting_sink.h"
#include "engine/engine.h"
#include "runner/model_executor.h"
#include "text/chat_request.h"
#include "text/tokenizer.h"

namespace baleen::runner {
namespace {

constexpr const char* kAbacus = "models/abacus";

class AbacusBench {
 public:
  explicit AbacusBench(int32_t max_drafts, DraftSampling sampling = DraftSampling::kCoupled)
      : tokenizer_(text::Tokenizer::load(std::string(kAbacus) + "/tokenizer.json")) {
    model::ForwardConfig forward;
    forward.numerics = "checkpoint+invariant";  // sums of one row and of four are the same
    forward.with_mtp = max_drafts > 0;
    forward.max_rollback = max_drafts;
    RunnerConfig runner{.num_slots = 2, .max_step_tokens = 1024, .cache_bytes = int64_t{64} << 20};
    runner.drafts.max_drafts = max_drafts;
    runner.drafts.sampling = sampling;
    engine::EngineConfig config = engine::EngineConfig::for_tokenizer(*tokenizer_);
    config.adaptive_drafts = false;
    engine_ = std::make_unique<engine::Engine>(
        config,
        std::make_unique<ModelExecutor>(model::Model::load(kAbacus, forward), runner, "abacus"),
        tokenizer_,
        metrics_);
    engine_->start();
  }
  ~AbacusBench() { engine_->stop(); }

  std::shared_ptr<engine::CollectingSink> ask(const std::vector<std::string>& turns,
                                              float temperature) {
    text::ChatRequest chat;
    for (size_t i = 0; i < turns.size(); ++i) {
      chat.messages.emplace_back().content = turns[i];
      if (i % 2 == 1) {
        chat.messages.back().role = text::Role::kAssistant;
      }
    }
    text::ThinkingDecision decision;
    decision.thinking = true;
    const auto prompt = text::render_request(chat, text::ChatProfile::kV4, decision);
    EXPECT_TRUE(prompt.ok()) << prompt.status().message;
    engine::GenerationRequest request;
    request.id = std::to_string(next_++);
    request.prompt = tokenizer_->encode(prompt->pieces);
    request.output.starts_in_reasoning = prompt->starts_in_reasoning;
    request.max_new_tokens = 64;
    request.want_logprobs = true;
    request.sampling.temperature = temperature;
    request.sampling.seed = 5;
    auto sink = std::make_shared<engine::CollectingSink>();
    const Status status = engine_->submit(std::move(request), sink);
    EXPECT_TRUE(status.ok()) << status.message;
    sink->wait();
    return sink;
  }

 private:
  std::shared_ptr<const text::Tokenizer> tokenizer_;
  MetricRegistry metrics_;
  std::unique_ptr<engine::Engine> engine_;
  int next_ = 0;
};

std::vector<std::vector<std::string>> conversations() {
  std::vector<std::vector<std::string>> all;
  for (int i = 0; i < 12; ++i) {
    all.push_back({std::to_string(11 + 7 * i) + " + " + std::to_string(88 - 5 * i)});
  }
  // Long ones: over windows of 64 and pages of 256.
  std::vector<std::string> turns;
  for (int i = 0; i < 30; ++i) {
    const int a = 10 + (i * 37) % 89;
    const int b = 10 + (i * 53) % 89;
    turns.push_back(std::to_string(a) + "+" + std::to_string(b) + "=");
    if (i % 10 == 9) {
      all.push_back(turns);
    }
    turns.push_back(std::to_string(a + b));
  }
  return all;
}

TEST(DraftedAbacusTest, DraftsStandAndAnswersAreThePlainOnes) {
  AbacusBench plain(0);
  AbacusBench drafted(3);
  engine::DraftCounts counts;
  for (const auto& turns : conversations()) {
    for (const float temperature : {0.0F, 1.0F}) {
      const auto a = drafted.ask(turns, temperature);
      const auto b = plain.ask(turns, temperature);
      ASSERT_EQ(a->ids(), b->ids()) << turns.back() << " of " << turns.size();
      const auto drafted_tokens = a->tokens();
      const auto plain_tokens = b->tokens();
      for (size_t i = 0; i < plain_tokens.size(); ++i) {
        ASSERT_EQ(drafted_tokens[i].logprob, plain_tokens[i].logprob) << turns.back();
      }
      const engine::DraftCounts of_one = a->finish().drafts;
      counts.verify_steps += of_one.verify_steps;
      counts.accepted += of_one.accepted;
    }
  }
  const double length = static_cast<double>(counts.accepted + counts.verify_steps) /
                        static_cast<double>(counts.verify_steps);
  RecordProperty("accept_length", std::to_string(length));
  EXPECT_GT(length, 2.0);
}

}  // namespace
}  // namespace baleen::runner
