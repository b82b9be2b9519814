#include "rl/rollout_manager.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"

namespace baleen::rl {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kPatience{20};  // between looks at engine and judge
constexpr int64_t kSharedPrompt = 128;  // tokens from which on a prompt can be found in the cache

}  // namespace

RolloutManager::RolloutManager(const RlConfig& config,
                               std::vector<RolloutEngine*> engines,
                               const PromptSource& source,
                               const text::Tokenizer& tokenizer,
                               AnswerJudge& judge)
    : config_(config),
      engines_(std::move(engines)),
      choices_(engines_.at(0)->choices()),
      source_(source),
      tokenizer_(tokenizer),
      judge_(judge) {}

RolloutBatch RolloutManager::generate(int64_t rollout_id, int64_t version, TokenLog* log) {
  const Clock::time_point begin = Clock::now();
  rollout_id_ = rollout_id;
  version_ = version;
  log_ = log;
  timings_ = {};
  filter_counts_ = {};
  last_progress_ = begin;
  RolloutBatch batch;
  batch.rollout_id = rollout_id;
  const auto wanted = config_.rollout_batch_size;
  const auto kept = [&] { return static_cast<int64_t>(batch.groups.size()); };
  while (kept() < wanted) {
    while (kept() + static_cast<int64_t>(open_.size()) < wanted &&
           batch.counts.rounds < config_.max_filter_rounds) {
      submit_round(static_cast<int32_t>(batch.counts.rounds++));
      batch.counts.groups_submitted += config_.over_sampling_batch_size;
    }
    if (open_.empty()) {
      break;
    }
    judge_ready(batch);
    if (kept() < wanted && !open_.empty()) {
      wait_for_something();
    }
  }
  stop_pending(batch);
  batch.counts.filter = filter_counts_.metrics();
  if (kept() < wanted && config_.on_exhausted == "fail") {
    fail_exhausted(batch);
  }
  std::sort(batch.groups.begin(),
            batch.groups.end(),
            [](const RolloutGroup& a, const RolloutGroup& b) { return a.group < b.group; });
  if (batch.counts.first_samples > 0) {
    batch.counts.first_reward /= static_cast<double>(batch.counts.first_samples);
  }
  timings_.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  timings_.engines = num_healthy();
  timings_.reward_milliseconds_p99 = judge_.take_milliseconds_p99();
  log_ = nullptr;
  return batch;
}

void RolloutManager::submit_round(int32_t round) {
  for (int64_t i = 0; i < config_.over_sampling_batch_size; ++i) {
    RolloutGroup group;
    if (!data_.unfinished.empty()) {
      group = std::move(data_.unfinished.front());
      data_.unfinished.erase(data_.unfinished.begin());
    } else {
      group.group = data_.next_group++;
      group.prompt = source_.prompt(group.group);
      for (int64_t j = 0; j < config_.n_samples_per_prompt; ++j) {
        RolloutSample& sample = group.samples.emplace_back();
        sample.group = group.group;
        sample.index = group.group * config_.n_samples_per_prompt + j;
        sample.rollout_id = rollout_id_;
        sample.prompt_tokens = static_cast<int32_t>(group.prompt.ids.size());
        sample.ids = group.prompt.ids;
      }
    }
    open_group(std::move(group), round);
  }
  if (log_ != nullptr) {
    log_->flush();
  }
}

void RolloutManager::open_group(RolloutGroup group, int32_t round) {
  Open& open = *open_.emplace_back(std::make_unique<Open>());
  open.group = std::move(group);
  open.group.round = round;
  for (RolloutSample& sample : open.group.samples) {
    group_of_[sample.index] = &open;
    open.unfinished += sample.status == SampleStatus::kPending ? 1 : 0;
  }
  open.followers_wait = config_.rollout_cache_mb > 0 && open.group.samples.size() > 1 &&
                        static_cast<int64_t>(open.group.prompt.ids.size()) >= kSharedPrompt &&
                        open.group.samples.front().status == SampleStatus::kPending;
  if (open.followers_wait) {
    submit_sample(open, open.group.samples.front());
  } else {
    for (RolloutSample& sample : open.group.samples) {
      submit_sample(open, sample);
    }
  }
}

void RolloutManager::submit_followers(Open& open) {
  open.followers_wait = false;
  for (std::size_t i = 1; i < open.group.samples.size(); ++i) {
    submit_sample(open, open.group.samples[i]);
  }
}

