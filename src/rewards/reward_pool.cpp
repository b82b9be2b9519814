#include "rewards/reward_pool.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <exception>
#include <future>
#include <list>
#include <mutex>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"

namespace baleen::rewards {

using PoolClock = std::chrono::steady_clock;

struct RewardCall {
  std::vector<RewardInput> inputs;
  bool group = false;
  RewardPool::GroupDone done;
  PoolClock::time_point started;
  PoolClock::time_point deadline;
  bool answered = false;  // under the pool's lock
};

namespace {

std::vector<RewardOutcome> same_for_all(size_t count, const RewardOutcome& outcome) {
  return std::vector<RewardOutcome>(count, outcome);
}

RewardOutcome unstarted() {
  RewardOutcome outcome;
  outcome.message = "the reward pool was shut down before this call";
  return outcome;
}

RewardOutcome outcome_of(Score score) {
  RewardOutcome outcome;
  if (!std::isfinite(score.score)) {
    outcome.message = fmt::format("score {} is not finite", score.score);
    return outcome;
  }
  outcome.kind = OutcomeKind::kValue;
  outcome.score = std::move(score);
  return outcome;
}

std::vector<RewardOutcome> failed(const Status& status, const RewardCall& call) {
  RewardOutcome outcome;
  const bool late = status.code == StatusCode::kUnavailable && PoolClock::now() >= call.deadline;
  outcome.kind = late ? OutcomeKind::kTimeout : OutcomeKind::kError;
  outcome.message = status.message;
  return same_for_all(call.inputs.size(), outcome);
}

/// The verifier's answer; whatever it throws is an error of the call.
std::vector<RewardOutcome> run_call(const Verifier& verifier, const RewardCall& call) {
  const CallLimits limits{call.deadline};
  try {
    if (!call.group) {
      Result<Score> score = verifier.verify(call.inputs.front(), limits);
      return score.ok() ? std::vector{outcome_of(std::move(score).value())}
                        : failed(score.status(), call);
    }
    Result<std::vector<Score>> scores = verifier.verify_group(call.inputs, limits);
    if (!scores.ok()) {
      return failed(scores.status(), call);
    }
    if (scores->size() != call.inputs.size()) {
      const std::string message =
          fmt::format("{} scores for a group of {}", scores->size(), call.inputs.size());
      return failed({StatusCode::kInternal, message, {}, {}}, call);
    }
    std::vector<RewardOutcome> outcomes;
    for (Score& score : *scores) {
      outcomes.push_back(outcome_of(std::move(score)));
    }
    return outcomes;
  } catch (const std::exception& error) {
    return failed({StatusCode::kInternal, error.what(), {}, {}}, call);
  } catch (...) {
    return failed({StatusCode::kInternal, "the verifier threw something unknown", {}, {}}, call);
  }
}

}  // namespace

void RewardPoolConfig::validate() const {
  if (workers < 1) {
    throw ConfigError(fmt::format("reward_workers must be at least 1, not {}", workers));
  }
  if (timeout.count() < 1) {
    throw ConfigError(fmt::format("reward_timeout_s must be above 0, not {} ms", timeout.count()));
  }
}

struct RewardPool::State : std::enable_shared_from_this<RewardPool::State> {
  std::shared_ptr<const Verifier> verifier;
  RewardPoolConfig config;
  std::mutex mutex;
  std::condition_variable work;    // a call was queued, or the end
  std::condition_variable timing;  // a call was started, or the end
  std::condition_variable left;    // a thread ended
  std::deque<std::shared_ptr<RewardCall>> queue;
  std::list<std::shared_ptr<RewardCall>> running;
  int64_t threads = 0;    // alive, watcher included
  int64_t abandoned = 0;  // of those, in a call that was answered for them
  bool ending = false;    // workers finish what they have and leave
  bool watched = true;    // false: the watcher leaves too
  RewardCounts counts;
  std::vector<double> milliseconds;

  // Threads are detached: one that hangs in a verifier cannot be joined. Each holds this state and
  // is counted in `threads`, which shutdown() waits for. Call with the lock held.
  void start_thread(void (State::*body)()) {
    ++threads;
    std::thread([self = shared_from_this(), body] {
      (self.get()->*body)();
      const std::lock_guard lock(self->mutex);
      --self->threads;
      self->left.notify_all();
    }).detach();
  }

