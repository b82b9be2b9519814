#pragma once
// The toy model of the golden values: its shape, and parameters that are a function of their
// published name and flat index, so that any implementation can fill them without a file.
//
//   ModelConfig config = toy_config();
//   double value = toy_parameter("layers.1.attn.wq_a.weight", 0);

#include <cstdint>
#include <string_view>

#include "base/model_config.h"

namespace baleen::weights {

/// Four layers of ratios 0, 4, 16, 4 (4 with overlap, 16 without) and one MTP block.
ModelConfig toy_config();

/// FNV-1a, 32 bits.
uint32_t fnv1a(std::string_view text);

/// Hashed from the name and the index: 1 + v/4 for names ending in `norm.weight`, v for
/// `embed.weight`, v/2 for the others, v in [-1, 1).
double toy_parameter(std::string_view name, int64_t index);

/// Expert of a token in one place of the routing table.
int64_t toy_expert(int64_t token, int64_t place, int64_t num_experts);

}  // namespace baleen::weights