/// Sends a pending answer to the engine, behind the tokens that the log has of it.
void RolloutManager::submit_sample(Open& open, RolloutSample& sample) {
  if (sample.status != SampleStatus::kPending) {
    return;
  }
  if (const LoggedTokens* known = log_ == nullptr ? nullptr : log_->find(sample.index)) {
    for (std::size_t i = 0; i < known->ids.size(); ++i) {
      sample.append(known->ids[i], known->logprobs[i], known->versions[i]);
    }
    timings_.resumed_tokens += static_cast<int64_t>(known->ids.size());
  }
  const bool ended = ends_with_end_token(sample);
  // Choices come with the end of a request: where they are recorded an answer that is whole in the
  // log still needs them, so its last token is drawn again.
  const bool records = choices_.has_value();
  if ((ended || sample.response_tokens() >= config_.rollout_max_response_len) && !records) {
    finish_sample(open, sample, ended ? SampleStatus::kCompleted : SampleStatus::kTruncated);
    return;
  }
  if (ended || sample.response_tokens() >= config_.rollout_max_response_len) {
    restart_sample(open, sample);
    return;
  }
  send(open.group.prompt, sample);
}

void RolloutManager::wait_for_something() {
  bool any = false;
  if (auto event = events_->pop(judge_.pending() > 0 ? std::chrono::milliseconds(1) : kPatience)) {
    any = true;
    take(std::move(*event));
    while (auto more = events_->pop(std::chrono::milliseconds(0))) {
      take(std::move(*more));
    }
    if (log_ != nullptr) {
      log_->flush();
    }
  }
  for (const Verdict& verdict : judge_.take(any ? std::chrono::milliseconds(0) : kPatience)) {
    any = true;
    take_verdict(verdict);
  }
  const Clock::time_point now = Clock::now();
  if (any) {
    last_progress_ = now;
  } else if (std::chrono::duration<double>(now - last_progress_).count() >
             config_.rollout_progress_timeout_s) {
    throw Error(
        fmt::format("rollout {}: no answer got on in {} s; {} are with the engines, {} with the "
                    "verifier",
                    rollout_id_,
                    config_.rollout_progress_timeout_s,
                    live_.size(),
                    judge_.pending()));
  }
}

void RolloutManager::take(SampleEvent&& event) {
  const auto found = group_of_.find(event.index);
  BALEEN_CHECK(found != group_of_.end(), "an event of sample {}", event.index);
  Open& open = *found->second;
  const std::size_t place =
      static_cast<std::size_t>(event.index - open.group.samples.front().index);
  RolloutSample& sample = open.group.samples.at(place);
  take_tokens(sample, event.event);
  if (open.followers_wait && (!event.event.tokens.empty() || event.event.finish)) {
    submit_followers(open);
  }
  if (!event.event.finish) {
    return;
  }
  const std::size_t engine = live_.at(event.index);
  live_.erase(event.index);
  const engine::FinishInfo& finish = *event.event.finish;
  sample.cached_tokens = std::max(sample.cached_tokens, finish.cached_tokens);
  switch (finish.reason) {
    case engine::FinishReason::kStop:
      finish_sample(open, sample, SampleStatus::kCompleted);
      return;
    case engine::FinishReason::kLength:
      finish_sample(open, sample, SampleStatus::kTruncated);
      return;
    case engine::FinishReason::kAbort:
      if (stopping_) {
        sample.status = SampleStatus::kAborted;
        --open.unfinished;
        return;
      }
      [[fallthrough]];  // somebody else's doing, as of a server that is shut down: not an answer
    case engine::FinishReason::kError:
      if (!engines_[engine]->healthy()) {
        move_sample(open, sample);
        return;
      }
      if (sample.retries++ < config_.max_sample_retries) {
        restart_sample(open, sample);
        return;
      }
      sample.status = SampleStatus::kFailed;
      open.failed = true;
      --open.unfinished;
  }
}

void RolloutManager::take_tokens(RolloutSample& sample, engine::OutputEvent& event) {
  for (const engine::GeneratedToken& token : event.tokens) {
    sample.append(token.id, token.logprob, version_);
    ++timings_.generated_tokens;
    if (log_ != nullptr) {
      log_->append(sample.index, token.id, token.logprob, version_);
    }
  }
  if (event.finish && event.finish->choices) {
    cache::ChoiceRecords& records = *event.finish->choices;
    if (sample.choices) {  // tokens of older weights keep the choices that they were drawn with
      cache::take_choices(*sample.choices, records, records.end(), *choices_);
    } else {
      sample.choices = std::move(records);
    }
  }
}

void RolloutManager::finish_sample(Open& open, RolloutSample& sample, SampleStatus status) {
  sample.status = status;
  sample.response = response_text(sample);
  --open.unfinished;
  ++open.unjudged;
  judge_.submit(open.group.prompt, sample);
}

void RolloutManager::take_verdict(const Verdict& verdict) {
  const auto found = group_of_.find(verdict.index);
  if (found == group_of_.end()) {
    return;  // of a group that is given up
  }
  Open& open = *found->second;
  RolloutSample& sample = open.group.samples.at(
      static_cast<std::size_t>(verdict.index - open.group.samples.front().index));
  --open.unjudged;
  if (verdict.kind == VerdictKind::kScore) {
    sample.reward = verdict.score;
    sample.accuracy = verdict.accuracy;
    return;
  }
  if (config_.on_reward_error == "fail") {
    throw Error(fmt::format("rollout {}: the verifier failed on sample {}: {}",
                            rollout_id_,
                            verdict.index,
                            verdict.message));
  }
  sample.reward = 0.0;
  sample.reward_fault =
      verdict.kind == VerdictKind::kTimeout ? RewardFault::kTimeout : RewardFault::kError;
  open.reward_failed = open.reward_failed || config_.on_reward_error == "drop_group";
}

