// baleen train --model DIR --data FILES --output DIR, or --task sort --output DIR
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include "apps/commands.h"
#include "train/sft_run.h"

namespace baleen::apps {
namespace {

using Field = std::variant<bool*, int64_t*, double*, std::string*, std::vector<std::string>*>;

std::vector<Field> fields_of(train::SftConfig& config) {
  std::vector<Field> fields;
  train::for_each_option(
      config, [&](const char*, auto& field, const char*) { fields.emplace_back(&field); });
  return fields;
}

struct TrainFlags {
  train::SftConfig config;
  std::string file;
  std::vector<CLI::Option*> options;  // in the order of the fields
};

std::string flag_name(std::string name) {
  for (char& c : name) {
    c = c == '_' ? '-' : c;
  }
  return name;
}

/// Defaults of the task, then the file, then what stands on the command line.
train::SftConfig merged(TrainFlags& flags) {
  const auto from_file = [&](train::SftConfig config) {
    if (!flags.file.empty()) {
      train::read_sft_config(flags.file, config);
    }
    return config;
  };
  // Which task it is decides the defaults.
  const std::string task = flags.config.task.empty() ? from_file({}).task : flags.config.task;
  train::SftConfig config = from_file(train::default_config(task));
  const std::vector<Field> from = fields_of(flags.config);
  const std::vector<Field> to = fields_of(config);
  for (std::size_t i = 0; i < to.size(); ++i) {
    if (flags.options[i]->count() > 0) {
      std::visit([&](auto* target) { *target = *std::get<decltype(target)>(from[i]); }, to[i]);
    }
  }
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

/// From the first call on SIGINT and SIGTERM end the run behind a saved step.
bool stop_asked() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  sigset_t pending;
  sigpending(&pending);
  return sigismember(&pending, SIGINT) == 1 || sigismember(&pending, SIGTERM) == 1;
}

void run_train(TrainFlags& flags) {
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
  command->add_option(
      "--config", flags->file, "JSON file with these options by name (a_b, not a-b)");
  train::for_each_option(flags->config, [&](const char* name, auto& field, const char* help) {
    const std::string flag = "--" + flag_name(name);
    if constexpr (std::is_same_v<std::decay_t<decltype(field)>, bool>) {
      flags->options.push_back(command->add_flag(flag + ",!--no-" + flag_name(name), field, help));
    } else {
      flags->options.push_back(command->add_option(flag, field, help));
    }
  });
  command->callback([flags] { run_train(*flags); });
}

}  // namespace baleen::apps
