#pragma once
// The engine's metrics under the names that dashboards of other engines know (prefix sglang:) and
// our own (prefix baleen:). Created once by the engine; the handles live in the registry. Updated
// on the engine's thread, `late_events` on any.
//
//   EngineMetrics m(registry);
//   m.num_requests.add();

#include "base/metrics.h"

namespace baleen::engine {

struct EngineMetrics {
  explicit EngineMetrics(MetricRegistry& registry);

  Gauge& num_running;
  Gauge& num_queued;
  Gauge& num_used_tokens;
  Gauge& token_usage;
  Gauge& max_total_num_tokens;
  Gauge& utilization;
  Gauge& gen_throughput;
  Gauge& decode_sum_seq_lens;
  Counter& prompt_tokens;
  Counter& generation_tokens;
  Counter& cached_tokens;
  Counter& num_requests;
  Counter& num_aborted;
  Histogram& time_to_first_token;
  Histogram& inter_token_latency;
  Histogram& e2e_latency;
  Histogram& queue_time;
  Histogram& prompt_tokens_histogram;
  Histogram& generation_tokens_histogram;
  Counter& nan_logits;
  Counter& unparsable_tool_blocks;
  Counter& late_events;
  Counter& num_retracted;
  Gauge& num_paused;
  Gauge& late_step_seconds;
  Counter& late_steps;
  Gauge& cache_hit_rate;
};

}  // namespace baleen::engine
