#pragma once
// The loop of a run: rollouts, updates, publishing, evaluation, records and checkpoints, from where
// the last checkpoint stands to the end. The first rank decides; the others follow it call by call.
// One thread per rank.
//
//   SharedBatch shared;                                    // of all ranks
//   if (rank.is_first()) summary = RunLoop(config, make_executor, events, inputs, rank,
//   shared).run(); else follow_first(config, inputs.settings, rank, shared);

#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>

#include "rl/evaluation.h"
#include "rl/rank_updates.h"
#include "rl/reward_judge.h"
#include "rl/rl_metrics.h"
#include "rl/rl_run.h"
#include "rl/rollout_engines.h"
#include "rl/run_guards.h"
#include "rl/run_inputs.h"
#include "rl/run_records.h"
#include "rl/step_journal.h"
#include "rl/version_folders.h"

namespace baleen::rl {

/// What the first rank hands the others, between two agreements.
struct SharedBatch {
  const RolloutBatch* batch = nullptr;
  int64_t version = 0;
};

class RunLoop {
 public:
  /// Restores the last checkpoint and starts the engines. All references outlive the loop.
  RunLoop(const RlConfig& config,
          const ExecutorMaker& make_executor,
          const RlEvents& events,
          const RunInputs& inputs,
          train::RunRank& rank,
          SharedBatch& shared);

  RlSummary run();

 private:
  void say(const std::string& line) const;
  /// Returns where the run stood in its data.
  DataState restore();
  void save();
  /// A batch with the moment's figures, and where the run stands in its data behind it.
  struct Drawn {
    RolloutBatch batch;
    RolloutTimings timings;
    DataState data;
    double seconds = 0.0;
  };
  /// From the journal, or from the engines. With async called while the rollout before is trained.
  Drawn draw(int64_t rollout);
  RolloutBatch drawn_batch(int64_t rollout);
  void one_rollout(RunRecords& records);
  /// Of the present weights, whose version is the number of rollouts that were trained.
  policy::Metrics evaluate_weights(RunRecords& records, bool sampled);
  void keep_examples(const EvaluationReport& report);
  void note_greedy(int64_t rollout, double score);

  const RlConfig& config_;
  const RlEvents& events_;
  const PromptSource& source_;
  std::unique_ptr<AnswerJudge> judge_;
  std::unique_ptr<AnswerJudge> eval_judge_;  // null: judge_
  train::RunRank& rank_;
  SharedBatch& shared_;
  const train::Masters& masters_;
  RankUpdates updates_;
  StepJournal journal_;
  RunGuards guards_;
  int64_t rollout_ = 0;  // the next one; also the version of the weights
  std::optional<RolloutEngines> engines_;
  std::unique_ptr<RolloutManager> manager_;
  std::optional<VersionFolders> folders_;
  DataState data_;            // behind the rollout that was trained last
  std::future<Drawn> ahead_;  // the next one; behind what it uses, which it outlasts
  RlSummary summary_;
  std::shared_ptr<void> watcher_;  // shared with who made it; last: it looks at an engine
};

/// A rank beside the first, in step with RunLoop.
void follow_first(const RlConfig& config,
                  const train::RunSettings& settings,
                  train::RunRank& rank,
                  const SharedBatch& shared);

}  // namespace baleen::rl
