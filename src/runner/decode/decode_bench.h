#pragma once
// Times decode steps of a synthetic Flash-shape model as replays of their captured graph, per kind
// of layer, beside the bytes that such a step cannot avoid reading.
//
//   run_decode_bench({.config = config, .batches = {1, 8}, .contexts = {4096}}, print_row);

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/model_config.h"

namespace baleen::runner {

/// Tokens that a cycle with drafts verifies of every request; one less are drafted.
inline constexpr int32_t kCycleTokens = 4;

struct DecodeBenchOptions {
  ModelConfig config;                // the layers to make; a kind without a layer has no rows
  std::optional<ModelConfig> whole;  // the model they are cut from: extrapolated rows as well
  std::vector<int32_t> batches = {1, 8, 64};
  std::vector<int64_t> contexts = {4096};  // tokens before the step, for every sequence
  int32_t replays = 50;
  bool programmatic = true;
  bool stages = false;   // rows of every stage as well
  bool choices = false;  // rows of steps that record experts and picks as well
};

/// One row: a whole step, or one layer of a kind (the step with all layers of that kind less the
/// step without layers, divided by their number).
struct DecodeBenchRow {
  // "step", "swa", "c4", "c128", "ends" (embedding, head); stages: "c4/attention", "head", ..., per
  // layer, between events inside the graph, which keeps launches from overlapping. Not measured but
  // summed from those: "whole" (a step of all layers of `whole`) and "whole_cycle" (a step of
  // kCycleTokens times as many tokens and the passes that draft them). "step_recorded": the step
  // with experts and picks copied to the host, graph_us being what that takes the host behind it.
  std::string part;
  int32_t batch = 0;
  int64_t context = 0;
  double median_us = 0.0;
  double p95_us = 0.0;       // of whole replays; 0 for layers
  double floor_bytes = 0.0;  // decode_floor.h
  double floor_us = 0.0;     // at the read rate measured in this run
  double launches = 0.0;
  double eager_us = 0.0;  // host time to launch the same without a graph; 0 for layers
  double graph_us = 0.0;  // host time to launch the graph; 0 for layers
};

struct DecodeBenchSummary {
  std::string card;
  double read_tb_s = 0.0;  // measured in this run
  int64_t weight_bytes = 0;
  int64_t pool_bytes = 0;
};

/// Throws ConfigError when the kernels do not cover the shape, or the build has none.
DecodeBenchSummary run_decode_bench(const DecodeBenchOptions& options,
                                    const std::function<void(const DecodeBenchRow&)>& on_row);

/// Column names and a row as CSV; `card`, `commit` and `date` lead every line.
std::string decode_bench_header();
std::string decode_bench_line(const DecodeBenchRow& row, const std::string& where);

}  // namespace baleen::runner
