#include "rl/reward_judge.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "rewards/make_verifier.h"
#include "rewards/reward_pool.h"

namespace baleen::rl {
namespace {

constexpr std::chrono::milliseconds kSelfTest{30'000};

/// Verdicts come on the pool's threads and wait here until they are taken.
class PoolJudge final : public AnswerJudge {
 public:
  PoolJudge(std::shared_ptr<const rewards::Verifier> verifier,
            const rewards::RewardPoolConfig& config)
      : inbox_(std::make_shared<Inbox>()), pool_(std::move(verifier), config) {}

  void submit(const Prompt& prompt, const RolloutSample& sample) override {
    rewards::RewardInput input;
    input.sample = sample.index;
    input.prompt = prompt.text;
    input.response = sample.response;
    input.label = prompt.label;
    input.metadata = prompt.metadata;
    input.tokens.assign(sample.ids.begin() + sample.prompt_tokens, sample.ids.end());
    ++pending_;
    pool_.submit(std::move(input),
                 [inbox = inbox_, index = sample.index](rewards::RewardOutcome outcome) {
                   inbox->put(verdict_of(index, std::move(outcome)));
                 });
  }
  int64_t pending() const override { return pending_; }
  std::vector<Verdict> take(std::chrono::milliseconds wait) override {
    if (pending_ == 0) {
      return {};
    }
    std::vector<Verdict> ready = inbox_->take(wait);
    pending_ -= static_cast<int64_t>(ready.size());
    return ready;
  }
  double take_milliseconds_p99() override { return pool_.take_counts().milliseconds_p99; }

 private:
  /// Shared with callbacks, which may come after the judge is gone.
  struct Inbox {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<Verdict> ready;

    void put(Verdict&& verdict) {
      {
        const std::lock_guard lock(mutex);
        ready.push_back(std::move(verdict));
      }
      changed.notify_one();
    }
    std::vector<Verdict> take(std::chrono::milliseconds wait) {
      std::unique_lock lock(mutex);
      changed.wait_for(lock, wait, [&] { return !ready.empty(); });
      return std::exchange(ready, {});
    }
  };

  static Verdict verdict_of(int64_t index, rewards::RewardOutcome&& outcome) {
    Verdict verdict;
    verdict.index = index;
    verdict.kind = outcome.kind == rewards::OutcomeKind::kValue     ? VerdictKind::kScore
                   : outcome.kind == rewards::OutcomeKind::kTimeout ? VerdictKind::kTimeout
                                                                    : VerdictKind::kError;
    verdict.score = outcome.score.score;
    if (outcome.score.acc) {
      verdict.accuracy = *outcome.score.acc ? 1.0 : 0.0;
    }
    verdict.message = std::move(outcome.message);
    return verdict;
  }

  std::shared_ptr<Inbox> inbox_;
  rewards::RewardPool pool_;
  int64_t pending_ = 0;
};

}  // namespace

std::unique_ptr<AnswerJudge> make_judge(const RlConfig& config, const std::string& rm_type) {
  rewards::VerifierConfig verifier_config;
  verifier_config.rm_type = rm_type;
  verifier_config.rm_pattern = config.rm_pattern;
  verifier_config.rm_schema = config.rm_schema;
  verifier_config.rm_url = config.rm_url;
  verifier_config.external.command = config.rm_command;
  auto verifier = rewards::make_verifier(verifier_config);
  const std::chrono::milliseconds timeout(
      static_cast<int64_t>(std::max(1.0, config.reward_timeout_s * 1000.0)));
  rewards::self_test(*verifier, std::max(timeout, kSelfTest));
  return std::make_unique<PoolJudge>(
      std::move(verifier),
      rewards::RewardPoolConfig{.workers = static_cast<int32_t>(config.reward_workers),
                                .timeout = timeout,
                                .shutdown_grace = std::chrono::milliseconds(2000)});
}

}  // namespace baleen::rl
