#pragma once
// The nano model: every mechanism of the architecture in 581,069 parameters, small enough that a
// job on two cores trains it in half a minute. No file: it is built from a seed. Pure.
//
//   model::ModelParameters params = fresh_nano(nano_config(), seed, at::kFloat);

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "model/parameters.h"

namespace baleen::train {

struct NanoOptions {
  bool with_mtp = false;
  int64_t o_groups = 2;  // of width 32 / o_groups; four allow heads to be cut four ways
};

/// Ratios 0, 4, 8, 4 (8 stands for 128: dense entries, no overlap), window 8, two picks per query,
/// so that the indexer chooses from token 11 on; layer 0 routes by table.
ModelConfig nano_config(const NanoOptions& options = {});

model::ModelParameters fresh_nano(const ModelConfig& config, uint64_t seed, at::ScalarType dtype);

}  // namespace baleen::train
