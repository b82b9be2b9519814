#include "train/sft_run.h"

#include <chrono>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "base/error.h"
#include "base/process_figures.h"
#include "train/loss_plot.h"
#include "train/metrics_file.h"
#include "train/published.h"
#include "train/run_rank.h"
#include "train/run_sources.h"
#include "train/sort_accuracy.h"
#include "train/train_checkpoint.h"
#include "train/trainer.h"
#include "weights/mapped_file.h"

namespace baleen::train {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

Metrics metrics_of(const StepReport& report, const SftProgress& progress, int64_t bad_lines) {
  return {{"train/step", static_cast<double>(report.step)},
          {"train/loss", report.loss},
          {"train/mtp_loss", report.mtp_loss},
          {"train/balance", report.balance},
          {"train/index_loss", report.index_loss},
          {"train/grad_norm", report.gradient_norm},
          {"train/lr", report.learning_rate},
          {"train/skipped_steps", static_cast<double>(report.skipped_steps)},
          {"data/samples", static_cast<double>(report.samples)},
          {"data/tokens", static_cast<double>(report.tokens)},
          {"data/targets", static_cast<double>(report.targets)},
          {"data/bad_lines", static_cast<double>(bad_lines)},
          {"perf/step_time", progress.step_seconds},
          {"perf/tokens_per_sec", progress.tokens_per_second},
          {"perf/peak_mem_bytes/train", process_memory_bytes("VmHWM")}};
}

std::string clock_text(double seconds) {
  const auto total = static_cast<int64_t>(std::llround(seconds));
  return total >= 3600 ? fmt::format("{}:{:02}:{:02}", total / 3600, total / 60 % 60, total % 60)
                       : fmt::format("{}:{:02}", total / 60, total % 60);
}

/// What all ranks of a run read, and what the first of them writes.
struct SftJob {
  const SftConfig& config;
  const SftEvents& events;
  RunSources sources;
};

class SftRun {
 public:
  SftRun(const SftJob& job, RunRank& rank)
      : config_(job.config),
        events_(job.events),
        sources_(job.sources),
        output_(job.config.output),
        rank_(rank),
        trainer_(rank.trainer()),
        is_first_(rank.is_first()) {}

  SftSummary run() {
    SftSummary summary;
    if (restore_checkpoint(output_ / "checkpoints",
                           trainer_,
                           sources_.settings,
                           LoadOptimizer::kRequired,
                           rank_.checkpoint_rank())) {
      say(fmt::format("continues {} at step {}", config_.output, trainer_.next_step()));
    }
    summary.first_step = trainer_.next_step();
    open_records();
    bool saved = summary.first_step > 0;
    const Clock::time_point begin = Clock::now();
    while (trainer_.next_step() < config_.steps && !summary.stopped) {
      const Clock::time_point step_begin = Clock::now();
      const StepReport report = rank_.step(draw_samples(trainer_.next_step()));
      summary.last_loss = report.loss;
      if (is_first_) {
        record(report, progress_of(report, seconds_since(step_begin), begin, summary.first_step));
      }
      saved = config_.save_interval > 0 && trainer_.next_step() % config_.save_interval == 0;
      if (saved) {
        save();
      }
      summary.stopped = rank_.agreed(is_first_ && events_.stop && events_.stop());
    }
    summary.seconds = seconds_since(begin);
    summary.next_step = trainer_.next_step();
    if (!saved) {
      save();
    }
    if (is_first_) {
      weights::write_text_file(output_ / "loss.svg", loss_plot_svg(curve_, "train/loss"));
    }
    if (!summary.stopped) {
      finish(summary);
    }
    return summary;
  }

 private:
  void say(const std::string& line) const {
    if (is_first_ && events_.say) {
      events_.say(line);
    }
  }

  void open_records() {
    if (!is_first_) {
      return;
    }
    weights::write_text_file(output_ / "train.json", sft_config_json(config_));
    metrics_.emplace(output_ / "metrics.jsonl", trainer_.next_step());
    for (const MetricsFile::Point& point : metrics_->kept()) {
      curve_.push_back({point.step, point.value});
    }
  }

  void record(const StepReport& report, const SftProgress& progress) {
    metrics_->write(metrics_of(report, progress, sources_.num_bad_lines));
    curve_.push_back({report.step, report.loss});
    if (events_.on_step) {
      events_.on_step(report, progress);
    }
  }

