// What the rollout manager asks of the engine: requests, their texts, and plain answers.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "numerics/philox.h"
#include "rl/rollout_manager.h"
#include "text/tokenizer.h"

namespace baleen::rl {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kLook{20};  // between looks at engine and judge
constexpr uint32_t kSeedStream = 301;

}  // namespace

uint64_t sample_seed(uint64_t rollout_seed, int64_t rollout_id, int64_t index) {
  const auto place = static_cast<uint64_t>(index);
  const numerics::PhiloxBlock block =
      numerics::philox4x32_10({{static_cast<uint32_t>(place),
                                static_cast<uint32_t>(place >> 32),
                                static_cast<uint32_t>(rollout_id),
                                0}},
                              {{static_cast<uint32_t>(rollout_seed),
                                static_cast<uint32_t>(rollout_seed >> 32) ^ kSeedStream}});
  return block.words[0] | (static_cast<uint64_t>(block.words[1]) << 32);
}

int64_t RolloutManager::num_healthy() const {
  return std::count_if(engines_.begin(), engines_.end(), [](const RolloutEngine* engine) {
    return engine->healthy();
  });
}

/// The group's own engine, or the next one that is healthy.
std::size_t RolloutManager::engine_of(int64_t group) const {
  const std::size_t own = static_cast<std::size_t>(group) % engines_.size();
  for (std::size_t i = 0; i < engines_.size(); ++i) {
    const std::size_t place = (own + i) % engines_.size();
    if (engines_[place]->healthy()) {
      return place;
    }
  }
  throw Error(fmt::format("rollout {}: {}: {}",
                          rollout_id_,
                          engines_.size() == 1 ? "the engine failed" : "every engine failed",
                          engines_[own]->health_message()));
}

/// Gives the engine that took it; one that fails in this moment has another one asked.
std::size_t RolloutManager::send(const engine::GenerationRequest& request,
                                 int64_t group,
                                 int64_t index) {
  while (true) {
    const std::size_t engine = engine_of(group);
    const Status status =
        engines_[engine]->submit(request, std::make_shared<QueueSink>(events_, index));
    if (status.ok()) {
      return engine;
    }
    if (engines_[engine]->healthy()) {
      throw Error(fmt::format(
          "the engine refuses a prompt of {} tokens: {}", request.prompt.size(), status.message));
    }
  }
}

void RolloutManager::send(const Prompt& prompt, const RolloutSample& sample) {
  try {
    live_[sample.index] = send(request_of(sample), sample.group, sample.index);
  } catch (const Error& error) {
    throw Error(fmt::format("rollout {}: prompt {}: {}", rollout_id_, prompt.number, error.what()));
  }
}

/// To another engine: behind the tokens that came, or where choices are recorded, of which none
/// came with them, from the prompt on. Draws are the same either way.
void RolloutManager::move_sample(Open& open, RolloutSample& sample) {
  ++timings_.moved_samples;
  if (stopping_) {
    sample.status = SampleStatus::kAborted;
    --open.unfinished;
    return;
  }
  if (choices_) {
    restart_sample(open, sample);
    return;
  }
  send(open.group.prompt, sample);
}

/// From the prompt on; draws are the same as the first time where the weights are.
void RolloutManager::restart_sample(Open& open, RolloutSample& sample) {
  if (log_ != nullptr) {
    log_->restart(sample.index);
  }
  sample.ids.resize(static_cast<std::size_t>(sample.prompt_tokens));
  sample.logprobs.clear();
  sample.mask.clear();
  sample.versions.clear();
  sample.choices.reset();
  send(open.group.prompt, sample);
}

