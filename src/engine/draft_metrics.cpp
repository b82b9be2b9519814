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
  verify_calls_.add();
  drafted_.add(num_drafted);
  accepted_.add(num_accepted);
  accept_lengths_.observe(num_accepted + 1);
  accept_length_.set((accepted_.value() + verify_calls_.value()) / verify_calls_.value());
  accept_rate_.set(accepted_.value() / drafted_.value());
  for (int32_t i = 0; i < std::min(num_accepted + 1, num_drafted); ++i) {
    drafted_at_[static_cast<size_t>(i)]->add();
    if (i < num_accepted) {
      accepted_at_[static_cast<size_t>(i)]->add();
    }
  }
}

}  // namespace baleen::engine
