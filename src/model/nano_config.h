#pragma once
// The shape of the nano model: every mechanism of the architecture in 581,069 parameters, small
// enough that a job on two cores trains it in half a minute. Pure.
//
//   ModelConfig config = nano_config({.with_mtp = true, .o_groups = 4});

#include <cstdint>

#include "base/model_config.h"

namespace baleen::model {

struct NanoOptions {
  bool with_mtp = false;
  int64_t o_groups = 2;  // of width 32 / o_groups; four allow heads to be cut four ways
};

/// Ratios 0, 4, 8, 4 (8 stands for 128: dense entries, no overlap), window 8, two picks per query,
/// so that the indexer chooses from token 11 on; layer 0 routes by table.
ModelConfig nano_config(const NanoOptions& options = {});

}  // namespace baleen::model
