// A step that does not end is reported while the engine waits for it, and taken back when it comes.
#include <condition_variable>
#include <mutex>
#include <thread>

#include <gtest/gtest.h>

#include "base/error.h"
#include "engine/engine.h"
#include "engine/engine_test_bench.h"
#include "engine/synthetic_executor.h"

namespace baleen::engine {
namespace {

/// Gives its steps only while the gate is open.
class GatedExecutor final : public Executor {
 public:
  struct Gate {
    std::mutex mutex;
    std::condition_variable changed;
    bool open = true;
    bool fails = false;  // what passes the gate fails
    void set(bool opens, bool to_fail = false) {
      {
        std::lock_guard lock(mutex);
        open = opens;
        fails = to_fail;
      }
      changed.notify_all();
    }
  };
  explicit GatedExecutor(Gate& gate)
      : gate_(gate),
        inner_(
            {.capacity = {
                 .num_slots = 2, .max_context = 400, .max_step_tokens = 32, .vocab_size = 297}}) {}
  ExecutorCapacity capacity() const override { return inner_.capacity(); }
  ExecutorInfo info() const override { return inner_.info(); }
  Ticket submit(const BatchPlan& plan, const MaskProvider& masks) override {
    std::unique_lock lock(gate_.mutex);
    gate_.changed.wait(lock, [&] { return gate_.open; });
    if (gate_.fails) {
      throw Error("the device is lost");
    }
    return inner_.submit(plan, masks);
  }
  StepResult wait(Ticket ticket) override { return inner_.wait(ticket); }

 private:
  Gate& gate_;
  SyntheticExecutor inner_;
};

class WatchdogTest : public testing::TestWithParam<bool> {
 protected:
  void start(double step_timeout_s) {
    EngineConfig config;
    config.overlap = GetParam();
    config.step_timeout_s = step_timeout_s;
    engine_ = std::make_unique<Engine>(config,
                                       std::make_unique<GatedExecutor>(gate_),
                                       ScriptedBench::shared_tokenizer(),
                                       metrics_);
    engine_->start();
    GenerationRequest request;
    request.id = "r";
    request.prompt = {7, 8, 9};
    request.max_new_tokens = 100;
    request.sampling.seed = 3;
    request.ignore_eos = true;
    sink_ = std::make_shared<CollectingSink>();
    ASSERT_TRUE(engine_->submit(request, sink_).ok());
  }
  /// True once the engine is as healthy as wanted.
  bool becomes_healthy(bool healthy) {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (engine_->healthy() != healthy && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return engine_->healthy() == healthy;
  }
  bool page_has(const std::string& line) {
    return ("\n" + metrics_.expose()).find("\n" + line + "\n") != std::string::npos;
  }

  GatedExecutor::Gate gate_;
  MetricRegistry metrics_;
  std::shared_ptr<CollectingSink> sink_;
  std::unique_ptr<Engine> engine_;
};

INSTANTIATE_TEST_SUITE_P(Overlap, WatchdogTest, testing::Bool());

TEST_P(WatchdogTest, AStepThatHangsIsReportedAndTakenBackWhenItEnds) {
  gate_.set(false);
  start(0.01);
  ASSERT_TRUE(becomes_healthy(false));
  EXPECT_GE(engine_->stats().late_step_s, 0.01);
  EXPECT_EQ(engine_->stats().state, EngineState::kRunning);
  EXPECT_NE(engine_->health_message().find("a step has not ended for"), std::string::npos);
  EXPECT_TRUE(page_has("baleen:late_steps_total 1"));
  EXPECT_FALSE(page_has("baleen:late_step_seconds 0"));
  EXPECT_FALSE(sink_->ended());
  gate_.set(true);
  ASSERT_TRUE(sink_->wait_for(kPatience));
  EXPECT_EQ(sink_->finish().reason, FinishReason::kLength);
  EXPECT_EQ(sink_->ids().size(), 100U) << "no token is lost";
  ASSERT_TRUE(becomes_healthy(true));
  EXPECT_EQ(engine_->stats().late_step_s, 0.0);
  EXPECT_EQ(engine_->health_message(), "");
  EXPECT_TRUE(page_has("baleen:late_step_seconds 0"));
}

TEST_P(WatchdogTest, AHangThatEndsInAFailureIsAFailure) {
  gate_.set(false);
  start(0.01);
  ASSERT_TRUE(becomes_healthy(false));
  gate_.set(true, /*to_fail=*/true);
  ASSERT_TRUE(sink_->wait_for(kPatience));
  EXPECT_EQ(sink_->finish().reason, FinishReason::kError);
  EXPECT_EQ(engine_->stats().state, EngineState::kFailed);
  EXPECT_EQ(engine_->stats().late_step_s, 0.0);
  EXPECT_EQ(engine_->health_message(), "the device is lost");
  EXPECT_FALSE(engine_->healthy());
}

TEST_P(WatchdogTest, WithoutAWatchNothingIsReported) {
  gate_.set(false);
  start(0.0);
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_TRUE(engine_->healthy());
  gate_.set(true);
  ASSERT_TRUE(sink_->wait_for(kPatience));
  EXPECT_TRUE(page_has("baleen:late_steps_total 0"));
}

}  // namespace
}  // namespace baleen::engine
