#pragma once
// What a caller of the sampling launchers must have got right. Host code, any thread.
//
//   check_sampling_batch(batch);   // aborts with the values

#include <cstdint>

#include "base/check.h"
#include "kernels/sampling/sampling_rows.h"

namespace baleen::kernels {

inline void check_sampling_batch(const SamplingBatch& b) {
  BALEEN_CHECK(b.num_rows >= 0, "num_rows={}", b.num_rows);
  if (b.num_rows == 0) {
    return;
  }
  BALEEN_CHECK(b.vocab >= 1 && b.vocab <= kMostSampledVocab && b.row_stride >= b.vocab &&
                   b.row_stride % 4 == 0,
               "vocab={} row_stride={}",
               b.vocab,
               b.row_stride);
  BALEEN_CHECK(b.counts_stride % 4 == 0 && (b.counts == nullptr || b.counts_stride >= b.vocab),
               "counts_stride={} vocab={}",
               b.counts_stride,
               b.vocab);
  BALEEN_CHECK(b.masks == nullptr || b.mask_stride >= (b.vocab + 31) / 32,
               "mask_stride={} vocab={}",
               b.mask_stride,
               b.vocab);
  BALEEN_CHECK(b.logits != nullptr && b.rows != nullptr && b.sampled != nullptr &&
               (b.top_ids == nullptr) == (b.top_logprobs == nullptr));
  BALEEN_CHECK(reinterpret_cast<uintptr_t>(b.logits) % 16 == 0 &&
               reinterpret_cast<uintptr_t>(b.counts) % 16 == 0);
}

}  // namespace baleen::kernels
