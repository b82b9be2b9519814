#pragma once
// Runs a verifier on several threads, with a time limit per call. A call that is late is reported
// as a time-out at its deadline and its thread is replaced, so a verifier that hangs takes neither
// the run nor the pool's width with it. Callbacks run on a thread of the pool, one per call, and
// must not throw.
//
//   RewardPool pool(verifier, {.workers = 4});
//   pool.submit(input, [&](RewardOutcome outcome) { ... });
//   std::vector<RewardOutcome> outcomes = pool.score(inputs);      // in order, waits
//   pool.shutdown();

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rewards/verifier.h"

namespace baleen::rewards {

enum class OutcomeKind { kValue, kTimeout, kError };

struct RewardOutcome {
  OutcomeKind kind = OutcomeKind::kError;
  Score score;          // of kValue: finite
  std::string message;  // of the others
  double seconds = 0.0;
};

struct RewardPoolConfig {
  int32_t workers = 4;                              // reward_workers
  std::chrono::milliseconds timeout{10'000};        // reward_timeout_s, from the start of a call
  std::chrono::milliseconds shutdown_grace{2'000};  // for calls in flight when the pool ends
  void validate() const;                            // throws ConfigError
};

struct RewardCounts {
  int64_t values = 0;
  int64_t timeouts = 0;  // reward/timeout_count
  int64_t errors = 0;    // reward/error_count
  int64_t abandoned_threads = 0;
  double milliseconds_p99 = 0.0;  // reward/time_ms_p99, over calls since the last take_counts
};

struct RewardCall;  // one verify or verify_group

class RewardPool {
 public:
  using Done = std::function<void(RewardOutcome)>;
  using GroupDone = std::function<void(std::vector<RewardOutcome>)>;

  RewardPool(std::shared_ptr<const Verifier> verifier, const RewardPoolConfig& config);
  ~RewardPool();  // shutdown()
  RewardPool(const RewardPool&) = delete;
  RewardPool& operator=(const RewardPool&) = delete;

  void submit(RewardInput input, Done done);
  /// One verify_group call; every sample gets the outcome of its score, or all get its failure.
  void submit_group(std::vector<RewardInput> inputs, GroupDone done);
  std::vector<RewardOutcome> score(std::vector<RewardInput> inputs);
  std::vector<RewardOutcome> score_group(std::vector<RewardInput> inputs);

  /// Counts since the last call of this; the threads stay counted.
  RewardCounts take_counts();

  /// Unstarted calls get an error; calls in flight have the grace, then their threads are left
  /// behind. Idempotent.
  void shutdown();

 private:
  void enqueue(std::shared_ptr<RewardCall> call);
  struct State;
  std::shared_ptr<State> state_;  // shared with the threads: one that hangs may outlive the pool
};

enum class OnRewardError { kZero, kDropGroup, kFail };  // zero, drop_group, fail
const char* on_reward_error_name(OnRewardError policy);
std::optional<OnRewardError> parse_on_reward_error(std::string_view name);

/// What becomes of a group by its outcomes.
struct GroupVerdict {
  bool keep = true;           // false: dropped for an error (drop_group)
  std::vector<Score> scores;  // of each sample if kept; zero for a failed one under kZero
};
/// Throws Error with the first failure's message under kFail.
GroupVerdict settle_group(std::span<const RewardOutcome> outcomes, OnRewardError policy);

}  // namespace baleen::rewards
