#pragma once
// What a load run comes to: percentiles of its delays, speeds and rates. Pure.
//
//   LoadFigures figures = summarize(run);

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/bench/load/load_run.h"

namespace baleen::apps {

/// Of a set of values, in their unit; all zero for an empty set. Percentiles are interpolated
/// between neighbours in order, as numpy's are.
struct Spread {
  int64_t count = 0;
  double mean = 0.0;
  double p50 = 0.0;
  double p90 = 0.0;
  double p99 = 0.0;
  double max = 0.0;
};

Spread spread_of(std::vector<double> values);
/// `sorted` is not empty; `share` from 0 to 1.
double percentile(const std::vector<double>& sorted, double share);

struct LoadFigures {
  int64_t requests = 0;  // answered in full
  int64_t failed = 0;
  std::string first_error;
  double wall_s = 0.0;
  Spread first_token_ms;  // from sending the request to the first piece with text
  Spread gap_ms;          // between two pieces: with speculation a piece may hold several tokens
  Spread per_token_ms;    // of each request: (last piece - first piece) / (tokens - 1)
  Spread end_to_end_ms;   // from sending the request to the end of its answer
  Spread late_ms;         // behind the planned begin, where arrivals are timed
  int64_t prompt_tokens = 0;
  int64_t answer_tokens = 0;
  double requests_per_s = 0.0;
  double answer_tokens_per_s = 0.0;
  double total_tokens_per_s = 0.0;
  double mean_running = 0.0;            // requests under way, in the mean
  std::optional<double> hit_rate;       // cached of all prompt tokens
  std::optional<double> accept_rate;    // drafts that stood of those verified
  std::optional<double> accept_length;  // tokens of a verify step
};

LoadFigures summarize(const LoadRun& run);

}  // namespace baleen::apps
