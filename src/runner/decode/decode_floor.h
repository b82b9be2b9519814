#pragma once
// Bytes that a decode step cannot avoid reading from memory: every weight once, of the routed
// experts those that the tokens choose, and the cache rows that the tokens see. Activations,
// written rows and ring rows are left out; they are less than one per cent. Pure.
//
//   const double bytes = layer_floor_bytes(config, spec, {.tokens = 8, .context = 32768});

#include <cstdint>

#include "base/model_config.h"

namespace baleen::runner {

struct DecodeLoad {
  int64_t tokens = 1;   // one of each sequence
  int64_t context = 0;  // tokens that each sequence sees
};

/// Experts are counted as if chosen independently and uniformly: E (1 - (1 - k/E)^tokens).
double expected_experts(const ModelConfig& config, int64_t tokens);
double layer_floor_bytes(const ModelConfig& config, const LayerSpec& spec, const DecodeLoad& load);
/// Operations of the layer's matrix products for one token; attention and index scores left out.
double layer_token_flop(const ModelConfig& config, const LayerSpec& spec);
/// Output matrix and the rows of the embedding.
double ends_floor_bytes(const ModelConfig& config, const DecodeLoad& load);

}  // namespace baleen::runner
