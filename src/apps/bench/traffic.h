#pragma once
// Synthetic traffic for an engine, without HTTP: conversations whose turns continue each other,
// questions behind shared prompts, and giant prompts, any mix of them at once. Counts what the
// cache saved and what it should have saved. One driver thread; the engine's sinks only note times.
//
//   TrafficFigures figures = run_traffic(engine, {.conversations = 8, .turns = 30}, seed);

#include <cstdint>
#include <vector>

#include "engine/engine.h"

namespace baleen::apps {

struct Traffic {
  // Conversations: each turn is the whole history and some tokens more.
  int32_t conversations = 0;
  int32_t turns = 30;
  int32_t turn_tokens_min = 50;
  int32_t turn_tokens_max = 2000;
  // Questions behind shared prompts.
  int32_t groups = 0;
  int32_t questions_per_group = 16;  // one after the other in each group
  int32_t shared_tokens = 2048;
  int32_t question_tokens = 128;
  // Prompts that share nothing, one after the other.
  int32_t giants = 0;
  int32_t giant_tokens = 65536;
  int32_t answer_tokens = 64;  // of every request
};

/// Throws ConfigError naming the field that is out of range, or whose requests do not fit
/// `max_context`.
void check_traffic(const Traffic& traffic, int64_t max_context);

struct TrafficFigures {
  int64_t requests = 0;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t answer_tokens = 0;
  int64_t known_tokens = 0;       // of the prompts, run by an earlier request of the same history
  int64_t recomputed_tokens = 0;  // of those, run again
  int64_t steps = 0;
  int64_t preemptions = 0;
  double wall_s = 0.0;
  double scheduling_us = 0.0;  // processor time per step on the engine's thread, executor excluded
  double accepted = 0.0;       // tokens per drawing row
  // By place in the chain: drafts that stood of those whose predecessors stood, 0 to 1; none
  // without speculation.
  std::vector<double> stood_by_place;
  double first_token_ms = 0.0;  // median
  double gap_p50_ms = 0.0;      // between two events of a request
  double gap_p99_ms = 0.0;
  double gap_max_ms = 0.0;

  double hit_rate() const;         // cached of all prompt tokens, 0 to 1
  double recomputed_rate() const;  // of the known tokens, 0 to 1
};

/// Runs the traffic to its end. Prompts and seeds follow from `seed`. Throws Error when a request
/// is refused or fails.
TrafficFigures run_traffic(engine::Engine& engine, const Traffic& traffic, uint64_t seed);

}  // namespace baleen::apps
