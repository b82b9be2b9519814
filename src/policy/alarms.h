#pragma once
// Watches the numbers of a run and says when someone must look. Owned by the run; one thread, one
// call per optimizer rollout.
//
//   Alarms alarms({.strict = true});
//   health.drift_samples = drift.worst_samples;
//   for (const Alarm& alarm : alarms.observe(health)) { log, or stop where alarm.stop }

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

namespace baleen::policy {

struct AlarmConfig {
  bool strict = false;         // the first step's log-probability alarms stop the run
  bool replay = false;         // choices are replayed: the reference routes for itself
  bool tuned_model = false;    // entropy at the start must lie in (0, 0.7)
  bool ref_is_actor = false;   // the reference holds the actor's weights at the first step
  bool skip_on_spike = false;  // a gradient spike asks for the step to be skipped
};

/// What one step shows; absent: not measured. Sample ids are those to look at, worst first.
struct StepHealth {
  int64_t step = 0;  // from 0
  std::optional<double> mean_old_logprob;
  std::optional<double> mean_rollout_logprob;
  std::optional<double> drift_mean_abs;
  std::optional<double> mean_abs_ref_old;  // mean abs(l_ref - l_old)
  std::optional<double> entropy;
  std::optional<double> mean_response_len;
  std::optional<double> truncated_ratio;
  std::optional<double> grad_norm;
  int64_t kept_groups = 0;
  int64_t attempted_groups = 0;  // 0: not counted
  std::vector<int64_t> drift_samples;
  std::vector<int64_t> truncated_samples;
  std::vector<int64_t> longest_samples;
};

struct Alarm {
  std::string name;     // logprob_gap, drift, ref_gap, entropy, drift_growth, few_groups, ...
  std::string message;  // with the numbers, the bound, what to do and the sample ids
  bool stop = false;
  bool skip_step = false;
};

class Alarms {
 public:
  explicit Alarms(const AlarmConfig& config) : config_(config) {}
  std::vector<Alarm> observe(const StepHealth& health);

 private:
  struct Past {
    std::optional<double> drift;
    std::optional<double> length;
    std::optional<double> entropy;
  };
  void first_step(const StepHealth& health, std::vector<Alarm>& alarms) const;
  void against_past(const StepHealth& health, std::vector<Alarm>& alarms) const;
  void gradient(const StepHealth& health, std::vector<Alarm>& alarms);

  AlarmConfig config_;
  bool first_ = true;
  std::deque<Past> past_;          // the last 20 steps
  std::deque<double> grad_norms_;  // the last 50
};

}  // namespace baleen::policy
