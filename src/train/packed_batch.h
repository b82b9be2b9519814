#pragma once
// Samples of different lengths as one step of the model: samples of equal length form a group,
// every sample begins at position 0, and nothing is shared between samples: not the window, not a
// compression group, not an index pick. The last token of a sample is a target and never fed. Made
// on the host by one thread; then read by one step.
//
//   PackedBatch batch = pack(samples, denominators, {.device = device});
//   PackedForward out = packed_forward(params, batch, options);

#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "model/context.h"
#include "train/loss_scale.h"

namespace baleen::train {

/// One training sample.
struct Sample {
  int64_t number = 0;        // in the data stream; names it in messages and orders sums
  std::vector<int32_t> ids;  // at least two
  std::vector<float>
      weights;  // per token, as a target; 0: not trained. That of the first is unused

  int64_t fed_tokens() const { return static_cast<int64_t>(ids.size()) - 1; }
};

/// Tokens that are trained as targets.
int64_t count_targets(std::span<const Sample> samples);

struct PackOptions {
  at::Device device = at::kCPU;
  at::ScalarType dtype = at::kFloat;  // of coefficients
  /// Lengths are rounded up to a multiple of this by tokens that nobody sees, so that more samples
  /// share a group; 1: none.
  int64_t pad_multiple = 1;
  int32_t pad_id = 0;
};

/// Rows whose next token is a target, and what that is.
struct TargetRows {
  at::Tensor rows;                 // i64 [R], ascending, into the rows of the step
  at::Tensor targets;              // i64 [R]
  at::Tensor coefficients;         // [R]; the loss is the sum of coefficient * -log-probability
  std::vector<int64_t> samples;    // [R] place of the sample in PackedBatch::samples
  std::vector<int64_t> positions;  // [R] of the row in its sample
};

struct PackedSample {
  int64_t number = 0;
  int64_t row_begin = 0;  // of the main step
  int64_t tokens = 0;     // fed, without padding
};

struct PackedBatch {
  at::Tensor ids;         // i64 [N]
  at::Tensor real;        // [N], 0 where a row is padding
  at::Tensor row_sample;  // i64 [N], place in `samples`
  std::vector<model::SequenceGroup> groups;
  std::vector<PackedSample> samples;  // by length, then in the order given
  TargetRows main;

  // The MTP step: row i of a sample pairs its streams with token i + 1 and is about token i + 2.
  at::Tensor mtp_rows;        // i64 [M], the row of the main step that each MTP row continues
  at::Tensor mtp_ids;         // i64 [M]
  at::Tensor mtp_real;        // [M]
  at::Tensor mtp_row_sample;  // i64 [M]
  std::vector<model::SequenceGroup> mtp_groups;
  TargetRows mtp;

  int64_t num_rows() const { return ids.size(0); }
  int64_t num_tokens = 0;  // fed, without padding
};

/// `denominators` hold the totals of the whole optimizer step, over micro-batches and ranks.
PackedBatch pack(std::span<const Sample> samples,
                 const LossDenominators& denominators,
                 const PackOptions& options);

/// Cuts a step's samples into micro-batches of at most `max_tokens` fed tokens each (one sample may
/// be longer than that), longest first, each to the micro-batch with the fewest tokens so far. The
/// result depends on the lengths and the order alone.
std::vector<std::vector<Sample>> micro_batches(std::vector<Sample> samples, int64_t max_tokens);

/// The same, but at least `shards` of about equal size where there are as many samples.
/// `max_tokens` 0: no limit.
std::vector<std::vector<Sample>> cut_for_shards(std::vector<Sample> samples,
                                                int64_t max_tokens,
                                                int64_t shards);

}  // namespace baleen::train
