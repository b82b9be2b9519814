#pragma once
// What the queries of each group may attend to: raw rows of the window, compressed entries, and the
// index keys that these are chosen by. Own rows come from the step; earlier ones from a sequence's
// state or from other ranks.
//
//   GroupRows rows = rows_of_group(projected, params, spec, place, group, step);

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "model/compressor.h"
#include "model/context.h"
#include "model/indexer.h"
#include "model/parameters.h"
#include "ops/attention.h"

namespace baleen::model {

/// Per row of the step, what becomes keys and values.
struct ProjectedRows {
  at::Tensor kv;                             // [N, D]
  std::optional<CompressorRows> compressor;  // as the layer has them
  std::optional<CompressorRows> index_keys;
};

struct GroupRows {
  ops::AttentionRows attention;  // all but the picks
  at::Tensor index_keys;         // [B, E, dI]; undefined without an indexer or without entries
};

/// Of one group of a step on one rank. Adds its rows to its state, if it has one.
GroupRows rows_of_group(const ProjectedRows& projected,
                        const AttentionParameters& params,
                        const LayerSpec& spec,
                        const BlockPlace& place,
                        const SequenceGroup& group,
                        const StepContext& step);

/// Of all groups of step.core(), with the rows that other ranks hold.
std::vector<GroupRows> rows_over_ranks(const ProjectedRows& projected,
                                       const AttentionParameters& params,
                                       const LayerSpec& spec,
                                       const StepContext& step);

}  // namespace baleen::model
