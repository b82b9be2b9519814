#pragma once
// What a run leaves beside its checkpoints: rl.json, metrics.jsonl, eval.jsonl, TensorBoard's file
// and the picture of its curve. A run that goes on first cuts away what it will make again, so the
// files read as those of an unbroken one. Owned by the run's loop; one thread.
//
//   RunRecords records(config, next_rollout, on_metrics);
//   records.write_evaluation(rollout, metrics);
//   records.write_rollout(metrics);
//   records.write_picture();

#include <cstdint>
#include <filesystem>
#include <functional>
#include <vector>

#include "policy/tensorboard_file.h"
#include "rl/rl_config.h"
#include "train/loss_plot.h"
#include "train/metrics_file.h"

namespace baleen::rl {

class RunRecords {
 public:
  using OnMetrics = std::function<void(const policy::Metrics&)>;

  /// `on_metrics` may be empty; it is told step and reward of the rollouts that are not made again.
  /// Throws SystemError.
  RunRecords(const RlConfig& config, int64_t next_rollout, OnMetrics on_metrics);

  void write_evaluation(int64_t rollout, const policy::Metrics& values);
  void write_rollout(const policy::Metrics& line);
  void write_picture() const;

  /// Reward of every rollout of the run.
  std::vector<double> rewards() const;
  /// Scores of the evaluations that are not made again, by the number of rollouts before them.
  const std::vector<train::MetricsFile::Point>& kept_evaluations() const { return evals_.kept(); }

 private:
  std::filesystem::path out_;
  OnMetrics on_metrics_;
  train::MetricsFile metrics_;
  train::MetricsFile evals_;
  policy::TensorboardFile tensorboard_;
  std::vector<train::PlotPoint> curve_;
};

}  // namespace baleen::rl
