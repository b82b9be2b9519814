// baleen rl drift and baleen rl replay-study
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "apps/commands.h"
#include "base/error.h"
#include "rl/drift_tour.h"
#include "rl/replay_study.h"
#include "rl/study_model.h"

namespace baleen::apps {
namespace {

struct DriftFlags {
  rl::TeachConfig teach;
  rl::StudyConfig study;
  std::vector<std::string> rollouts = {"bf16", "fp8kv", "bf16+fp8kv", "fp8"};
  std::vector<int64_t> lengths = {12, 64, 256};
  std::string out;
};

void say_on_stderr(const std::string& text) {
  std::fprintf(stderr, "%s\n", text.c_str());
}

/// To the terminal and behind what the file has.
void tell(const std::string& text, const std::string& path) {
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
  if (!path.empty()) {
    std::ofstream file(path, std::ios::app);
    file << text << "\n";
    if (!file) {
      throw SystemError(path + ": cannot be written");
    }
  }
}

void run_drift(const DriftFlags& flags) {
  tell(rl::taught_tour(flags.teach, flags.rollouts, say_on_stderr), flags.out);
}

void run_replay_study(const DriftFlags& flags) {
  rl::taught_study(
      flags.teach, flags.study, flags.lengths, say_on_stderr, [&](const std::string& text) {
        tell(text, flags.out);
      });
}

void add_teach_flags(CLI::App& command, const std::shared_ptr<DriftFlags>& flags) {
  command.add_option("--seed", flags->teach.seed, "Of weights, teaching and texts")
      ->capture_default_str();
  command.add_option("--sft-steps", flags->teach.steps, "Supervised steps before the measurement")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command.add_option("--output", flags->out, "File that the tables are added to");
}

}  // namespace

void add_rl_drift(CLI::App& rl) {
  auto flags = std::make_shared<DriftFlags>();  // shared with the callback
  CLI::App* command = rl.add_subcommand(
      "drift",
      "Drift tour: what other formats on the rollout side do to log-probabilities, and what "
      "replayed choices remove of it");
  add_teach_flags(*command, flags);
  command
      ->add_option("--rollout-quant",
                   flags->rollouts,
                   "Formats of the rollout's copy, joined by +: f32, bf16, bf16act, fp8kv, fp8, "
                   "fp8block")
      ->capture_default_str();
  command->callback([flags] { run_drift(*flags); });

  auto study = std::make_shared<DriftFlags>();
  study->teach.length = 256;
  study->teach.texts = 8;
  study->teach.steps = 120;
  CLI::App* experiment = rl.add_subcommand(
      "replay-study",
      "Replay of indexer picks: capture fidelity, drift and gradients over formats and lengths, "
      "with controls that must fail");
  add_teach_flags(*experiment, study);
  experiment->add_option("--length", study->lengths, "Tokens of the texts")->capture_default_str();
  experiment->add_option("--texts", study->study.num_texts, "Texts of each length")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  experiment->callback([study] { run_replay_study(*study); });
}

}  // namespace baleen::apps
