#pragma once
// One answer of the model to a prompt, with everything that training needs to know about it; and
// the answers to one prompt. Plain data: made by the rollout manager, written to the step journal,
// read by the policy update.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cache/choice_records.h"
#include "policy/numbers.h"

namespace baleen::rl {

struct Prompt {
  int64_t number = 0;        // in the prompt stream
  std::vector<int32_t> ids;  // at least one
  std::string text;          // as the verifier sees it
  std::string label;         // what the answer is compared with; may be empty
  std::string metadata;      // JSON object text of the data, for the verifier; may be empty
};

enum class SampleStatus : uint8_t {
  kPending,
  kCompleted,  // ended by an end token, which is its last response token
  kTruncated,  // ended by the length limit
  kAborted,    // stopped because the batch was full
  kFailed,     // the engine or the reward gave up; never counts as an answer
};
const char* sample_status_name(SampleStatus status);

enum class RewardFault : uint8_t { kNone, kError, kTimeout };

/// `count` tokens in a row sampled with weights `version`.
struct VersionRun {
  int64_t version = 0;
  int64_t count = 0;
  friend bool operator==(const VersionRun&, const VersionRun&) = default;
};

struct RolloutSample {
  int64_t group = 0;       // of the run: counts prompts that were submitted
  int64_t index = 0;       // of the run: group * answers per prompt + place in the group
  int64_t rollout_id = 0;  // the rollout that began it; with index and run seed it gives the draws
  int32_t prompt_tokens = 0;
  std::vector<int32_t> ids;          // prompt and response, exactly as sampled
  std::vector<float> logprobs;       // per response token: of the whole distribution at temperature
  std::vector<uint8_t> mask;         // per response token; 0: not trained
  std::vector<VersionRun> versions;  // of the response tokens, in order
  std::optional<cache::ChoiceRecords> choices;  // routes and picks, where recorded
  std::string response;            // text without the end token, special tokens spelt out
  double reward = 0.0;             // as the verifier says, before shaping
  std::optional<double> accuracy;  // what filtering looks at, where it differs from the reward
  SampleStatus status = SampleStatus::kPending;
  RewardFault reward_fault = RewardFault::kNone;
  bool remove_sample = false;  // keeps its place in the group, is not trained
  int32_t retries = 0;
  int64_t cached_tokens = 0;  // of the prompt, found in the prefix cache

  int64_t response_tokens() const { return static_cast<int64_t>(ids.size()) - prompt_tokens; }
  double filter_reward() const { return accuracy.value_or(reward); }
  /// Appends a response token.
  void append(int32_t id, float logprob, int64_t version);
  int64_t oldest_version() const { return versions.empty() ? 0 : versions.front().version; }
  int64_t newest_version() const { return versions.empty() ? 0 : versions.back().version; }
  bool mixed_versions() const { return versions.size() > 1; }
};

struct RolloutGroup {
  int64_t group = 0;
  int32_t round = 0;  // of generation within its rollout, 0 for the first
  Prompt prompt;
  std::vector<RolloutSample> samples;  // by index
};

/// Counts of one rollout, all functions of the finished samples.
struct RolloutCounts {
  int64_t groups_submitted = 0;
  int64_t groups_judged = 0;
  int64_t rounds = 0;
  int64_t first_samples = 0;  // finished answers of the first round that were judged
  double first_reward = 0.0;  // their mean reward: the raw reward of the rollout
  int64_t unfinished = 0;     // groups that were stopped because the batch was full
  int64_t retries = 0;
  int64_t reward_errors = 0;
  int64_t reward_timeouts = 0;
  policy::Metrics filter;  // what policy::FilterCounts says of the judged groups
};

struct RolloutBatch {
  int64_t rollout_id = 0;
  std::vector<RolloutGroup> groups;  // kept, by group number
  RolloutCounts counts;

  int64_t num_samples() const;
};

}  // namespace baleen::rl