engine::GenerationRequest RolloutManager::request_of(const RolloutSample& sample) const {
  engine::GenerationRequest request;
  request.id = fmt::format("r{}-{}-{}", rollout_id_, sample.index, sample.retries);
  request.prompt = sample.ids;
  request.max_new_tokens =
      static_cast<int32_t>(config_.rollout_max_response_len - sample.response_tokens());
  request.sampling.temperature = static_cast<float>(config_.rollout_temperature);
  request.sampling.seed =
      sample_seed(static_cast<uint64_t>(config_.rollout_seed), sample.rollout_id, sample.index);
  request.want_logprobs = true;
  const bool records = choices_.has_value();
  request.want_routes = records;
  request.want_picks = records;
  request.output.parse_markup = false;
  return request;
}

bool RolloutManager::ends_with_end_token(const RolloutSample& sample) const {
  const std::vector<int32_t> ends = engines_.front()->end_token_ids();
  return sample.response_tokens() > 0 &&
         std::find(ends.begin(), ends.end(), sample.ids.back()) != ends.end();
}

std::string RolloutManager::response_text(const RolloutSample& sample) const {
  const auto begin = sample.ids.begin() + sample.prompt_tokens;
  const std::vector<int32_t> shown(begin, sample.ids.end() - (ends_with_end_token(sample) ? 1 : 0));
  return tokenizer_.decode(shown, /*skip_special=*/false);
}

std::vector<RolloutSample> RolloutManager::answer(const std::vector<Prompt>& prompts,
                                                  double temperature,
                                                  uint64_t seed,
                                                  AnswerJudge& judge) {
  std::vector<RolloutSample> samples;
  int64_t running = 0;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    RolloutSample& sample = samples.emplace_back();
    sample.index = static_cast<int64_t>(i);
    sample.prompt_tokens = static_cast<int32_t>(prompts[i].ids.size());
    sample.ids = prompts[i].ids;
  }
  std::vector<std::size_t> engines(samples.size());
  const auto ask = [&](const RolloutSample& sample) {
    engine::GenerationRequest request = request_of(sample);
    request.id = fmt::format("eval-{}", sample.index);
    request.sampling.temperature = static_cast<float>(temperature);
    request.sampling.seed = sample_seed(seed, 0, sample.index);
    request.want_routes = request.want_picks = false;
    engines[static_cast<std::size_t>(sample.index)] = send(request, sample.index, sample.index);
  };
  for (const RolloutSample& sample : samples) {
    ask(sample);
    ++running;
  }
  int64_t judged = 0;
  const auto take_all = [&](std::chrono::milliseconds wait) {
    for (const Verdict& verdict : judge.take(wait)) {
      samples[static_cast<std::size_t>(verdict.index)].reward = verdict.score;
      ++judged;
    }
  };
  const Clock::time_point begin = Clock::now();
  while (running > 0 || judged < static_cast<int64_t>(samples.size())) {
    if (std::chrono::duration<double>(Clock::now() - begin).count() >
        config_.rollout_progress_timeout_s) {
      throw Error("evaluation: answers cease to end");
    }
    auto event = events_->pop(running > 0 ? kLook : std::chrono::milliseconds(0));
    if (event) {
      RolloutSample& sample = samples[static_cast<std::size_t>(event->index)];
      take_tokens(sample, event->event);
      if (event->event.finish) {
        const bool aborted = event->event.finish->reason == engine::FinishReason::kAbort;
        const bool failed = aborted || event->event.finish->reason == engine::FinishReason::kError;
        const bool lost = !engines_[engines[static_cast<std::size_t>(sample.index)]]->healthy();
        if (failed && (lost || (aborted && sample.retries++ < config_.max_sample_retries))) {
          ask(sample);  // behind the tokens that came
          continue;
        }
        --running;
        if (failed) {
          throw Error("evaluation: " + event->event.finish->error.message);
        }
        sample.status = event->event.finish->reason == engine::FinishReason::kStop
                            ? SampleStatus::kCompleted
                            : SampleStatus::kTruncated;
        sample.response = response_text(sample);
        judge.submit(prompts[static_cast<std::size_t>(sample.index)], sample);
      }
    }
    take_all(running > 0 ? std::chrono::milliseconds(0) : kLook);
  }
  return samples;
}

}  // namespace baleen::rl
