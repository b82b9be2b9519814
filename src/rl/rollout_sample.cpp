#include "rl/rollout_sample.h"

namespace baleen::rl {

const char* sample_status_name(SampleStatus status) {
  switch (status) {
    case SampleStatus::kPending:
      return "pending";
    case SampleStatus::kCompleted:
      return "completed";
    case SampleStatus::kTruncated:
      return "truncated";
    case SampleStatus::kAborted:
      return "aborted";
    case SampleStatus::kFailed:
      return "failed";
  }
  return "unknown";
}

void RolloutSample::append(int32_t id, float logprob, int64_t version) {
  ids.push_back(id);
  logprobs.push_back(logprob);
  mask.push_back(1);
  if (versions.empty() || versions.back().version != version) {
    versions.push_back({version, 0});
  }
  ++versions.back().count;
}

int64_t RolloutBatch::num_samples() const {
  int64_t count = 0;
  for (const RolloutGroup& group : groups) {
    count += static_cast<int64_t>(group.samples.size());
  }
  return count;
}

}  // namespace baleen::rl
