#pragma once
// The rollout/* numbers of a batch under the names that users of other trainers know. Pure.
//
//   Metrics metrics = rollout_metrics(samples);      // rollout/raw_reward,
//   rollout/response_len/mean

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "policy/numbers.h"
#include "policy/reward_shaping.h"

namespace baleen::policy {

/// A kept sample of the batch. Arrays are over the response, absent (empty) or as long as `mask`.
struct RolloutFacts {
  int64_t sample = 0;
  std::optional<double> raw_reward;  // of the verifier
  std::optional<double> reward;      // after shaping
  int64_t prompt_tokens = 0;
  SampleEnd end = SampleEnd::kCompleted;
  std::span<const uint8_t> mask;
  std::span<const int32_t> tokens;  // of the response
  Numbers logprobs;                 // trainer
  Numbers rollout_logprobs;
  Numbers ref_logprobs;
  Numbers advantages;
  Numbers returns;
  Numbers entropy;
  int64_t oldest_version = 0;
  int64_t newest_version = 0;
};

/// raw_reward, rewards, log_probs, rollout_log_probs, ref_log_probs, advantages, returns, entropy
/// (token means over the masks of the samples that have them), response_len/{mean,median,min,max},
/// total_lengths, truncated_ratio, repetition_frac, weight_version/{min,max,mean},
/// mixed_version_ratio, all below rollout/. Summed in ascending sample.
Metrics rollout_metrics(std::span<const RolloutFacts> samples);

/// One answer to a prompt of an evaluation set.
struct EvalAnswer {
  int64_t prompt = 0;
  int64_t sample = 0;
  double score = 0.0;
  bool right = false;
  bool truncated = false;
  int64_t response_len = 0;  // tokens
};

/// eval/<set> (mean score), eval/<set>-stderr (of that mean, over prompts; absent for one prompt),
/// eval/<set>-pass@k for k = 1, 2, 4 ... up to the fewest answers of a prompt (mean over prompts),
/// eval/<set>-truncated_ratio, eval/<set>-response_len/{mean,median,min,max}.
Metrics eval_metrics(const std::string& set, std::span<const EvalAnswer> answers);

}  // namespace baleen::policy
