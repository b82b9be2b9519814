#pragma once
// The discrete choices of one step, gathered where they are made and turned into the records of
// cache/choice_layout.h. Owned by the caller of the forward; a null pointer is off.
//
//   StepChoices choices;
//   forward_step(params, tables, rows, ids, numerics, nullptr, &choices);
//   encode_choices(choices, groups, layout, records);

#include <vector>

#include <ATen/core/Tensor.h>

#include "cache/choice_layout.h"
#include "model/context.h"
#include "model/forward.h"

namespace baleen::model {

/// Choices of one layer in the order of the step's groups. As input: what is taken instead of
/// chosen.
struct LayerChoices {
  at::Tensor experts;             // i64 [N, k] distinct per row; undefined: by score or table
  std::vector<at::Tensor> picks;  // per group, bool [B, T, E], undefined where every visible entry
                                  // is picked; empty: by the indexer
};

/// Main layers, then MTP blocks.
using ChoicesByLayer = std::vector<LayerChoices>;

struct StepChoices {
  std::vector<SequenceGroup> groups;           // of the step
  std::vector<at::Tensor> experts;             // per routed layer, i64 [N, k], as chosen
  std::vector<std::vector<at::Tensor>> picks;  // per picking layer and group, bool [1, T, E];
                                               // undefined where every visible entry is picked
};

/// Records of all tokens of the step, in their order. `records` is overwritten.
void encode_choices(const StepChoices& choices,
                    const cache::ChoiceLayout& layout,
                    ForwardChoices& records);

}  // namespace baleen::model
