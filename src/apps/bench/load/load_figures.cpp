#include "apps/bench/load/load_figures.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace baleen::apps {
namespace {

constexpr double kMs = 1e3;

}  // namespace

double percentile(const std::vector<double>& sorted, double share) {
  const double place = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (place - std::floor(place)) * (sorted[above] - sorted[below]);
}

Spread spread_of(std::vector<double> values) {
  Spread spread;
  if (values.empty()) {
    return spread;
  }
  std::sort(values.begin(), values.end());
  spread.count = static_cast<int64_t>(values.size());
  spread.mean =
      std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  spread.p50 = percentile(values, 0.50);
  spread.p90 = percentile(values, 0.90);
  spread.p99 = percentile(values, 0.99);
  spread.max = values.back();
  return spread;
}

LoadFigures summarize(const LoadRun& run) {
  LoadFigures figures;
  figures.wall_s = run.wall_s;
  std::vector<double> first;
  std::vector<double> gaps;
  std::vector<double> per_token;
  std::vector<double> whole;
  std::vector<double> late;
  double busy_s = 0.0;
  int64_t cached_of = 0;
  int64_t cached = 0;
  for (const LoadRecord& record : run.records) {
    busy_s += record.end_s - record.begin_s;
    if (!record.ok) {
      ++figures.failed;
      if (figures.first_error.empty()) {
        figures.first_error = record.error;
      }
      continue;
    }
    ++figures.requests;
    whole.push_back(kMs * (record.end_s - record.begin_s));
    if (run.level.rate > 0.0) {
      late.push_back(kMs * (record.begin_s - record.wanted_s));
    }
    figures.answer_tokens += record.answer_tokens;
    figures.prompt_tokens += std::max<int64_t>(record.prompt_tokens, 0);
    if (record.cached_tokens >= 0) {
      cached += record.cached_tokens;
      cached_of += record.prompt_tokens;
    }
    if (record.first_s < 0.0) {
      continue;  // an answer without a word
    }
    first.push_back(kMs * (record.first_s - record.begin_s));
    for (const double gap : record.gaps_s) {
      gaps.push_back(kMs * gap);
    }
    if (record.answer_tokens > 1) {
      per_token.push_back(kMs * (record.last_s - record.first_s) /
                          static_cast<double>(record.answer_tokens - 1));
    }
  }
  figures.first_token_ms = spread_of(std::move(first));
  figures.gap_ms = spread_of(std::move(gaps));
  figures.per_token_ms = spread_of(std::move(per_token));
  figures.end_to_end_ms = spread_of(std::move(whole));
  figures.late_ms = spread_of(std::move(late));
  if (run.wall_s > 0.0) {
    figures.requests_per_s = static_cast<double>(figures.requests) / run.wall_s;
    figures.answer_tokens_per_s = static_cast<double>(figures.answer_tokens) / run.wall_s;
    figures.total_tokens_per_s =
        static_cast<double>(figures.answer_tokens + figures.prompt_tokens) / run.wall_s;
    figures.mean_running = busy_s / run.wall_s;
  }
  if (cached_of > 0) {
    figures.hit_rate = static_cast<double>(cached) / static_cast<double>(cached_of);
  }
  if (run.drafts && run.drafts->verify_steps > 0.0 && run.drafts->drafted > 0.0) {
    figures.accept_rate = run.drafts->accepted / run.drafts->drafted;
    figures.accept_length = 1.0 + run.drafts->accepted / run.drafts->verify_steps;
  }
  return figures;
}

}  // namespace baleen::apps
