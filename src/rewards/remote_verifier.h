#pragma once
// A reward service: POST {"sample","prompt","response","label","metadata"} to a URL, a number or an
// object with "score" back (rm_type remote_rm). Tried again with growing pauses while the service
// cannot be reached or answers 429 or 5xx, until the deadline of the call.

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "rewards/verifier.h"

namespace baleen::rewards {

struct RemoteConfig {
  std::string url = {};  // http://host:port/path
  int32_t max_retries = 4;
  std::chrono::milliseconds first_pause{100};  // doubles each time, up to 5 s
};

class RemoteVerifier final : public Verifier {
 public:
  /// Throws ConfigError for a URL that cannot be used.
  explicit RemoteVerifier(RemoteConfig config);
  ~RemoteVerifier() override;
  std::string name() const override { return "remote_rm"; }
  Result<Score> verify(const RewardInput& input, const CallLimits& limits) const override;
  std::vector<KnownCase> known_cases() const override { return boxed_sum_cases(); }
  bool needs_label() const override { return false; }

 private:
  RemoteConfig config_;
};

}  // namespace baleen::rewards
