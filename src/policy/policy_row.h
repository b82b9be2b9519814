#pragma once
// What the losses and the corrections read of one row of a step. A row is one sample, or one
// trainable segment of it where a rollout was split. Arrays run over the response: index t is token
// `prompt_tokens + t` of the row, and every array is empty (absent) or as long as `mask`.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "policy/numbers.h"

namespace baleen::policy {

struct PolicyRow {
  int64_t sample = 0;   // sample id; sums over rows run in ascending (sample, segment)
  int32_t segment = 0;  // of the sample's rows
  int64_t rollout = 0;  // rows of one rollout share one 1/n and count once; else = sample
  int64_t prompt_tokens = 0;
  std::span<const uint8_t> mask;    // 1: trained on; all 0 for a removed sample
  Numbers logprobs;                 // l, of the policy being trained; same temperature everywhere
  Numbers old_logprobs;             // l_old, anchor of the ratio; absent: l itself (ratio 1)
  Numbers rollout_logprobs;         // l_roll, as sampled; for OPSM and for corrections
  Numbers ref_logprobs;             // l_ref, for the KL term
  Numbers entropy;                  // nats, over the full vocabulary
  Numbers advantages;               // per token
  Numbers weights;                  // of the correction: multiply the policy term only; absent: 1
  std::span<const uint8_t> keep;    // of the correction: 0 drops all terms of a token; absent: 1
  std::span<const int32_t> tokens;  // ids, for messages only
  std::string_view versions;        // list of weight versions as text, for messages only
};

/// Unmasked tokens.
int64_t trained_tokens(std::span<const uint8_t> mask);

/// Indices of `rows` in ascending (sample, segment). Throws Error when two rows have the same pair.
std::vector<size_t> summation_order(std::span<const PolicyRow> rows);

}  // namespace baleen::policy
