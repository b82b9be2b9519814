#pragma once
// What speculation reports: how many drafts were tried and stood, by their place in the chain.
// Owned by the engine; updated on its thread, read on any through the registry.
//
//   DraftMetrics metrics(registry, 3);
//   metrics.note(3, 2);   // a verify step tried three drafts, two stood
//   metrics.publish();    // once a step: the registry's numbers cost more than the sums

#include <cstdint>
#include <vector>

#include "base/metrics.h"

namespace baleen::engine {

/// Since the start, over all requests.
struct DraftTotals {
  int64_t verify_steps = 0;
  int64_t drafted = 0;
  int64_t accepted = 0;
  // By place in the chain: drafts there whose predecessors stood, and those of them that stood.
  std::vector<int64_t> drafted_at;
  std::vector<int64_t> accepted_at;
};

class DraftMetrics {
 public:
  DraftMetrics(MetricRegistry& registry, int32_t max_drafts);

  void note(int32_t num_drafted, int32_t num_accepted);
  void publish();
  const DraftTotals& totals() const { return totals_; }

 private:
  DraftTotals totals_;
  DraftTotals published_;
  std::vector<int64_t> lengths_;  // rows by accept length - 1, not published yet
  Counter& verify_calls_;
  Counter& drafted_;
  Counter& accepted_;
  Gauge& accept_length_;
  Gauge& accept_rate_;
  Histogram& accept_lengths_;
  std::vector<Counter*> drafted_at_;   // the registry's, by place
  std::vector<Counter*> accepted_at_;  // the same
};

}  // namespace baleen::engine
