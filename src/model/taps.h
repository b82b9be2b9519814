#pragma once
// Values that training takes out of the middle of a forward, with their gradients: routing
// statistics for balance, index scores and attention on entries for the indexer's own objective.
// Owned by the caller; filled by one forward.
//
//   Taps taps{.routing = true};
//   forward_training(params, ids, {.numerics = numerics, .taps = &taps});
//   at::Tensor scores = taps.layers[2].router_scores;

#include <vector>

#include <ATen/core/Tensor.h>

namespace baleen::model {

struct LayerTaps {
  at::Tensor router_experts;  // i64 [N, k], as chosen
  at::Tensor router_scores;   // [N, E], differentiable
  // Per group of the step, undefined where the group has none:
  std::vector<at::Tensor> index_scores;     // [B, T, entries] for visible and invisible entries
                                            // alike; gradients reach the indexer's parameters and
                                            // nothing else
  std::vector<at::Tensor> entry_attention;  // [B, T, entries] attention on each entry summed over
                                            // the heads, with every visible entry in the softmax;
                                            // no gradient
};

struct Taps {
  bool routing = false;
  bool index_scores = false;
  bool entry_attention = false;
  std::vector<LayerTaps> layers;  // main layers, then MTP blocks
};

}  // namespace baleen::model
