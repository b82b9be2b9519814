#pragma once
// A whole run: warm-up, rollouts through the engine, policy updates, publishing, evaluation,
// records. What a rollout trains is a function of config, data and its number, so a run that was
// ended at any moment goes on to the same bits: from its last checkpoint, with the batches that the
// journal has, and behind the tokens that the log has. Called by one thread.
//
//   RlSummary summary = run_rl(config, make_executor, {.say = print, .on_rollout = show});

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/executor.h"
#include "model/parameters.h"
#include "policy/numbers.h"
#include "rl/rl_config.h"
#include "rl/rollout_line.h"
#include "rl/rollout_sample.h"
#include "train/step_report.h"

namespace baleen::rl {

/// Makes what carries out the engine's steps, over the trainer's own tensors.
using ExecutorMaker = std::function<std::unique_ptr<engine::Executor>(model::ModelParameters shown,
                                                                      const RlConfig& config)>;

/// Each may be empty.
struct RlEvents {
  std::function<void(const std::string& line)> say = {};
  std::function<void(const train::StepReport&, int64_t num_steps)> on_warm_up = {};
  std::function<void(const RolloutLine&)> on_rollout = {};
  /// The line of metrics.jsonl of every rollout; of those that a resumed run does not make again
  /// step and reward alone.
  std::function<void(const policy::Metrics&)> on_metrics = {};
  /// Called with the first engine once it runs. What it gives looks on: it is let go before the
  /// engine is.
  std::function<std::shared_ptr<void>(engine::Engine&)> watch = {};
  std::function<bool()> stop = {};  // asked after every step; true: save and end
};

struct RlSummary {
  int64_t next_rollout = 0;
  bool stopped = false;
  double greedy_start = -1.0;  // share solved; -1: not evaluated by this call
  double greedy_end = -1.0;
  std::vector<double> rewards;       // of every rollout of the run
  std::vector<RolloutGroup> solved;  // three examples of the last evaluation, one answer each
  std::vector<RolloutGroup> failed;  // one
  double seconds = 0.0;
};

/// Throws Error with one sentence: option, file, sample, what came, what to do.
RlSummary run_rl(const RlConfig& config,
                 const ExecutorMaker& make_executor,
                 const RlEvents& events);

}  // namespace baleen::rl
