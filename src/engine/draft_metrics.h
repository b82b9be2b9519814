#pragma once
// What speculation reports: how many drafts were tried and stood, by their place in the chain.
// Owned by the engine; updated on its thread, read on any through the registry.
//
//   DraftMetrics metrics(registry, 3);
//   metrics.note(3, 2);   // a verify step tried three drafts, two stood

#include <cstdint>
#include <vector>

#include "base/metrics.h"

namespace baleen::engine {

class DraftMetrics {
 public:
  DraftMetrics(MetricRegistry& registry, int32_t max_drafts);

  void note(int32_t num_drafted, int32_t num_accepted);

 private:
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
