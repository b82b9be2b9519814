#include "engine/draft_metrics.h"

#include <algorithm>
#include <string>

namespace baleen::engine {
namespace {

std::vector<double> accept_length_bounds(int32_t max_drafts) {
  std::vector<double> bounds;
  for (int32_t length = 1; length <= max_drafts + 1; ++length) {
    bounds.push_back(length);
  }
  return bounds;
}

}  // namespace

DraftMetrics::DraftMetrics(MetricRegistry& r, int32_t max_drafts)
    : verify_calls_(r.counter("sglang:spec_verify_calls_total", "Rows that verified drafts.")),
      drafted_(r.counter("baleen:spec_drafted_tokens_total", "Drafts that were verified.")),
      accepted_(r.counter("baleen:spec_accepted_tokens_total", "Drafts that stood.")),
      accept_length_(r.gauge("sglang:spec_accept_length",
                             "Tokens per verify row since the start, the last one included.")),
      accept_rate_(r.gauge("sglang:spec_accept_rate", "Drafts that stood of those verified.")),
      accept_lengths_(r.histogram("baleen:spec_accept_length_tokens",
                                  "Tokens of a verify row, the last one included.",
                                  accept_length_bounds(max_drafts))) {
  r.gauge("sglang:spec_num_steps", "Most drafts of a row.").set(max_drafts);
  r.gauge("sglang:spec_num_draft_tokens", "Most tokens of a verify row.")
      .set(max_drafts > 0 ? max_drafts + 1 : 0);
  for (DraftTotals* totals : {&totals_, &published_}) {
    totals->drafted_at.assign(static_cast<size_t>(max_drafts), 0);
    totals->accepted_at.assign(static_cast<size_t>(max_drafts), 0);
  }
  lengths_.assign(static_cast<size_t>(max_drafts) + 1, 0);
  for (int32_t place = 1; place <= max_drafts; ++place) {
    const MetricLabels labels = {{"place", std::to_string(place)}};
    drafted_at_.push_back(&r.counter("baleen:spec_drafted_tokens_by_place_total",
                                     "Drafts at this place whose predecessors stood.",
                                     labels));
    accepted_at_.push_back(&r.counter(
        "baleen:spec_accepted_tokens_by_place_total", "Drafts at this place that stood.", labels));
  }
}

void DraftMetrics::note(int32_t num_drafted, int32_t num_accepted) {
  if (num_drafted == 0) {
    return;
  }
  ++totals_.verify_steps;
  totals_.drafted += num_drafted;
  totals_.accepted += num_accepted;
  ++lengths_[static_cast<size_t>(num_accepted)];
  for (int32_t i = 0; i < std::min(num_accepted + 1, num_drafted); ++i) {
    ++totals_.drafted_at[static_cast<size_t>(i)];
    totals_.accepted_at[static_cast<size_t>(i)] += i < num_accepted ? 1 : 0;
  }
}

void DraftMetrics::publish() {
  if (totals_.verify_steps == published_.verify_steps) {
    return;
  }
  const auto add = [](Counter& counter, int64_t now, int64_t& before) {
    counter.add(static_cast<double>(now - before));
    before = now;
  };
  add(verify_calls_, totals_.verify_steps, published_.verify_steps);
  add(drafted_, totals_.drafted, published_.drafted);
  add(accepted_, totals_.accepted, published_.accepted);
  for (size_t i = 0; i < drafted_at_.size(); ++i) {
    add(*drafted_at_[i], totals_.drafted_at[i], published_.drafted_at[i]);
    add(*accepted_at_[i], totals_.accepted_at[i], published_.accepted_at[i]);
  }
  for (size_t i = 0; i < lengths_.size(); ++i) {
    if (lengths_[i] > 0) {
      accept_lengths_.observe_many(static_cast<double>(i + 1), lengths_[i]);
      lengths_[i] = 0;
    }
  }
  const auto steps = static_cast<double>(totals_.verify_steps);
  accept_length_.set((static_cast<double>(totals_.accepted) + steps) / steps);
  accept_rate_.set(static_cast<double>(totals_.accepted) / static_cast<double>(totals_.drafted));
}

}  // namespace baleen::engine
