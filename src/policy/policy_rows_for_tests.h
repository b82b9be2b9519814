#pragma once
// Rows that own their arrays, for the tests of this room.

#include <cstdint>
#include <vector>

#include "policy/policy_row.h"

namespace baleen::policy {

struct OwnedRow {
  int64_t sample = 0;
  std::vector<uint8_t> mask;
  std::vector<double> logprobs, old_logprobs, rollout_logprobs, ref_logprobs, entropy, advantages;
  std::vector<double> weights;
  std::vector<uint8_t> keep;
  int64_t rollout = -1;  // -1: the sample
  int32_t segment = 0;

  PolicyRow view() const {
    PolicyRow row;
    row.sample = sample;
    row.segment = segment;
    row.rollout = rollout < 0 ? sample : rollout;
    row.mask = mask;
    row.logprobs = Numbers(logprobs);
    row.old_logprobs = Numbers(old_logprobs);
    row.rollout_logprobs = Numbers(rollout_logprobs);
    row.ref_logprobs = Numbers(ref_logprobs);
    row.entropy = Numbers(entropy);
    row.advantages = Numbers(advantages);
    row.weights = Numbers(weights);
    row.keep = keep;
    return row;
  }
};

std::vector<PolicyRow> views(std::vector<OwnedRow>&& rows) = delete;
inline std::vector<PolicyRow> views(const std::vector<OwnedRow>& rows) {
  std::vector<PolicyRow> result;
  result.reserve(rows.size());
  for (const OwnedRow& row : rows) {
    result.push_back(row.view());
  }
  return result;
}

}  // namespace baleen::policy
