#pragma once
// Draws one token per row of a batch of logits on the device: what sample_token (sampling.h) does
// for one row, with the same tokens. Owned by nobody; arrays are the caller's.
//
//   kernels::sample_rows_sm90({.logits = logits, .row_stride = 129280, .vocab = 129280,
//                              .num_rows = 64, .rows = rows, .sampled = out}, stream);
//
// Order of operations, rounding points and tie rules: SamplingParams in sampling.h. Differences:
//   - a row with a NaN or +inf is flagged kNotFinite and carries the best finite token, so that a
//     captured chain goes on with a legal id (sample_token gives -1);
//   - log-probs are FP32 from FP32 sums: within 2e-6 + 1e-6 |log-prob| of the exact value. Leaves
//   of
//     1,024 columns, each with its maximum and sum, are combined in double by a balanced binary
//     tree over the leaf number, so the bits do not depend on the batch, the cluster or a shard of
//     leaves.
// Sync: none; capture-safe; zero rows are legal. Oracle: sampling_oracle.h.

#include <cstdint>

#include "device/stream_handle.h"
#include "kernels/sampling/sampling.h"

namespace baleen::kernels {

inline constexpr int32_t kMostTopLogprobs = 32;
inline constexpr int32_t kMostSampledVocab = 262'144;

struct TokenBias {
  int32_t id = 0;
  float bias = 0.0F;
};

/// Parameters of one row, on the device. Lists are ranges of the batch's arrays.
struct SamplingRow {
  float temperature = 1.0F;  // 0: greedy
  int32_t top_k = -1;        // -1: all
  float top_p = 1.0F;        // (0, 1]
  float min_p = 0.0F;        // [0, 1]
  float frequency_penalty = 0.0F;
  float presence_penalty = 0.0F;
  float repetition_penalty = 1.0F;  // > 0
  int32_t sample_index = 0;
  uint64_t seed = 0;
  int64_t position = 0;     // of the drawn token in its sequence
  int32_t forced_id = -1;   // the token is this one; -1: none
  int32_t counts_row = -1;  // row of `counts`; -1: no token was generated so far
  int32_t mask_row = -1;    // row of `masks`; -1: all allowed
  int32_t bias_begin = 0;   // into `biases`
  int32_t bias_count = 0;
  int32_t forbidden_begin = 0;  // into `forbidden`
  int32_t forbidden_count = 0;
  int32_t chain_begin = 0;  // into `chain`: drafted tokens before this position, each counts once
  int32_t chain_count = 0;  // more than `counts` says
  int32_t num_top = 0;      // wanted best tokens, at most kMostTopLogprobs
};
static_assert(sizeof(SamplingRow) == 88);

struct SampledRow {
  int32_t status = 0;    // SamplingStatus
  int32_t id = -1;       // -1: kNoCandidate
  float logprob = 0.0F;  // of `id`
  int32_t num_top = 0;   // entries of the row's lists
};

struct SamplingBatch {
  const float* logits = nullptr;  // f32 [num_rows, row_stride], 16-byte aligned
  int64_t row_stride = 0;         // floats, a multiple of 4
  int32_t vocab = 0;              // 1 .. kMostSampledVocab
  int32_t num_rows = 0;
  const SamplingRow* rows = nullptr;   // [num_rows]
  const int32_t* counts = nullptr;     // i32 [.., counts_stride], 16-byte aligned; may be null
  int64_t counts_stride = 0;           // a multiple of 4
  const uint32_t* masks = nullptr;     // u32 [.., mask_stride], 32 tokens per word; may be null
  int64_t mask_stride = 0;             // words, at least vocab / 32 rounded up
  const TokenBias* biases = nullptr;   // ids in the vocabulary; may be null
  const int32_t* forbidden = nullptr;  // ids in the vocabulary; may be null
  const int32_t* chain = nullptr;      // ids in the vocabulary; may be null
  SampledRow* sampled = nullptr;       // [num_rows], out
  int32_t* top_ids = nullptr;          // i32 [num_rows, kMostTopLogprobs], out; null: none wanted
  float* top_logprobs = nullptr;       // f32 [num_rows, kMostTopLogprobs], out; null: none wanted
};

/// H100, H200: one cluster per row. `blocks_per_row`: 2, 4 or 8; 0 chooses by num_rows. It changes
/// no bit.
void sample_rows_sm90(const SamplingBatch& batch,
                      device::StreamHandle stream,
                      int32_t blocks_per_row = 0);

/// Any GPU, one block per row. The same tokens; log-probs within the stated bound.
void sample_rows_portable(const SamplingBatch& batch, device::StreamHandle stream);

}  // namespace baleen::kernels
