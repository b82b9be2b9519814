#pragma once
// The indexer of a kC4 layer: which compressed entries each query attends to.
//
//   IndexerRows rows = project_indexer(x, latent, params, place, step);
//   at::Tensor picks = pick_entries(rows, keys, place, spec, group_index, step);

#include <cstddef>

#include <ATen/core/Tensor.h>

#include "model/compressor.h"
#include "model/context.h"
#include "model/parameters.h"

namespace baleen::model {

struct IndexerRows {
  at::Tensor query;         // [N, nI, dI], undefined when no query has more entries than top-k
  at::Tensor head_weights;  // [N, nI], with the constant inside
  CompressorRows keys;
};

/// x: the attention input [N, H]; latent: the normalised query latent [N, Q]. Both are taken as
/// constants: the choice has no gradient, and the indexer's own objective stops here.
IndexerRows project_indexer(const at::Tensor& x,
                            const at::Tensor& latent,
                            const IndexerParameters& params,
                            const BlockPlace& place,
                            const LayerSpec& spec,
                            const StepContext& step);

/// keys [B, E, dI] of the group's sequences, undefined when they have no entries. Picks: bool
/// [B, T, E], or undefined when every visible entry is taken.
at::Tensor pick_entries(const IndexerRows& rows,
                        const at::Tensor& keys,
                        const BlockPlace& place,
                        const LayerSpec& spec,
                        std::size_t group_index,
                        const StepContext& step);

/// Whether index keys and scores of the layer leave a trace for backward.
bool index_gradients_wanted(const StepContext& step);

}  // namespace baleen::model
