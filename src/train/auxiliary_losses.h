#pragma once
// Losses beside the next token's: balance of the experts, and the indexer's own objective. Pure;
// any thread.
//
//   LayerBalance balance = layer_balance(taps.layers[3], batch.row_sample, num_samples,
//   batch.real); total = total + weight / samples_of_step * balance.loss;

#include <cstdint>
#include <functional>

#include <ATen/core/Tensor.h>

#include "model/taps.h"

namespace baleen::train {

struct LayerBalance {
  /// Sum over the samples of E / (k T) * sum over e of count_e * mean over t of s_te / sum s_t,
  /// with T the sample's tokens: 1 per sample when its tokens spread evenly.
  at::Tensor loss;
  at::Tensor load;  // [E], tokens that chose each expert; no gradient
};

/// Adds up, in place, over the ranks that hold other rows of the same samples.
using SumOverRanks = std::function<void(at::Tensor& x)>;

/// row_sample i64 [N], the sample of each row; real [N], 0 where a row is padding. With
/// `sum_over_ranks` the rows are this rank's, and so is the loss: its share, which the shares of
/// the others complete.
LayerBalance layer_balance(const model::LayerTaps& taps,
                           const at::Tensor& row_sample,
                           int64_t num_samples,
                           const at::Tensor& real,
                           const SumOverRanks& sum_over_ranks = {});

/// KL divergence of the attention on visible entries (summed over heads and normalised) from the
/// softmax of the index scores, summed over the tokens that see at least two entries. scores and
/// attention [B, T, E] of one group whose tokens begin at `first_position`, real [B, T]. Gradients
/// reach the scores alone.
at::Tensor index_divergence(const at::Tensor& scores,
                            const at::Tensor& attention,
                            int64_t ratio,
                            const at::Tensor& real,
                            int64_t first_position = 0);

/// Tokens that index_divergence counts in a sample of `tokens` fed tokens.
int64_t index_tokens(int64_t tokens, int64_t ratio);

}  // namespace baleen::train
