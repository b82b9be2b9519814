#include "server/operations/cache_metrics.h"

namespace baleen::server {

CacheMetrics::CacheMetrics(MetricRegistry& registry, const engine::Engine& engine)
    : registry_(registry), engine_(engine) {
  refresh();
}

void CacheMetrics::gauge(const std::string& name, const std::string& help, double value) {
  registry_.gauge(name, help).set(value);
}

void CacheMetrics::counter(const std::string& name,
                           const std::string& help,
                           int64_t total,
                           const MetricLabels& labels) {
  std::string key = name;
  for (const auto& [label, value] : labels) {
    key += ' ' + label + '=' + value;
  }
  int64_t& counted = counted_[key];
  registry_.counter(name, help, labels).add(static_cast<double>(total - counted));
  counted = total;
}

void CacheMetrics::refresh() {
  const engine::EngineStats stats = engine_.stats();
  if (!stats.capacity.cache) {
    return;
  }
  const std::lock_guard lock(mutex_);
  const cache::SequenceCacheOptions& options = *stats.capacity.cache;
  const cache::PageBudget& pages = stats.pages;
  const double tokens = options.geometry.page_tokens;
  const int32_t used = options.sizes.full_pages - pages.free_full - pages.evictable_full;
  const int32_t used_swa = options.sizes.swa_pages - pages.free_swa - pages.evictable_swa;
  gauge("sglang:kv_available_tokens", "Tokens of free pages.", tokens * pages.free_full);
  gauge("sglang:kv_evictable_tokens",
        "Tokens of pages that are kept for later requests and can be freed.",
        tokens * pages.evictable_full);
  gauge("sglang:kv_used_tokens", "Tokens of pages that running requests hold.", tokens * used);
  gauge("sglang:swa_available_tokens", "Tokens of free window pages.", tokens * pages.free_swa);
  gauge("sglang:swa_evictable_tokens",
        "Tokens of window pages that are kept and can be freed.",
        tokens * pages.evictable_swa);
  gauge("sglang:swa_used_tokens",
        "Tokens of window pages that running requests hold.",
        tokens * used_swa);
  gauge("sglang:max_total_num_tokens_swa",
        "Token capacity of the window pages.",
        tokens * options.sizes.swa_pages);
  const cache::CacheStats& cache = stats.cache;
  counter("sglang:evicted_tokens_total",
          "Tokens of kept pages that were freed for others.",
          cache.evicted_pages * options.geometry.page_tokens);
  counter("baleen:checkpoint_hits_total",
          "Requests that continued at a resume point.",
          cache.hits_point);
  int64_t captures = 0;
  for (const int64_t count : cache.captures) {
    captures += count;
  }
  counter("baleen:checkpoint_captures_total", "Resume points made.", captures);
  for (int i = 0; i < cache::kNumCaptureSkips; ++i) {
    counter("baleen:checkpoint_skipped_total",
            "Resume points that were not made.",
            cache.captures_skipped.at(static_cast<size_t>(i)),
            {{"reason", cache::capture_skip_name(static_cast<cache::CaptureSkip>(i))}});
  }
  for (int i = 1; i < cache::kNumCutReasons; ++i) {
    counter("baleen:prefix_tokens_lost_total",
            "Prompt tokens that the cache had and that were run again.",
            cache.lost_tokens.at(static_cast<size_t>(i)),
            {{"reason", cache::cut_reason_name(static_cast<cache::CutReason>(i))}});
  }
}

}  // namespace baleen::server
