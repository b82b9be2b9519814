#include "rl/run_records.h"

#include <chrono>
#include <utility>

#include "rl/rl_options.h"
#include "weights/mapped_file.h"

namespace baleen::rl {
namespace {

constexpr const char* kStep = "train/step";
constexpr const char* kReward = "rollout/raw_reward";

/// Since 1970, for event files.
double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void write_effective_config(const RlConfig& config) {
  RlConfig copy = config;
  weights::write_text_file(std::filesystem::path(config.out) / "rl.json",
                           train::options_json(train::options_of(copy)));
}

}  // namespace

RunRecords::RunRecords(const RlConfig& config, int64_t next_rollout, OnMetrics on_metrics)
    : out_(config.out),
      on_metrics_(std::move(on_metrics)),
      metrics_(out_ / "metrics.jsonl", next_rollout, kReward),
      // The evaluation of a saved rollout is written before it is saved; the first comes again.
      evals_(out_ / "eval.jsonl", next_rollout == 0 ? 0 : next_rollout + 1, "eval/" + config.task),
      tensorboard_(out_ / "tensorboard", next_rollout) {
  write_effective_config(config);
  for (const train::MetricsFile::Point& point : metrics_.kept()) {
    curve_.push_back({point.step, point.value});
    if (on_metrics_) {
      on_metrics_({{kStep, static_cast<double>(point.step)}, {kReward, point.value}});
    }
  }
}

void RunRecords::write_evaluation(int64_t rollout, const policy::Metrics& values) {
  policy::Metrics line = {{kStep, static_cast<double>(rollout)}};
  line.insert(line.end(), values.begin(), values.end());
  evals_.write(line);
}

void RunRecords::write_rollout(const policy::Metrics& line) {
  const auto rollout = static_cast<int64_t>(policy::metric(line, kStep));
  curve_.push_back({rollout, policy::metric(line, kReward)});
  tensorboard_.write(rollout, wall_seconds(), line);
  metrics_.write(line);
  if (on_metrics_) {
    on_metrics_(line);
  }
}

void RunRecords::write_picture() const {
  weights::write_text_file(out_ / "reward.svg", train::loss_plot_svg(curve_, kReward));
}

std::vector<double> RunRecords::rewards() const {
  std::vector<double> out;
  for (const train::PlotPoint& point : curve_) {
    out.push_back(point.value);
  }
  return out;
}

}  // namespace baleen::rl
