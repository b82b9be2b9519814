#include "rl/run_inputs.h"

#include <filesystem>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "base/error.h"
#include "rl/nano_tokenizer.h"
#include "text/chat_profile.h"
#include "weights/config_json.h"

namespace baleen::rl {
namespace {

void check_positions(const RlConfig& config, const std::filesystem::path& folder) {
  const int64_t positions =
      weights::read_config_json(folder / "config.json").config.max_position_embeddings;
  const int64_t longest = config.rollout_max_prompt_len + config.rollout_max_response_len;
  if (longest > positions) {
    throw ConfigError(
        fmt::format("rollout_max_response_len: prompt and answer may have {} tokens, {} takes {}",
                    longest,
                    config.model,
                    positions));
  }
}

std::unique_ptr<PromptSource> open_prompts(const RlConfig& config,
                                           const text::Tokenizer& tokenizer,
                                           text::ChatProfile profile) {
  const auto seed = static_cast<uint64_t>(config.rollout_seed);
  const ChatPromptWriter writer{
      .tokenizer = &tokenizer, .profile = profile, .thinking = prompt_thinking(config.thinking)};
  if (config.prompt_data.empty()) {
    return config.model.empty() ? task_prompts(config.task, seed) : abacus_prompts(writer, seed);
  }
  PromptFileOptions options;
  options.input_key = config.input_key;
  options.label_key = config.label_key;
  options.metadata_key = config.metadata_key;
  options.max_prompt_tokens = config.rollout_max_prompt_len;
  options.shuffle = config.rollout_shuffle;
  options.seed = seed;
  if (config.apply_chat_template) {
    options.chat = writer;
  }
  return file_prompts(config.prompt_data, config.eval_prompt_data, tokenizer, options);
}

}  // namespace

RunInputs open_inputs(const RlConfig& config) {
  RunInputs inputs;
  text::ChatProfile profile = text::ChatProfile::kV4;
  if (config.model.empty()) {
    inputs.tokenizer = nano_tokenizer();
  } else {
    const std::filesystem::path folder = config.model;
    inputs.tokenizer = text::Tokenizer::load(folder / "tokenizer.json");
    profile =
        text::choose_chat_profile(
            folder, config.chat_profile.empty() ? std::nullopt : std::optional(config.chat_profile))
            .profile;
    check_positions(config, folder);
  }
  inputs.prompts = open_prompts(config, *inputs.tokenizer, profile);
  inputs.settings = rl_settings(config);
  inputs.settings["prompts"] = inputs.prompts->digest();
  return inputs;
}

}  // namespace baleen::rl
