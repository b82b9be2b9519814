#pragma once
// Weight bytes per rank under tensor parallelism, following the published converter: vocabulary,
// attention heads, output groups and routed experts are split, everything else is on every rank.

#include <cstdint>

#include "base/model_config.h"
#include "weights/tensor_inventory.h"

namespace baleen::weights {

bool is_split(const Parameter& parameter);
/// The largest rank's bytes. Throws ConfigError when num_ranks does not divide what is split
/// (heads, output groups, routed experts).
int64_t rank_bytes(const ModelConfig& config, const CheckpointFormat& format, int64_t num_ranks);

}  // namespace baleen::weights
