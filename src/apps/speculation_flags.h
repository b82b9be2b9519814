#pragma once
// Speculative decoding on the command line: whether the checkpoint's draft layer guesses tokens,
// how many, and by which rule they stand. Used by every command that generates; once at start.
//
//   SpeculationFlags flags;
//   flags.add(*command);
//   runner::DraftOptions drafts = flags.resolve(config, has_dspark_keys);

#include <cstdint>
#include <string>

#include <CLI/CLI.hpp>

#include "base/model_config.h"
#include "runner/drafter.h"

namespace baleen::apps {

struct SpeculationFlags {
  std::string algorithm = "auto";
  int32_t num_steps = 3;         // drafts of one step
  int32_t eagle_topk = 1;        // a chain
  int32_t num_draft_tokens = 0;  // 0: num_steps + 1
  std::string sampling = "coupled";
  bool fixed_depth = false;
  double simulate_accept_length = 0.0;

  void add(CLI::App& command);
  /// max_drafts 0 where nothing is drafted: by wish, or with "auto" because the checkpoint has no
  /// MTP block. Throws ConfigError when flags contradict each other or the checkpoint.
  runner::DraftOptions resolve(const ModelConfig& config, bool has_dspark_keys) const;
};

}  // namespace baleen::apps