void RolloutManager::judge_ready(RolloutBatch& batch) {
  const bool by_submission = config_.keep_order == "submit";
  for (const OpenPtr& open : open_) {
    if (open->done() && !open->listed) {
      open->listed = true;
      finish_order_.push_back(open.get());
    }
  }
  while (static_cast<int64_t>(batch.groups.size()) < config_.rollout_batch_size && !open_.empty()) {
    auto next = open_.begin();
    if (!by_submission) {
      next = finish_order_.empty()
                 ? open_.end()
                 : std::find_if(open_.begin(), open_.end(), [&](const OpenPtr& open) {
                     return open.get() == finish_order_.front();
                   });
    }
    if (next == open_.end() || !(*next)->done()) {
      return;
    }
    const OpenPtr open = std::move(*next);
    open_.erase(next);
    std::erase(finish_order_, open.get());
    forget(*open);
    if (passes(*open, batch.counts)) {
      batch.groups.push_back(std::move(open->group));
    }
  }
}

/// Filters look at correctness, not at a shaped reward, which always has spread.
bool RolloutManager::passes(const Open& open, RolloutCounts& counts) {
  ++counts.groups_judged;
  const bool failed = open.failed || open.reward_failed;
  std::vector<policy::FilterSample> group;
  for (const RolloutSample& sample : open.group.samples) {
    counts.retries += sample.retries;
    counts.reward_errors += sample.reward_fault == RewardFault::kError ? 1 : 0;
    counts.reward_timeouts += sample.reward_fault == RewardFault::kTimeout ? 1 : 0;
    group.push_back({.value = sample.filter_reward(),
                     .end = failed ? policy::SampleEnd::kFailed
                            : sample.status == SampleStatus::kTruncated
                                ? policy::SampleEnd::kTruncated
                                : policy::SampleEnd::kCompleted});
    if (open.group.round == 0 && !failed) {
      counts.first_reward += sample.reward;
      ++counts.first_samples;
    }
  }
  const std::string reason =
      policy::drop_reason(group,
                          {.nonzero_std = config_.filter == "nonzero_std",
                           .drop_all_truncated = config_.drop_all_truncated});
  filter_counts_.add(group, reason);
  return reason.empty();
}

void RolloutManager::forget(const Open& open) {
  for (const RolloutSample& sample : open.group.samples) {
    group_of_.erase(sample.index);
  }
}

/// Ends what is still under way; with partial rollouts it goes on in the next one.
void RolloutManager::stop_pending(RolloutBatch& batch) {
  stopping_ = true;
  for (const auto& [index, engine] : live_) {
    const RolloutSample& first = group_of_.at(index)->group.samples.front();
    const auto place = static_cast<std::size_t>(index - first.index);
    const RolloutSample& sample = group_of_.at(index)->group.samples[place];
    engines_[engine]->abort(fmt::format("r{}-{}-{}", rollout_id_, index, sample.retries));
  }
  for (const OpenPtr& open : open_) {
    open->followers_wait = false;
  }
  while (!live_.empty() || judge_.pending() > 0) {
    wait_for_something();
  }
  stopping_ = false;
  double dropped_tokens = 0.0;
  int64_t dropped_samples = 0;
  for (const OpenPtr& open : open_) {
    ++batch.counts.unfinished;
    forget(*open);
    for (RolloutSample& sample : open->group.samples) {
      dropped_tokens += static_cast<double>(sample.response_tokens());
      ++dropped_samples;
      timings_.aborted_tokens += config_.partial_rollout ? 0 : sample.response_tokens();
    }
    if (!config_.partial_rollout || open->failed || open->reward_failed) {
      continue;
    }
    for (RolloutSample& sample : open->group.samples) {
      if (sample.status == SampleStatus::kAborted) {
        sample.status = SampleStatus::kPending;
      }
      if (config_.mask_offpolicy_in_partial_rollout) {
        std::fill(sample.mask.begin(), sample.mask.end(), uint8_t{0});
      }
    }
    data_.unfinished.push_back(std::move(open->group));
  }
  timings_.dropped_pending_len_mean =
      dropped_samples > 0 ? dropped_tokens / static_cast<double>(dropped_samples) : 0.0;
  open_.clear();
  finish_order_.clear();
}

void RolloutManager::fail_exhausted(const RolloutBatch& batch) const {
  throw Error(
      fmt::format("rollout {}: after {} rounds {}; or set on_exhausted = shrink to train on "
                  "what there is, or raise max_filter_rounds",
                  batch.rollout_id,
                  batch.counts.rounds,
                  filter_counts_.summary(config_.rollout_batch_size)));
}

}  // namespace baleen::rl
