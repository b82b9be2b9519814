#pragma once
// How far the trainer's log-probabilities are from those of the rollout, for tokens sampled at the
// weights the trainer now holds. Delta = l_train - l_roll, natural logarithms of the same token at
// the same temperature. With one numeric contract on both sides every number here is exactly 0.
//
//   DriftReport report = measure_drift(rows, {.index_topk = config.index_topk});
//   append(metrics, report.metrics());          // drift/mean_abs, drift/k3, drift/by_pos/le_128
//   ...

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "policy/numbers.h"

namespace baleen::policy {

/// Arrays are over the response, absent (empty) or as long as `mask`.
struct DriftRow {
  int64_t sample = 0;
  int32_t segment = 0;
  int64_t prompt_tokens = 0;
  std::span<const uint8_t> mask;
  Numbers train;
  Numbers rollout;
  Numbers prefill;                       // the engine's own scores of the finished ids
  Numbers entropy;                       // for the deciles
  std::span<const uint8_t> after_pause;  // 1: sampled behind a pause of generation
  bool fresh = true;  // false: some token is of older weights; the row is left out
};

struct DriftConfig {
  int64_t index_topk = 0;  // K_I of the model; 0: none. Bucket edges are 128, 512, 4 K_I, 16384
};

/// Means over a set of tokens.
struct DriftNumbers {
  int64_t tokens = 0;
  double mean_abs = 0.0;
  double p50 = 0.0;  // of abs(Delta): the smallest measured value that covers the share
  double p90 = 0.0;
  double p99 = 0.0;
  double max = 0.0;
  double k3 = 0.0;  // mean of e^Delta - 1 - Delta: KL(rollout || trainer)
  double signed_mean = 0.0;
  double extreme_frac = 0.0;  // abs(Delta) > ln 2
  double exact_frac = 1.0;    // equal bits as float32
};

struct DriftReport {
  DriftNumbers all;
  int64_t rows = 0;                     // measured
  int64_t stale_rows = 0;               // left out
  double seq_abs_mean = 0.0;            // mean over rows of abs(sum of Delta)
  double seq_abs_mean_per_token = 0.0;  // the same divided by the row's tokens
  double sample_mean_abs = 0.0;         // mean over rows of the row's mean abs(Delta)
  double prob_pearson = 0.0;            // of exp(l_train) and exp(l_roll); NaN without spread
  double train_rollout_kl = 0.0;        // mean k3, each token's at most 10
  struct Named {
    std::string name;
    DriftNumbers numbers;
  };
  std::vector<Named>
      by_position;  // le_128, ... gt_16384, by position in the row; empty ones left out
  std::vector<Named> by_entropy;  // d0 .. d9, lowest tenth first; empty without entropies
  DriftNumbers after_pause;
  bool has_prefill = false;
  double decode_vs_prefill = 0.0;  // mean abs(l_pre - l_roll)
  double prefill_vs_train = 0.0;   // mean abs(l_train - l_pre)

  std::vector<int64_t> worst_samples;  // at most 8 with drift, by the row's mean abs(Delta)

  /// All of the numbers as drift/*, and train/train_rollout_logprob_abs_diff,
  /// train/train_rollout_kl.
  Metrics metrics() const;
};

/// Rows are read in ascending (sample, segment). Throws Error naming the sample when arrays differ
/// in length or an unmasked value is not finite.
DriftReport measure_drift(std::span<const DriftRow> rows, const DriftConfig& config);

}  // namespace baleen::policy