  /// Takes the right to answer `call` and counts the outcomes; false: it was answered before. Call
  /// with the lock held.
  bool settle(RewardCall& call, std::vector<RewardOutcome>& outcomes) {
    if (call.answered) {
      return false;
    }
    call.answered = true;
    const double seconds = std::chrono::duration<double>(PoolClock::now() - call.started).count();
    milliseconds.push_back(seconds * 1000.0);
    for (RewardOutcome& outcome : outcomes) {
      outcome.seconds = seconds;
      counts.values += outcome.kind == OutcomeKind::kValue ? 1 : 0;
      counts.timeouts += outcome.kind == OutcomeKind::kTimeout ? 1 : 0;
      counts.errors += outcome.kind == OutcomeKind::kError ? 1 : 0;
    }
    return true;
  }

  /// Answers for a thread that is still in its call. `lock` is released while the callback runs.
  void answer_for(const std::shared_ptr<RewardCall>& call,
                  OutcomeKind kind,
                  std::string message,
                  std::unique_lock<std::mutex>& lock) {
    RewardOutcome outcome;
    outcome.kind = kind;
    outcome.message = std::move(message);
    std::vector<RewardOutcome> outcomes = same_for_all(call->inputs.size(), outcome);
    if (settle(*call, outcomes)) {
      ++abandoned;
      lock.unlock();
      call->done(std::move(outcomes));
      lock.lock();
    }
  }

  std::shared_ptr<RewardCall> next_call() {
    std::unique_lock lock(mutex);
    work.wait(lock, [&] { return ending || !queue.empty(); });
    if (queue.empty()) {
      return nullptr;
    }
    std::shared_ptr<RewardCall> call = queue.front();
    queue.pop_front();
    call->started = PoolClock::now();
    call->deadline = call->started + config.timeout;
    running.push_back(call);
    timing.notify_one();
    return call;
  }

  void work_loop() {
    while (const std::shared_ptr<RewardCall> call = next_call()) {
      std::vector<RewardOutcome> outcomes = run_call(*verifier, *call);
      std::unique_lock lock(mutex);
      running.remove(call);
      if (!settle(*call, outcomes)) {
        --abandoned;  // another thread has this one's place
        return;
      }
      lock.unlock();
      call->done(std::move(outcomes));
    }
  }

  /// The started call that is due first, or null.
  std::shared_ptr<RewardCall> most_urgent() const {
    std::shared_ptr<RewardCall> first;
    for (const std::shared_ptr<RewardCall>& call : running) {
      if (!call->answered && (!first || call->deadline < first->deadline)) {
        first = call;
      }
    }
    return first;
  }

