#pragma once
// Looks at the numbers of every rollout: ends the run where they say that it is broken, warns where
// someone should look. Owned by the run's loop; one thread.
//
//   RunGuards guards(config, say);
//   guards.check(rollout, report);            // throws
//   guards.watch(batch, report, metrics);     // says

#include <cstdint>
#include <functional>
#include <string>

#include "policy/alarms.h"
#include "policy/correction.h"
#include "rl/policy_update.h"

namespace baleen::rl {

class RunGuards {
 public:
  RunGuards(const RlConfig& config, std::function<void(const std::string& line)> say);

  /// Equal bits are promised with exactness: a single one that differs is a fault of the program.
  /// Weights that rest on a few tokens announce a collapse. Throws Error with rollout, numbers and
  /// what to do.
  void check(int64_t rollout, const UpdateReport& report);
  /// `line`: the rollout's metrics.
  void watch(const RolloutBatch& batch, const UpdateReport& report, const policy::Metrics& line);

 private:
  const RlConfig& config_;
  std::function<void(const std::string& line)> say_;
  policy::EssGuard ess_guard_;
  policy::Alarms alarms_{policy::AlarmConfig{}};
};

}  // namespace baleen::rl
