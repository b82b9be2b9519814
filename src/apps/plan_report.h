#pragma once
// What `plan` knows of a model: weights by type, cache bytes per token, and what fits into memory.
// Pure arithmetic on the config; no device, no checkpoint data.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include <boost/json.hpp>

#include "base/model_config.h"
#include "cache/memory_plan.h"
#include "weights/tensor_inventory.h"

namespace baleen::apps {

struct PlanRequest {
  weights::CheckpointFormat format;
  cache::CacheFormats cache_formats;
  cache::CachePlanOptions options;
  int64_t num_ranks = 1;             // tensor-parallel ranks
  std::optional<double> memory_gib;  // of one rank, for weights and cache together
  bool record_choices = false;       // records of every cached token, in host memory beside that
  /// Device memory of serving on kernels, beside weights and cache; null: not asked for.
  std::function<int64_t(const ModelConfig&, const cache::CachePlanOptions&)> device_needs;
};

struct PlanReport {
  struct Stored {
    int64_t tensors = 0;
    int64_t bytes = 0;
  };
  std::map<std::string, Stored> weights_by_type;
  Stored weights;
  int64_t rank_weight_bytes = 0;
  cache::CacheShape shape;
  cache::RetainedBytes retained;
  cache::LivePageBytes live_page;
  int64_t num_ranks = 1;
  int64_t max_context = 0;  // tokens of one sequence, as the model allows
  int32_t max_running_requests = 0;
  std::optional<double> memory_gib;        // of one rank, where given
  std::optional<cache::CacheSizes> sizes;  // where memory was given
  cache::CacheBytes bytes;                 // of these sizes
  struct Records {
    int64_t route_bytes = 0;      // of one token
    int64_t most_pick_bytes = 0;  // of one token, deep in the longest context
    int64_t most_page_bytes = 0;  // of 256 tokens
    int64_t most_bytes = 0;       // of all pages of these sizes; 0 without
  };
  std::optional<Records> records;  // where choices are recorded
  /// Device memory of one card that serves on kernels.
  struct Device {
    int64_t weights = 0;     // as the kernels read them
    int64_t body = 0;        // embedding and output matrix of the model's body, float32
    int64_t workspaces = 0;  // of graphs, passes, page tables
    int64_t context = 0;     // of CUDA and its libraries
    int64_t cache = 0;       // as fitted; 0 without memory
    int64_t total() const { return weights + body + workspaces + context + cache; }
  };
  std::optional<Device> device;  // where asked for
};

/// Throws ConfigError when the memory does not hold weights and the smallest cache, naming what
/// would.
PlanReport make_plan(const ModelConfig& config, const PlanRequest& request);
/// In words first, then all figures.
std::string plan_text(const PlanReport& report);
boost::json::object plan_json(const PlanReport& report);

}  // namespace baleen::apps
