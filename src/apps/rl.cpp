// baleen rl --out DIR
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include <fmt/format.h>
#include <unistd.h>

#include "apps/commands.h"
#include "apps/option_flags.h"
#include "apps/rl_executor.h"
#include "apps/rl_live.h"
#include "apps/stop_signals.h"
#include "rl/rl_options.h"
#include "rl/rl_report.h"
#include "rl/rl_run.h"

namespace baleen::apps {
namespace {

struct RlFlags {
  rl::RlConfig held = rl::default_rl_config("sort", "dapo");
  std::unique_ptr<OptionFlags> options;
  std::optional<int> live_port;
};

/// Defaults of task and recipe, then the file, then what stands on the command line.
rl::RlConfig merged_rl(const RlFlags& flags) {
  rl::RlConfig asked;
  flags.options->apply_file(train::options_of(asked));
  flags.options->apply(train::options_of(asked));
  rl::RlConfig config = rl::default_rl_config(asked.task, asked.algo);
  flags.options->apply_file(train::options_of(config));
  flags.options->apply(train::options_of(config));
  rl::settle(config);
  return config;
}

void run_rl_command(const RlFlags& flags) {
  const rl::RlConfig config = merged_rl(flags);
  stop_asked();  // before there are threads, which inherit what is blocked
  const bool terminal = isatty(STDOUT_FILENO) != 0;
  const auto begin = std::chrono::steady_clock::now();
  auto shown = begin;
  rl::RlEvents events;
  events.say = [](const std::string& text) {
    std::printf("%s\n", text.c_str());
    std::fflush(stdout);
  };
  events.on_warm_up = [&](const train::StepReport& report, int64_t steps) {
    const auto now = std::chrono::steady_clock::now();
    const bool last = report.step + 1 == steps;
    if (!last && now - shown < std::chrono::milliseconds(terminal ? 200 : 5000)) {
      return;
    }
    shown = now;
    std::printf("%swarm-up %lld/%lld | loss %.3f%s",
                terminal ? "\r" : "",
                static_cast<long long>(report.step + 1),
                static_cast<long long>(steps),
                report.loss,
                terminal && !last ? "" : "\n");
    std::fflush(stdout);
  };
  events.on_rollout = [](const rl::RolloutLine& line) {
    std::printf("%s\n", rl::rollout_text(line).c_str());
    std::fflush(stdout);
  };
  events.stop = stop_asked;
  std::optional<RlLive> live;
  if (flags.live_port) {
    live.emplace(*flags.live_port);
    live->add_to(events);
  }
  const rl::RlSummary summary = rl::run_rl(config, make_rl_executor, events);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::printf("%s", rl::summary_text(config, summary, seconds).c_str());
}

}  // namespace

void add_rl(CLI::App& app) {
  auto flags = std::make_shared<RlFlags>();  // shared with the callback
  CLI::App* command = app.add_subcommand(
      "rl", "Train with a verifiable reward: warm-up, rollouts, updates; continues where it ended");
  flags->options =
      std::make_unique<OptionFlags>(*command,
                                    train::options_of(flags->held),
                                    "JSON or TOML file with these options by name (a_b, not a-b)");
  command
      ->add_option("--live",
                   flags->live_port,
                   "Port of 127.0.0.1 with a page that shows the run's curves and its engine; 0: "
                   "any free one")
      ->check(CLI::Range(0, 65535));
  add_rl_parity(*command);
  add_rl_drift(*command);
  command->callback([flags, command] {
    if (command->get_subcommands().empty()) {
      run_rl_command(*flags);
    }
  });
}

}  // namespace baleen::apps
