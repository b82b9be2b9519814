#pragma once
// The forward of training and of scoring for training: the model's blocks over a packed batch, up
// to the vectors before the output matrix; log-probabilities come from row_logprobs.h, in chunks.
// Differentiable; with ops::Numerics of invariant summation every value equals that of the engine,
// bit for bit. One thread.
//
//   PackedForward out = packed_forward(masters.leaves(), batch, {.numerics = numerics, ...});

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "model/block_pass.h"
#include "model/choices.h"
#include "model/context.h"
#include "model/parameters.h"
#include "model/taps.h"
#include "model/trace.h"
#include "train/packed_batch.h"

namespace baleen::train {

using model::Recompute;

struct PackedForwardOptions {
  ops::Numerics numerics;
  const model::RopeTables* tables = nullptr;  // for the longest sample
  bool with_mtp = false;
  bool routing = false;           // fill the routing taps
  bool index = false;             // fill index scores and entry attention
  bool index_scores = false;      // fill index scores alone
  model::Trace* trace = nullptr;  // named intermediate values; without gradients only
  Recompute recompute = Recompute::kNone;
  /// By layer (main layers, MTP blocks): choices that are taken instead of made, in the rows and
  /// groups of the batch; null: none are given.
  const model::ChoicesByLayer* given = nullptr;
  bool keep_choices = false;  // return those that were made
};

struct PackedForward {
  at::Tensor hidden;      // [R, H] of batch.main.rows, normalised
  at::Tensor mtp_hidden;  // [R', H] of batch.mtp.rows; undefined without MTP
  model::Taps taps;
  model::ChoicesByLayer choices;  // with keep_choices
};

PackedForward packed_forward(const model::ModelParameters& params,
                             const PackedBatch& batch,
                             const PackedForwardOptions& options);

}  // namespace baleen::train
