#pragma once
// What gives a finished sample its score. A verifier is immutable and called from several worker
// threads at once. It must return by the deadline of the call or soon after it; the pool counts a
// late answer as a time-out and does not wait for it.
//
//   std::shared_ptr<const Verifier> verifier = make_verifier({.rm_type = "math"});
//   Result<Score> score = verifier->verify({.response = text, .label = "42"}, CallLimits{});
//
// A reward of your own: derive from Verifier, or write a program that reads JSON lines
// (external_verifier.h), or serve HTTP (remote_verifier.h).

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace baleen::rewards {

/// A finished sample as verifiers see it.
struct RewardInput {
  int64_t sample = 0;  // its id
  std::string prompt = {};
  std::string response = {};  // text of the response tokens
  std::string label = {};
  std::string metadata = {};         // JSON text of the prompt record's metadata; may be empty
  std::vector<int32_t> tokens = {};  // of the response
};

struct Score {
  double score = 0.0;
  std::optional<bool> acc = {};  // right or wrong, for filters; absent: score is all there is
  std::string detail = {};       // JSON text for records; may be empty
};

struct CallLimits {
  std::chrono::steady_clock::time_point deadline =
      std::chrono::steady_clock::now() + std::chrono::seconds(10);
};

/// A sample whose score is known; without `expected` any finite score is right.
struct KnownCase {
  RewardInput input;
  std::optional<double> expected;
};

class Verifier {
 public:
  virtual ~Verifier() = default;
  virtual std::string name() const = 0;
  /// A Status where no score can be given: the pool counts it as an error. kUnavailable with a
  /// deadline that has passed counts as a time-out.
  virtual Result<Score> verify(const RewardInput& input, const CallLimits& limits) const = 0;
  /// Scores of a whole group (group_rm); by default each sample alone.
  virtual Result<std::vector<Score>> verify_group(std::span<const RewardInput> inputs,
                                                  const CallLimits& limits) const;
  /// At least two for every built-in.
  virtual std::vector<KnownCase> known_cases() const { return {}; }
  /// Whether an empty label can be scored.
  virtual bool needs_label() const { return true; }
};

/// A sum that is solved rightly and wrongly, for verifiers of one's own: any finite score is right.
std::vector<KnownCase> boxed_sum_cases();

/// Runs the known cases; throws ConfigError naming the first that does not come out right. Called
/// before the first rollout, so that a verifier that scores everything 0 is not found out later.
void self_test(const Verifier& verifier, std::chrono::milliseconds timeout);

}  // namespace baleen::rewards
