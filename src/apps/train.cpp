// baleen train --model DIR --data FILES --output DIR, or --task sort --output DIR
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include <fmt/format.h>
#include <unistd.h>

#include "apps/commands.h"
#include "apps/option_flags.h"
#include "apps/stop_signals.h"
#include "train/option_list.h"
#include "train/sft_run.h"

namespace baleen::apps {
namespace {

struct TrainFlags {
  train::SftConfig held;
  std::unique_ptr<OptionFlags> options;
};

/// Defaults of the task, then the file, then what stands on the command line.
train::SftConfig merged(const TrainFlags& flags) {
  // Which task it is decides the defaults.
  train::SftConfig asked;
  flags.options->apply_file(train::options_of(asked));
  flags.options->apply(train::options_of(asked));
  train::SftConfig config = train::default_config(asked.task);
  flags.options->apply_file(train::options_of(config));
  flags.options->apply(train::options_of(config));
  return config;
}

/// A line that renews itself on a terminal, else one every few seconds; the last step always shows.
class StepLine {
 public:
  void show(const train::StepReport& report, const train::SftProgress& progress) {
    const auto now = Clock::now();
    const bool last = report.step + 1 == progress.num_steps;
    if (!last && shown_any_ && now - shown_ < (terminal_ ? kTerminalPause : kLogPause)) {
      return;
    }
    shown_ = now;
    shown_any_ = true;
    const std::string text = train::progress_text(report, progress);
    std::fprintf(
        stderr, terminal_ ? "\r\033[K%s%s" : "%s%s", text.c_str(), terminal_ && !last ? "" : "\n");
    std::fflush(stderr);
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kTerminalPause{100};
  static constexpr std::chrono::milliseconds kLogPause{5000};
  bool terminal_ = isatty(STDERR_FILENO) != 0;
  bool shown_any_ = false;
  Clock::time_point shown_;
};

void run_train(const TrainFlags& flags) {
  const train::SftConfig config = merged(flags);
  StepLine line;
  const train::SftSummary summary = train::run_sft(
      config,
      {.say = [](const std::string& text) { std::fprintf(stderr, "train: %s\n", text.c_str()); },
       .on_step = [&](const train::StepReport& report,
                      const train::SftProgress& progress) { line.show(report, progress); },
       .stop = stop_asked});
  std::string text = fmt::format("{}: {} at step {} of {}",
                                 config.output,
                                 summary.stopped ? "stopped and saved" : "done",
                                 summary.next_step,
                                 config.steps);
  if (summary.next_step > summary.first_step) {
    text += fmt::format(", loss {:.4f}, {:.1f} s", summary.last_loss, summary.seconds);
  }
  if (summary.accuracy >= 0.0) {
    text += fmt::format(", solves {:.1f} % of the unseen problems", 100.0 * summary.accuracy);
  }
  std::printf("%s; metrics.jsonl and loss.svg are there\n", text.c_str());
}

}  // namespace

void add_train(CLI::App& app) {
  auto flags = std::make_shared<TrainFlags>();  // shared with the callback
  CLI::App* command = app.add_subcommand(
      "train", "Fine-tune a model on conversations or completions; continues where it was ended");
  flags->options =
      std::make_unique<OptionFlags>(*command,
                                    train::options_of(flags->held),
                                    "JSON or TOML file with these options by name (a_b, not a-b)");
  command->callback([flags] { run_train(*flags); });
}

}  // namespace baleen::apps
