#include "apps/speculation_flags.h"

#include <fmt/format.h>

#include "base/error.h"

namespace baleen::apps {

void SpeculationFlags::add(CLI::App& command) {
  command
      .add_option("--speculative-algorithm",
                  algorithm,
                  "Who guesses tokens: EAGLE (the MTP block), none; auto: EAGLE where there is one")
      ->check(CLI::IsMember({"auto", "none", "EAGLE"}));
  command
      .add_option("--speculative-num-steps", num_steps, "Most tokens guessed for a request at once")
      ->check(CLI::Range(1, runner::kMostDrafts));
  command.add_option("--speculative-eagle-topk", eagle_topk, "Guesses per token: a chain has 1")
      ->check(CLI::Range(1, 1));
  command
      .add_option("--speculative-num-draft-tokens",
                  num_draft_tokens,
                  "Tokens verified at once; 0: the number of steps + 1, the only other choice")
      ->check(CLI::Range(0, runner::kMostDrafts + 1));
  command
      .add_option("--spec-sampling",
                  sampling,
                  "Which guesses stand at temperature > 0: coupled keeps the text of a seed, "
                  "rejection keeps its law and accepts more")
      ->check(CLI::IsMember({"coupled", "rejection"}));
  command.add_flag("--speculative-fixed-depth",
                   fixed_depth,
                   "Always guess the most, also where measured acceptance does not pay for it");
  command
      .add_option("--simulate-accept-length",
                  simulate_accept_length,
                  "FOR BENCHMARKS ONLY, ANSWERS ARE WRONG: tokens that every verify step gives on "
                  "average, whatever the model says; 0: off")
      ->check(CLI::Range(0.0, runner::kMostDrafts + 1.0));
}

runner::DraftOptions SpeculationFlags::resolve(const ModelConfig& config,
                                               bool has_dspark_keys) const {
  if (num_draft_tokens != 0 && num_draft_tokens != num_steps + 1) {
    throw ConfigError(
        fmt::format("--speculative-num-draft-tokens {}: a chain of {} steps verifies "
                    "{} tokens",
                    num_draft_tokens,
                    num_steps,
                    num_steps + 1));
  }
  const bool has_mtp = config.num_nextn_predict_layers == 1 && !has_dspark_keys;
  if (algorithm == "EAGLE" && has_dspark_keys) {
    throw ConfigError(
        "--speculative-algorithm EAGLE: the checkpoint has a DSpark drafter instead of an MTP "
        "block; its layers would guess nothing right");
  }
  if (algorithm == "EAGLE" && !has_mtp) {
    throw ConfigError(
        fmt::format("--speculative-algorithm EAGLE: the checkpoint must have one MTP block, "
                    "num_nextn_predict_layers is {}",
                    config.num_nextn_predict_layers));
  }
  runner::DraftOptions out;
  if (has_mtp && algorithm != "none") {
    out.max_drafts = num_steps;
    out.sampling = sampling == "rejection" ? runner::DraftSampling::kRejection
                                           : runner::DraftSampling::kCoupled;
  }
  out.simulate_accept_length = simulate_accept_length;
  out.validate();
  return out;
}

}  // namespace baleen::apps
