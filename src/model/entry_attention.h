#pragma once
// How much attention goes to each compressed entry, summed over the heads: the target of the
// indexer's own objective. For training; plain tensor operations, no gradient.
//
//   at::Tensor target = entry_attention(query, rows, sink, first_position);  // [B, T, E]

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "ops/attention.h"

namespace baleen::model {

/// query [B, T, nh, D]. The softmax runs over the window, EVERY visible entry (picks are ignored)
/// and the sink; entries that a query does not see get 0.
at::Tensor entry_attention(const at::Tensor& query,
                           const ops::AttentionRows& rows,
                           const at::Tensor& sink,
                           int64_t first_position);

}  // namespace baleen::model
