#pragma once
// The output head on a mesh: log-probabilities of the wanted rows of the attention core, whose
// tensor ranks share out the vocabulary, in chunks of rows. Stateless; called by every tensor rank
// alike.
//
//   HeadRows out = head_rows(streams, head, shard, targets, rows, parallel, mesh, options);

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "comm/mesh.h"
#include "mesh/mesh_step.h"
#include "mesh/vocabulary.h"
#include "model/parameters.h"

namespace baleen::mesh {

struct HeadOptions {
  double temperature = 1.0;
  int64_t chunk_rows = -1;  // rows whose logits are held at a time; -1: all
};

/// Which rows: places among the core rows of this rank, and where they are in the micro-batch.
struct WantedRows {
  at::Tensor places;       // i64 [M]; undefined: all
  at::Tensor token_index;  // i64 [M]
};

/// Rows of `core_index` (i64 [N_core], into the tokens of the layout) that `wanted` (bool, by token
/// of the layout; undefined: all) marks; the first row where it marks none.
WantedRows wanted_rows(const at::Tensor& core_index, const at::Tensor& wanted);

/// `streams` [N, n, H] of the step's own rows, `targets` i64 [M]. Differentiable.
TokenLogprobs head_rows(const at::Tensor& streams,
                        const model::HeadParameters& head,
                        const at::Tensor& output_shard,
                        const at::Tensor& targets,
                        const WantedRows& rows,
                        const MeshStep& parallel,
                        comm::Group& tensor_ranks,
                        const HeadOptions& options);

}  // namespace baleen::mesh
