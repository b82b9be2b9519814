#include "apps/bench/traffic.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/at_least.h"
#include "base/error.h"

namespace baleen::apps {
namespace {

using TrafficClock = std::chrono::steady_clock;

double milliseconds_between(TrafficClock::time_point from, TrafficClock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

class IdSource {
 public:
  IdSource(uint64_t seed, int64_t vocab_size) : state_(seed * 2 + 1), vocab_size_(vocab_size) {}
  uint64_t next() {
    state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
    return state_ >> 33;
  }
  void append(std::vector<int32_t>& ids, int32_t count) {
    for (int32_t i = 0; i < count; ++i) {
      ids.push_back(static_cast<int32_t>(next() % static_cast<uint64_t>(vocab_size_)));
    }
  }

 private:
  uint64_t state_;
  int64_t vocab_size_;
};

/// Requests that follow one another: the next is made when the one before has ended.
struct Lane {
  enum class Kind : uint8_t { kConversation, kQuestions, kGiants };
  Kind kind = Kind::kConversation;
  IdSource source;
  std::vector<int32_t> ids;  // the history, or the shared prompt
  int32_t num_done = 0;
  int32_t num_all = 0;
  int32_t num_known = 0;  // tokens of `ids` that a request has run
  TrafficClock::time_point submitted;
};

class EndedLanes {
 public:
  void push(size_t lane) {
    std::lock_guard lock(mutex_);
    lanes_.push_back(lane);
    changed_.notify_one();
  }
  size_t pop() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !lanes_.empty(); });
    const size_t lane = lanes_.front();
    lanes_.pop_front();
    return lane;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<size_t> lanes_;
};

/// Written on the engine's thread, read when the lane is taken out of `ended`.
class LaneSink final : public engine::OutputSink {
 public:
  LaneSink(EndedLanes& ended, size_t lane) : ended_(ended), lane_(lane) {}
  void on_event(engine::OutputEvent&& event) override {
    if (!event.tokens.empty()) {
      times.push_back(TrafficClock::now());
    }
    for (const engine::GeneratedToken& token : event.tokens) {
      ids.push_back(token.id);
    }
    if (event.finish) {
      finish = std::move(*event.finish);
      ended_.push(lane_);
    }
  }
  std::vector<TrafficClock::time_point> times;
  std::vector<int32_t> ids;
  engine::FinishInfo finish;

 private:
  EndedLanes& ended_;
  size_t lane_;
};

class TrafficRun {
 public:
  TrafficRun(engine::Engine& engine, const Traffic& traffic, uint64_t seed)
      : engine_(engine), traffic_(traffic) {
    const int64_t vocab_size = engine.stats().capacity.vocab_size;
    const auto add = [&](Lane::Kind kind, int32_t count, int32_t requests) {
      for (int32_t i = 0; i < count && requests > 0; ++i) {
        Lane lane{.kind = kind,
                  .source = IdSource(seed * 1000003 + lanes_.size(), vocab_size),
                  .ids = {},
                  .num_all = requests,
                  .submitted = {}};
        if (kind == Lane::Kind::kQuestions) {
          lane.source.append(lane.ids, traffic.shared_tokens);
        }
        lanes_.push_back(std::move(lane));
      }
    };
    add(Lane::Kind::kConversation, traffic.conversations, traffic.turns);
    add(Lane::Kind::kQuestions, traffic.groups, traffic.questions_per_group);
    add(Lane::Kind::kGiants, 1, traffic.giants);
    sinks_.resize(lanes_.size());
  }

  TrafficFigures run() {
    const engine::EngineStats before = engine_.stats();
    const TrafficClock::time_point begin = TrafficClock::now();
    for (size_t i = 0; i < lanes_.size(); ++i) {
      submit(i);
    }
    for (size_t num_open = lanes_.size(); num_open > 0;) {
      const size_t i = ended_.pop();
      take(i);
      if (lanes_[i].num_done < lanes_[i].num_all) {
        submit(i);
      } else {
        --num_open;
      }
    }
    const engine::EngineStats after = engine_.stats();
    TrafficFigures& f = figures_;
    f.wall_s = milliseconds_between(begin, TrafficClock::now()) * 1e-3;
    f.steps = after.num_steps - before.num_steps;
    f.preemptions = after.num_preemptions - before.num_preemptions;
    f.scheduling_us = 1e6 * (after.scheduling_s - before.scheduling_s) /
                      static_cast<double>(std::max<int64_t>(f.steps, 1));
    f.accepted = static_cast<double>(after.num_drawn - before.num_drawn) /
                 static_cast<double>(std::max<int64_t>(after.num_draws - before.num_draws, 1));
    for (size_t place = 0; place < after.drafts.drafted_at.size(); ++place) {
      // Before its first step an engine has no places yet.
      const auto more = [&](const std::vector<int64_t>& now, const std::vector<int64_t>& then) {
        return static_cast<double>(now[place] - (then.empty() ? 0 : then[place]));
      };
      const double tried = more(after.drafts.drafted_at, before.drafts.drafted_at);
      f.stood_by_place.push_back(
          tried == 0.0 ? 0.0 : more(after.drafts.accepted_at, before.drafts.accepted_at) / tried);
    }
    f.first_token_ms = quantile(first_token_ms_, 0.5);
    f.gap_p50_ms = quantile(gaps_ms_, 0.5);
    f.gap_p99_ms = quantile(gaps_ms_, 0.99);
    f.gap_max_ms = quantile(gaps_ms_, 1.0);
    return f;
  }

