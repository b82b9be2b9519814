#pragma once
// The compressor of a layer, main or indexer: groups of `ratio` tokens become one entry each, for
// whole sequences at once or from where a sequence's state stands.
//
//   CompressorRows rows = project_compressor(x, params, step);
//   at::Tensor entries = compressed_entries(rows, params, spec, kind, group, state, step);

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "model/context.h"
#include "model/parameters.h"

namespace baleen::model {

/// Per token, without position bias: value and gate, [N, c·d] each.
struct CompressorRows {
  at::Tensor value;
  at::Tensor gate;
};

CompressorRows project_compressor(const at::Tensor& x,
                                  const CompressorParameters& params,
                                  const StepContext& step);

/// What happens to an entry after pooling, norm and rotation.
enum class EntryKind : uint8_t {
  kAttention,  // S8 on the part that is not rotated
  kIndexKey,   // Hadamard and index quantisation on all of it
};

/// All entries that the group's sequences have after this step, [B, E, d]; undefined when there are
/// none. With a state, the step's tokens are added to it first; the result is then a view of it.
at::Tensor compressed_entries(const CompressorRows& rows,
                              const CompressorParameters& params,
                              const LayerSpec& spec,
                              EntryKind kind,
                              const SequenceGroup& group,
                              CompressorState* state,
                              const StepContext& step);

/// The same rows [N, c·d] with the position bias in the gate, for pooling on other ranks.
CompressorRows with_position_bias(const CompressorRows& rows,
                                  const CompressorParameters& params,
                                  const StepContext& step);

/// Entries first_entry ... of [B, e, d], pooled from value and biased gate [B, R, c·d] of positions
/// first_position ... of which the last of them closes with the last row.
at::Tensor entries_from(const CompressorRows& rows,
                        int64_t first_position,
                        int64_t first_entry,
                        int64_t num_entries,
                        const CompressorParameters& params,
                        const LayerSpec& spec,
                        EntryKind kind,
                        const StepContext& step);

/// S8 on all but the last `rotary_dim` elements, where the numerics ask for it.
at::Tensor quantize_kv_row(const at::Tensor& row, const StepContext& step);

}  // namespace baleen::model
