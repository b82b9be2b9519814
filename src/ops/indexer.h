#pragma once
// The lightning indexer: a cheap score of every compressed entry for every query, and the choice of
// the best k. The choice is a set; picks carry no gradient.
//
//   at::Tensor scores = indexer_scores(q, keys, head_weights, numerics);
//   at::Tensor picks = indexer_topk(scores, first_position, ratio, k);
//   at::Tensor mask = indexer_pick_mask(scores, first_position, ratio, k);

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "ops/numerics_config.h"

namespace baleen::ops {

/// Compressed entries that the query at `position` may see.
constexpr int64_t visible_entries(int64_t position, int64_t ratio) {
  return ratio == 0 ? 0 : (position + 1) / ratio;
}

/// sum_h weights[h] * max(0, <q_h, k>). q [B, T, nI, dI], keys [B, E, dI], weights [B, T, nI] (with
/// the constant (dI * nI)^-1/2 inside) -> [B, T, E], for visible and invisible entries alike. With
/// numerics.index_score kBf16 the dot, the product with the weight and the sum each round to bf16.
at::Tensor indexer_scores(const at::Tensor& q,
                          const at::Tensor& keys,
                          const at::Tensor& weights,
                          const Numerics& numerics);

/// The head weights: the linear layer's output times (dI * nI)^-1/2, stored as bf16 where the
/// setting says so. projected [..., nI].
at::Tensor indexer_head_weights(const at::Tensor& projected,
                                int64_t index_head_dim,
                                const Numerics& numerics);

/// scores [B, T, E] of queries at first_position + t -> int64 [B, T, min(k, E)]: the chosen entries
/// in ascending order, then -1. Only visible entries are chosen, all of them when there are at most
/// k. Higher score first; ties go to the lower index; NaN ranks below -inf.
at::Tensor indexer_topk(const at::Tensor& scores, int64_t first_position, int64_t ratio, int64_t k);

/// The same choice as bool [B, T, E].
at::Tensor indexer_pick_mask(const at::Tensor& scores,
                             int64_t first_position,
                             int64_t ratio,
                             int64_t k);

/// A list of picks (-1: none) as a mask: int64 [B, T, K] -> bool [B, T, num_entries].
at::Tensor picks_to_mask(const at::Tensor& picks, int64_t num_entries);

}  // namespace baleen::ops
