#include "engine/engine_metrics.h"

#include <vector>

namespace baleen::engine {
namespace {

std::vector<double> first_token_bounds() {
  return {0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400};
}

std::vector<double> inter_token_bounds() {
  return {0.002, 0.004, 0.006, 0.008, 0.010, 0.015, 0.020, 0.025, 0.030, 0.035, 0.040, 0.060,
          0.080, 0.100, 0.200, 0.400, 0.600, 0.800, 1,     2,     4,     6,     8};
}

std::vector<double> end_to_end_bounds() {
  std::vector<double> bounds = first_token_bounds();
  bounds.insert(bounds.end(), {600, 1200, 1800, 2400});
  return bounds;
}

std::vector<double> token_count_bounds() {
  std::vector<double> bounds;
  for (double bound = 16; bound <= 1 << 20; bound *= 2) {
    bounds.push_back(bound);
  }
  return bounds;
}

}  // namespace

EngineMetrics::EngineMetrics(MetricRegistry& r)
    : num_running(r.gauge("sglang:num_running_reqs", "Requests that run.")),
      num_queued(r.gauge("sglang:num_queue_reqs", "Requests that wait for a slot.")),
      num_used_tokens(r.gauge("sglang:num_used_tokens", "Tokens of the running sequences.")),
      token_usage(r.gauge("sglang:token_usage", "Used part of the token capacity, 0 to 1.")),
      max_total_num_tokens(r.gauge("sglang:max_total_num_tokens", "Token capacity.")),
      utilization(r.gauge("sglang:utilization", "Running requests of those that can run, 0 to 1.")),
      gen_throughput(r.gauge("sglang:gen_throughput", "Generated tokens per second, latest.")),
      decode_sum_seq_lens(
          r.gauge("sglang:decode_sum_seq_lens", "Tokens of the sequences in the latest decode.")),
      prompt_tokens(r.counter("sglang:prompt_tokens_total", "Prompt tokens run.")),
      generation_tokens(r.counter("sglang:generation_tokens_total", "Tokens generated.")),
      cached_tokens(r.counter("sglang:cached_tokens_total", "Prompt tokens taken from the cache.")),
      num_requests(r.counter("sglang:num_requests_total",
                             "Requests that ended by themselves or with an error.")),
      num_aborted(r.counter("sglang:num_aborted_requests_total", "Requests that were aborted.")),
      time_to_first_token(r.histogram("sglang:time_to_first_token_seconds",
                                      "From arrival to the first token.",
                                      first_token_bounds())),
      inter_token_latency(r.histogram("sglang:inter_token_latency_seconds",
                                      "Between two tokens of a request.",
                                      inter_token_bounds())),
      e2e_latency(r.histogram("sglang:e2e_request_latency_seconds",
                              "From arrival to the last token.",
                              end_to_end_bounds())),
      queue_time(r.histogram(
          "sglang:queue_time_seconds", "From arrival to the first step.", first_token_bounds())),
      prompt_tokens_histogram(r.histogram("sglang:prompt_tokens_histogram",
                                          "Prompt tokens of a finished request.",
                                          token_count_bounds())),
      generation_tokens_histogram(r.histogram("sglang:generation_tokens_histogram",
                                              "Generated tokens of a finished request.",
                                              token_count_bounds())),
      nan_logits(r.counter("baleen:nan_logits_total", "Requests ended by logits not finite.")),
      unparsable_tool_blocks(r.counter("baleen:unparsable_tool_blocks_total",
                                       "Tool call blocks of the model that could not be read.")),
      late_events(r.counter("baleen:late_events_total",
                            "Aborts of requests that were unknown or had ended.")),
      num_retracted(r.counter("sglang:num_retracted_requests_total",
                              "Times that a running request gave its place up.")),
      num_paused(r.gauge("sglang:num_paused_reqs", "Requests of a paused engine.")),
      late_step_seconds(r.gauge("baleen:late_step_seconds",
                                "How long the running step is waited for, once it is late.")),
      late_steps(r.counter("baleen:late_steps_total", "Steps that took longer than allowed.")),
      cache_hit_rate(r.gauge("sglang:cache_hit_rate",
                             "Tokens of admitted prompts taken from the cache, 0 to 1.")) {}

}  // namespace baleen::engine