 private:
  static double quantile(std::vector<double>& values, double share) {
    if (values.empty()) {
      return 0.0;
    }
    std::sort(values.begin(), values.end());
    const auto last = static_cast<double>(values.size() - 1);
    return values[static_cast<size_t>(share * last + 0.5)];
  }

  /// The lane's next prompt; what of it is kept for later requests is in `ids`.
  std::vector<int32_t> next_prompt(Lane& lane) const {
    std::vector<int32_t> prompt;
    switch (lane.kind) {
      case Lane::Kind::kConversation: {
        const int32_t range = traffic_.turn_tokens_max - traffic_.turn_tokens_min + 1;
        const auto more = static_cast<int32_t>(lane.source.next() % static_cast<uint64_t>(range));
        lane.source.append(lane.ids, traffic_.turn_tokens_min + more);
        prompt = lane.ids;
        break;
      }
      case Lane::Kind::kQuestions:
        prompt = lane.ids;
        lane.source.append(prompt, traffic_.question_tokens);
        break;
      case Lane::Kind::kGiants:
        lane.source.append(prompt, traffic_.giant_tokens);
        break;
    }
    return prompt;
  }

  void submit(size_t index) {
    Lane& lane = lanes_[index];
    engine::GenerationRequest request;
    request.id = fmt::format("traffic-{}-{}", index, lane.num_done);
    request.prompt = next_prompt(lane);
    request.max_new_tokens = traffic_.answer_tokens;
    request.ignore_eos = true;
    request.sampling.seed = index;
    request.sampling.sample_index = lane.num_done;
    request.output.parse_markup = false;
    figures_.known_tokens += lane.num_known;
    figures_.prompt_tokens += static_cast<int64_t>(request.prompt.size());
    sinks_[index] = std::make_shared<LaneSink>(ended_, index);
    lane.submitted = TrafficClock::now();
    if (const Status status = engine_.submit(std::move(request), sinks_[index]); !status.ok()) {
      throw Error(fmt::format("{}: {}", status.param, status.message));
    }
  }

  void take(size_t index) {
    Lane& lane = lanes_[index];
    const LaneSink& sink = *sinks_[index];
    if (sink.finish.reason != engine::FinishReason::kLength) {
      throw Error(fmt::format("a request ended early: {}", sink.finish.error.message));
    }
    const auto cached = static_cast<int32_t>(sink.finish.cached_tokens);
    ++figures_.requests;
    figures_.cached_tokens += cached;
    figures_.answer_tokens += sink.finish.completion_tokens;
    figures_.recomputed_tokens += std::max(0, lane.num_known - cached);
    first_token_ms_.push_back(milliseconds_between(lane.submitted, sink.times.at(0)));
    for (size_t i = 1; i < sink.times.size(); ++i) {
      gaps_ms_.push_back(milliseconds_between(sink.times[i - 1], sink.times[i]));
    }
    ++lane.num_done;
    if (lane.kind == Lane::Kind::kConversation) {
      lane.ids.insert(lane.ids.end(), sink.ids.begin(), sink.ids.end());
    }
    // The last token of an answer has not run.
    lane.num_known =
        static_cast<int32_t>(lane.ids.size()) - (lane.kind == Lane::Kind::kConversation ? 1 : 0);
  }

  engine::Engine& engine_;
  const Traffic traffic_;
  EndedLanes ended_;
  std::vector<Lane> lanes_;
  std::vector<std::shared_ptr<LaneSink>> sinks_;  // of the lane's present request, with the engine
  TrafficFigures figures_;
  std::vector<double> first_token_ms_;
  std::vector<double> gaps_ms_;
};

}  // namespace

void check_traffic(const Traffic& t, int64_t max_context) {
  check_at_least("conversations", t.conversations, 0);
  check_at_least("turns", t.turns, 1);
  check_at_least("turn_tokens_min", t.turn_tokens_min, 1);
  check_at_least("turn_tokens_max", t.turn_tokens_max, t.turn_tokens_min);
  check_at_least("groups", t.groups, 0);
  check_at_least("questions_per_group", t.questions_per_group, 1);
  check_at_least("shared_tokens", t.shared_tokens, 1);
  check_at_least("question_tokens", t.question_tokens, 1);
  check_at_least("giants", t.giants, 0);
  check_at_least("giant_tokens", t.giant_tokens, 1);
  check_at_least("answer_tokens", t.answer_tokens, 1);
  const auto fits = [&](const char* name, int64_t tokens) {
    if (tokens > max_context) {
      throw ConfigError(
          fmt::format("{} can take {} tokens, the context has {}", name, tokens, max_context));
    }
  };
  if (t.conversations > 0) {
    fits("a conversation", int64_t{t.turns} * (t.turn_tokens_max + t.answer_tokens));
  }
  if (t.groups > 0) {
    fits("a question", int64_t{t.shared_tokens} + t.question_tokens + t.answer_tokens);
  }
  if (t.giants > 0) {
    fits("a giant prompt", int64_t{t.giant_tokens} + t.answer_tokens);
  }
}

double TrafficFigures::hit_rate() const {
  return prompt_tokens == 0
             ? 0.0
             : static_cast<double>(cached_tokens) / static_cast<double>(prompt_tokens);
}

double TrafficFigures::recomputed_rate() const {
  return known_tokens == 0
             ? 0.0
             : static_cast<double>(recomputed_tokens) / static_cast<double>(known_tokens);
}

TrafficFigures run_traffic(engine::Engine& engine, const Traffic& traffic, uint64_t seed) {
  check_traffic(traffic, engine.stats().capacity.max_context);
  return TrafficRun(engine, traffic, seed).run();
}

}  // namespace baleen::apps
