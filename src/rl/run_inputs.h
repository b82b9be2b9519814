#pragma once
// What all ranks of a run start from: how the model is spoken to, what it is asked, and the
// settings that a checkpoint must share. Opened once; read-only afterwards.
//
//   RunInputs inputs = open_inputs(config);

#include <memory>

#include "rl/prompt_source.h"
#include "rl/rl_config.h"
#include "text/output_stream.h"
#include "text/tokenizer.h"
#include "train/run_settings.h"

namespace baleen::rl {

struct RunInputs {
  std::shared_ptr<const text::Tokenizer> tokenizer;  // shared with engines and prompts
  std::unique_ptr<PromptSource> prompts;
  train::RunSettings settings;
};

/// Throws ConfigError when prompts and answers of the config do not fit into the model's positions,
/// else naming file or key.
RunInputs open_inputs(const RlConfig& config);

}  // namespace baleen::rl
