#pragma once
// Prompts in the chat format of a checkpoint. A value; any thread, while the tokenizer lives.
//
//   ChatPromptWriter writer{.tokenizer = &tokenizer, .profile = profile, .thinking =
//   Thinking::kOn}; std::vector<int32_t> ids = writer.ids({message}, /*number=*/17);

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "text/chat_message.h"
#include "text/output_stream.h"
#include "text/tokenizer.h"

namespace baleen::rl {

enum class PromptThinking : uint8_t { kOff, kOn, kAlternate };  // kAlternate: of odd numbers

/// Of "off", "on" and "alternate", which the config has been checked for.
PromptThinking prompt_thinking(const std::string& name);

struct ChatPromptWriter {
  const text::Tokenizer* tokenizer = nullptr;
  text::ChatProfile profile = text::ChatProfile::kV4;
  PromptThinking thinking = PromptThinking::kOff;

  /// Of a conversation that the assistant is to continue; `number` is that of the prompt. Throws
  /// ConfigError with what the renderer says of a message.
  std::vector<int32_t> ids(std::span<const text::ChatMessage> messages, int64_t number) const;
  /// Of one message of a user.
  std::vector<int32_t> ids(const std::string& said, int64_t number) const;
};

}  // namespace baleen::rl
