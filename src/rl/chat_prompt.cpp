#include "rl/chat_prompt.h"

#include "base/error.h"
#include "text/chat_renderer.h"

namespace baleen::rl {

PromptThinking prompt_thinking(const std::string& name) {
  return name == "on"          ? PromptThinking::kOn
         : name == "alternate" ? PromptThinking::kAlternate
                               : PromptThinking::kOff;
}

std::vector<int32_t> ChatPromptWriter::ids(std::span<const text::ChatMessage> messages,
                                           int64_t number) const {
  text::RenderOptions options;
  options.profile = profile;
  options.thinking = thinking == PromptThinking::kOn ||
                     (thinking == PromptThinking::kAlternate && number % 2 != 0);
  const Result<text::RenderedPrompt> prompt = text::render_messages(messages, options);
  if (!prompt.ok()) {
    throw ConfigError(prompt.status().message);
  }
  return tokenizer->encode(prompt->pieces);
}

std::vector<int32_t> ChatPromptWriter::ids(const std::string& said, int64_t number) const {
  text::ChatMessage message;
  message.content = said;
  return ids(std::span(&message, 1), number);
}

}  // namespace baleen::rl
