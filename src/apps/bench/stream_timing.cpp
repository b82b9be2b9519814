#include "apps/bench/stream_timing.h"

#include <algorithm>
#include <chrono>
#include <memory>

#include <fmt/format.h>

#include "base/error.h"
#include "engine/collecting_sink.h"

namespace baleen::apps {
namespace {

using Clock = std::chrono::steady_clock;

double seconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

/// Notes when the first and the last token came; keeps the rest for the check at the end.
class TimedSink final : public engine::OutputSink {
 public:
  void on_event(engine::OutputEvent&& event) override {
    const Clock::time_point now = Clock::now();
    if (!event.tokens.empty()) {
      if (!any_) {
        first_ = now;
        any_ = true;
      }
      last_ = now;
    }
    inner_.on_event(std::move(event));  // its lock publishes the times
  }

  void wait() {
    inner_.wait();
    const engine::FinishInfo finish = inner_.finish();
    if (finish.reason != engine::FinishReason::kLength) {
      throw Error(fmt::format("a request of the bench ended early: {}", finish.error.message));
    }
  }
  engine::DraftCounts drafts() const { return inner_.finish().drafts; }
  Clock::time_point first() const { return first_; }
  Clock::time_point last() const { return last_; }

 private:
  engine::CollectingSink inner_;
  Clock::time_point first_;
  Clock::time_point last_;
  bool any_ = false;
};

engine::GenerationRequest make_request(const StreamLoad& load, int32_t stream) {
  engine::GenerationRequest request;
  request.id = fmt::format("bench-{}-{}", load.round, stream);
  request.prompt = load.prompt;
  const auto salt = static_cast<int64_t>(load.round) * 131 + stream * 17;
  for (int64_t i = 0; load.prompt.empty() && i < load.num_prompt_tokens; ++i) {
    request.prompt.push_back(static_cast<int32_t>((i * 7919 + salt) % load.vocab_size));
  }
  request.max_new_tokens = load.num_new_tokens;
  request.ignore_eos = true;
  request.sampling.seed = load.round;
  request.sampling.sample_index = stream;
  request.output.parse_markup = false;
  return request;
}

}  // namespace

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

StreamTiming time_streams(engine::Engine& engine, const StreamLoad& load) {
  std::vector<std::shared_ptr<TimedSink>> sinks;
  std::vector<Clock::time_point> begins;
  for (int32_t i = 0; i < load.num_streams; ++i) {
    sinks.push_back(std::make_shared<TimedSink>());
    engine::GenerationRequest request = make_request(load, i);
    begins.push_back(Clock::now());
    if (const Status status = engine.submit(std::move(request), sinks.back()); !status.ok()) {
      throw Error(fmt::format("{}: {}", status.param, status.message));
    }
  }
  std::vector<double> first_token;
  std::vector<double> decode;
  Clock::time_point last = begins[0];
  int64_t verify_steps = 0;
  int64_t accepted = 0;
  for (size_t i = 0; i < sinks.size(); ++i) {
    sinks[i]->wait();
    first_token.push_back(seconds(begins[i], sinks[i]->first()));
    decode.push_back((load.num_new_tokens - 1) / seconds(sinks[i]->first(), sinks[i]->last()));
    last = std::max(last, sinks[i]->last());
    verify_steps += sinks[i]->drafts().verify_steps;
    accepted += sinks[i]->drafts().accepted;
  }
  StreamTiming timing;
  timing.first_token_s = median(first_token);
  timing.decode_tokens_per_s = median(decode);
  timing.total_tokens_per_s =
      static_cast<double>(load.num_streams) * load.num_new_tokens / seconds(begins[0], last);
  if (verify_steps > 0) {
    timing.accept_length =
        static_cast<double>(accepted + verify_steps) / static_cast<double>(verify_steps);
  }
  return timing;
}

}  // namespace baleen::apps
