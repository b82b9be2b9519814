#pragma once
// What a run says when its figures look like trouble. Owned by the loop; one thread. Trends
// begin anew when a run is resumed.
//
//   Alarms alarms;
//   for (const std::string& warning : alarms.look(metrics)) { say(warning); }

#include <deque>
#include <string>
#include <vector>

#include "policy/numbers.h"

namespace baleen::rl {

class Alarms {
 public:
  /// `metrics` of one rollout, in order. Sentences without end: what, how much, what to do.
  std::vector<std::string> look(const policy::Metrics& metrics);

 private:
  std::deque<double> entropies_;  // of the latest rollouts, oldest first
  std::deque<double> drifts_;
  std::deque<double> norms_;
  bool first_ = true;
};

}  // namespace baleen::rl