  std::vector<Sample> draw_samples(int64_t step) const {
    std::vector<Sample> samples;
    for (int64_t i = 0; i < config_.global_batch_size; ++i) {
      samples.push_back(sources_.sample(step * config_.global_batch_size + i));
    }
    return samples;
  }

  SftProgress progress_of(const StepReport& report,
                          double step_seconds,
                          Clock::time_point begin,
                          int64_t first_step) const {
    SftProgress progress;
    progress.num_steps = config_.steps;
    progress.step_seconds = step_seconds;
    progress.tokens_per_second = static_cast<double>(report.tokens) / step_seconds;
    const auto made = static_cast<double>(trainer_.next_step() - first_step);
    progress.eta_seconds =
        seconds_since(begin) / made * static_cast<double>(config_.steps - trainer_.next_step());
    return progress;
  }

  void save() const {
    save_checkpoint(
        output_ / "checkpoints",
        trainer_,
        {.settings = sources_.settings, .keep = static_cast<std::size_t>(config_.keep_checkpoints)},
        rank_.checkpoint_rank());
  }

  void finish(SftSummary& summary) {
    if (config_.task == "sort") {
      const model::ModelParameters whole = rank_.whole(trainer_.masters().leaves());
      if (is_first_) {
        summary.accuracy = sort_accuracy(whole, sources_.numerics);
      }
    }
    if (!config_.export_to.empty()) {
      const model::ModelParameters whole = rank_.whole(trainer_.masters().values());
      if (is_first_) {
        export_model(whole,
                     trainer_.masters().rounding() == WeightRounding::kServed,
                     config_.model,
                     config_.export_to);
        say(fmt::format("wrote the model to {}", config_.export_to));
      }
    }
  }

  const SftConfig& config_;
  const SftEvents& events_;
  const RunSources& sources_;
  fs::path output_;
  RunRank& rank_;
  Trainer& trainer_;
  bool is_first_;
  std::optional<MetricsFile> metrics_;  // the first rank's
  std::vector<PlotPoint> curve_;
};

SftSummary run_job(SftJob job) {
  const SftConfig& config = job.config;
  const TrainerConfig trainer = trainer_config(config, job.sources.numerics);
  const auto make_masters = [&](model::ModelParameters params) {
    const FreezeRules rules(freeze_config(config), params);
    return Masters(std::move(params), rules, job.sources.rounding);
  };
  check_mesh(config, job.sources.params.config, config.global_batch_size);
  if (mesh_shape(config).world_size() == 1) {
    const std::unique_ptr<RunRank> rank =
        single_rank(make_masters(std::move(job.sources.params)), trainer);
    return SftRun(job, *rank).run();
  }
  SftSummary summary;
  run_on_ranks(config,
               std::move(job.sources.params),
               make_masters,
               trainer,
               config.threads,
               [&](RunRank& rank) {
                 const SftSummary own = SftRun(job, rank).run();
                 if (rank.is_first()) {
                   summary = own;
                 }
               });
  return summary;
}

}  // namespace

SftSummary run_sft(const SftConfig& config, const SftEvents& events) {
  validate(config);
  check_export_folder(config.export_to);
  std::error_code error;
  fs::create_directories(config.output, error);
  if (error) {
    throw SystemError(fmt::format("output: {} cannot be made: {}", config.output, error.message()));
  }
  at::set_num_threads(static_cast<int>(config.threads));
  RunSources sources = open_sources(config);
  if (events.say) {
    for (const std::string& note : sources.notes) {
      events.say(note);
    }
  }
  return run_job({config, events, std::move(sources)});
}

std::string progress_text(const StepReport& report, const SftProgress& progress) {
  std::string text =
      fmt::format("step {}/{} | loss {:.4f}", report.step + 1, progress.num_steps, report.loss);
  if (report.mtp_loss != 0.0) {
    text += fmt::format(" | mtp {:.4f}", report.mtp_loss);
  }
  return text + fmt::format(" | |g| {:.3f}{} | lr {:.2e} | {:.0f} tok/s | {:.2f} s/step | left {}",
                            report.gradient_norm,
                            report.skipped ? " skipped" : "",
                            report.learning_rate,
                            progress.tokens_per_second,
                            progress.step_seconds,
                            clock_text(progress.eta_seconds));
}

}  // namespace baleen::train
