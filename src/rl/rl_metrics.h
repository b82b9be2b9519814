#pragma once
// The figures of a rollout under their names. Those under perf/, reward/time_ms_p99,
// rollout/aborted_tokens, rollout/dropped_pending_len_mean and rollout/resumed_tokens tell of the
// moment at which things happened; all others are functions of config, data and seeds. Pure.
//
//   train::Metrics metrics = rollout_metrics(batch, timings, update, version);

#include "policy/numbers.h"
#include "rl/evaluation.h"
#include "rl/policy_update.h"
#include "rl/rollout_manager.h"

namespace baleen::rl {

struct RolloutSeconds {
  double generate = 0.0;
  double publish = 0.0;
  double step = 0.0;  // all of it
};

policy::Metrics rollout_metrics(const RlConfig& config,
                                const RolloutBatch& batch,
                                const RolloutTimings& timings,
                                const UpdateReport& update,
                                int64_t version,
                                const RolloutSeconds& seconds);

/// eval/NAME, eval/NAME-pass@1 and the like.
policy::Metrics evaluation_metrics(const std::string& name, const EvaluationReport& report);

}  // namespace baleen::rl
