#pragma once
// How many tokens to draft for each request in the next step, from how many of its earlier drafts
// stood. Knows numbers only. Owned by the engine, used on its thread.
//
//   DraftPlanner planner({.max_drafts = 3, .adaptive = true});
//   DraftState state = planner.begin(wanted);         // a request's own limit
//   int32_t depth = planner.depth(state, num_rows);   // before a step
//   planner.note(state, depth, num_accepted);         // after it
//
// The rule: the n-th draft is made while the chance that it stands, the product of the measured
// rates of places 1 .. n, reaches what a drafted token costs. That cost rises with the number of
// decoding rows: a step of few rows reads all weights for each, one of many rows is bound by
// arithmetic, where a refused draft costs as much as a token. A request at depth 0 tries one draft
// now and then, as its text may have become easier.

#include <cstdint>
#include <vector>

namespace baleen::engine {

struct DraftPlannerConfig {
  int32_t max_drafts = 0;     // of one step; 0: none
  bool adaptive = true;       // false: max_drafts always
  double cost_few = 0.2;      // of a drafted token, in tokens, at one decoding row
  double cost_many = 0.7;     // the same at rows_many rows and more
  int32_t rows_many = 64;     // decoding rows
  int32_t probe_every = 32;   // steps at depth 0 between two tries
  double memory = 0.9375;     // weight of the past after one more observation, of a request
  double memory_all = 0.998;  // the same of the engine's rates, with which a request begins

  /// Throws ConfigError naming the field.
  void validate() const;
};

/// What is known of one request's drafts. Kept with the request.
struct DraftState {
  int32_t limit = 0;
  int32_t steps_without = 0;  // at depth 0, in a row
  std::vector<double> rates;  // by place

  /// Whether drafts will ever be made for the request.
  bool drafts() const { return limit > 0; }
};

class DraftPlanner {
 public:
  explicit DraftPlanner(const DraftPlannerConfig& config);

  /// `limit`: most drafts that the request wants; -1: as many as the engine makes.
  DraftState begin(int32_t limit) const;
  /// Drafts of its next step beside `num_rows` decoding rows (its own included).
  int32_t depth(const DraftState& state, int32_t num_rows) const;
  /// A step verified `num_drafted` drafts, of which the first `num_accepted` stood.
  void note(DraftState& state, int32_t num_drafted, int32_t num_accepted);

  /// Measured rate at which the draft at `place` (from 1) stands if all before it did, over all
  /// requests.
  double rate(int32_t place) const { return rates_[static_cast<size_t>(place - 1)]; }
  const DraftPlannerConfig& config() const { return config_; }

 private:
  DraftPlannerConfig config_;
  std::vector<double> rates_;
};

}  // namespace baleen::engine
