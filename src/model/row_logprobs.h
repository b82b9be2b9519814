#pragma once
// Log-probabilities of given tokens from hidden vectors, without ever holding the logits of all
// rows: forward and backward walk chunks of rows, backward computes each chunk's logits again. The
// result does not depend on the chunk size beyond the summation order of the matrix library (with
// invariant summation: not at all). Any thread.
//
//   RowLogprobs out = row_logprobs(hidden, params.head, targets, {.numerics = numerics});

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "ops/numerics_config.h"

namespace baleen::model {

struct LogprobOptions {
  ops::Numerics numerics;
  int64_t chunk_rows = 1024;  // -1: all at once
  double temperature = 1.0;   // > 0; logits are divided by it, with invariant summation to the bits
                              // that the sampler reports at that temperature
  bool entropy = false;       // of the distribution of each row
};

struct RowLogprobs {
  at::Tensor logprobs;  // [R], natural logarithm
  at::Tensor entropy;   // [R], undefined when not asked for; nats
};

/// hidden [R, H], head [V, H], targets i64 [R] in [0, V). Both results are differentiable with
/// respect to hidden and head.
RowLogprobs row_logprobs(const at::Tensor& hidden,
                         const at::Tensor& head,
                         const at::Tensor& targets,
                         const LogprobOptions& options);

}  // namespace baleen::model
