#pragma once
// Attention over one shared KV row set: the window of raw rows and the compressed entries a query
// sees, in ONE softmax with a sink logit per head. K and V are the same row. Memory is bounded by
// walking the queries in chunks, forward and backward.
//
//   AttentionRows rows{.raw = raw, .entries = entries, .picks = mask, .ratio = 4, .window = 128};
//   at::Tensor o = sparse_attention(q, rows, sink, first_position, numerics);

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "ops/numerics_config.h"

namespace baleen::ops {

struct AttentionRows {
  at::Tensor raw;      // [B, P + T, D]; row i has position first_position - P + i
  at::Tensor entries;  // [B, E, D], entry w at row w; undefined for a layer without compression
  at::Tensor picks;    // bool [B, T, E] from the indexer; undefined: every visible entry
  int64_t ratio = 0;   // tokens per entry; 0 with undefined entries
  int64_t window = 0;  // raw rows a query sees, its own included
  // Without gradients only: the draft layer lacks rows that were made for another next token.
  int64_t withheld = 0;     // oldest rows of the first query's window that `raw` does not have
  int64_t hidden_row = -1;  // row of `raw` that no query sees, -1: none
};

/// q [B, T, nh, D] of positions first_position + t, sink [nh] -> [B, T, nh, D], before the inverse
/// rotation. P + withheld >= min(first_position, window - 1). Entries w >= (position + 1) div ratio
/// are never read, whatever picks says; rows that are masked may hold anything but are multiplied
/// by zero, so they must be finite. logits are D^-1/2 * <q, row>, the sink is used as given and is
/// not in the maximum. Rounding with numerics.round_activations: e_s = exp(z_s - max of the whole
/// list) rounds to bf16 in the numerator only (the published kernel rounds against the running
/// maximum of blocks of 64 rows; the two agree where the maximum lies in the first block), and the
/// output rounds once at the end.
at::Tensor sparse_attention(const at::Tensor& q,
                            const AttentionRows& rows,
                            const at::Tensor& sink,
                            int64_t first_position,
                            const Numerics& numerics);

}  // namespace baleen::ops