  void watch_loop() {
    std::unique_lock lock(mutex);
    while (watched) {
      const std::shared_ptr<RewardCall> call = most_urgent();
      if (!call) {
        timing.wait(lock);
      } else if (PoolClock::now() < call->deadline) {
        timing.wait_until(lock, call->deadline);
      } else {
        if (!ending) {
          start_thread(&State::work_loop);
        }
        answer_for(
            call,
            OutcomeKind::kTimeout,
            fmt::format("{} gave no score in {} ms", verifier->name(), config.timeout.count()),
            lock);
      }
    }
  }
};

RewardPool::RewardPool(std::shared_ptr<const Verifier> verifier, const RewardPoolConfig& config)
    : state_(std::make_shared<State>()) {
  config.validate();
  state_->verifier = std::move(verifier);
  state_->config = config;
  const std::lock_guard lock(state_->mutex);
  state_->start_thread(&State::watch_loop);
  for (int32_t i = 0; i < config.workers; ++i) {
    state_->start_thread(&State::work_loop);
  }
}

RewardPool::~RewardPool() {
  shutdown();
}

void RewardPool::submit(RewardInput input, Done done) {
  std::vector<RewardInput> inputs;
  inputs.push_back(std::move(input));
  auto call = std::make_shared<RewardCall>();
  call->inputs = std::move(inputs);
  call->done = [done = std::move(done)](std::vector<RewardOutcome> outcomes) {
    done(std::move(outcomes.front()));
  };
  enqueue(std::move(call));
}

void RewardPool::submit_group(std::vector<RewardInput> inputs, GroupDone done) {
  auto call = std::make_shared<RewardCall>();
  call->inputs = std::move(inputs);
  call->group = true;
  call->done = std::move(done);
  enqueue(std::move(call));
}

void RewardPool::enqueue(std::shared_ptr<RewardCall> call) {
  {
    const std::lock_guard lock(state_->mutex);
    if (!state_->ending) {
      state_->queue.push_back(std::move(call));
      state_->work.notify_one();
      return;
    }
  }
  call->done(same_for_all(call->inputs.size(), unstarted()));
}

std::vector<RewardOutcome> RewardPool::score(std::vector<RewardInput> inputs) {
  std::vector<std::future<RewardOutcome>> waiting;
  waiting.reserve(inputs.size());
  for (RewardInput& input : inputs) {
    auto promise = std::make_shared<std::promise<RewardOutcome>>();
    waiting.push_back(promise->get_future());
    submit(std::move(input),
           [promise](RewardOutcome outcome) { promise->set_value(std::move(outcome)); });
  }
  std::vector<RewardOutcome> outcomes;
  outcomes.reserve(waiting.size());
  for (auto& outcome : waiting) {
    outcomes.push_back(outcome.get());
  }
  return outcomes;
}

std::vector<RewardOutcome> RewardPool::score_group(std::vector<RewardInput> inputs) {
  auto promise = std::make_shared<std::promise<std::vector<RewardOutcome>>>();
  auto outcomes = promise->get_future();
  submit_group(std::move(inputs), [promise](std::vector<RewardOutcome> result) {
    promise->set_value(std::move(result));
  });
  return outcomes.get();
}

RewardCounts RewardPool::take_counts() {
  const std::lock_guard lock(state_->mutex);
  RewardCounts counts = std::exchange(state_->counts, {});
  std::vector<double> times = std::exchange(state_->milliseconds, {});
  if (!times.empty()) {
    std::sort(times.begin(), times.end());
    const auto rank = static_cast<size_t>(std::ceil(0.99 * static_cast<double>(times.size())));
    counts.milliseconds_p99 = times[std::max<size_t>(rank, 1) - 1];
  }
  counts.abandoned_threads = state_->abandoned;
  return counts;
}

void RewardPool::shutdown() {
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  if (std::exchange(state.ending, true)) {
    return;
  }
  const auto unstarted_calls = std::exchange(state.queue, {});
  state.work.notify_all();
  lock.unlock();
  for (const std::shared_ptr<RewardCall>& call : unstarted_calls) {
    call->done(same_for_all(call->inputs.size(), unstarted()));
  }
  lock.lock();
  state.left.wait_for(
      lock, state.config.shutdown_grace, [&] { return state.threads - state.abandoned <= 1; });
  while (const std::shared_ptr<RewardCall> call = state.most_urgent()) {
    state.answer_for(call, OutcomeKind::kError, "the reward pool was shut down", lock);
  }
  state.watched = false;
  state.timing.notify_all();
  state.left.wait(lock, [&] { return state.threads - state.abandoned <= 0; });
}

const char* on_reward_error_name(OnRewardError policy) {
  constexpr const char* kNames[] = {"zero", "drop_group", "fail"};
  return kNames[static_cast<int>(policy)];
}

std::optional<OnRewardError> parse_on_reward_error(std::string_view name) {
  for (const OnRewardError policy :
       {OnRewardError::kZero, OnRewardError::kDropGroup, OnRewardError::kFail}) {
    if (name == on_reward_error_name(policy)) {
      return policy;
    }
  }
  return std::nullopt;
}

GroupVerdict settle_group(std::span<const RewardOutcome> outcomes, OnRewardError policy) {
  GroupVerdict verdict;
  for (const RewardOutcome& outcome : outcomes) {
    verdict.scores.push_back(outcome.score);
    if (outcome.kind == OutcomeKind::kValue) {
      continue;
    }
    switch (policy) {
      case OnRewardError::kFail:
        throw Error(fmt::format("reward {}: {}",
                                outcome.kind == OutcomeKind::kTimeout ? "timed out" : "failed",
                                outcome.message));
      case OnRewardError::kDropGroup:
        verdict.keep = false;
        break;
      case OnRewardError::kZero:
        verdict.scores.back() = {0.0, false, {}};
        break;
    }
  }
  return verdict;
}

}  // namespace baleen::rewards
