#pragma once
// What a request says about thinking, in the fields that several dialects share. Pure, any thread.
//
//   conversation.thinking.efforts.push_back(read_effort(fields, "reasoning_effort"));
//   read_thinking_object(fields, conversation);

#include <string_view>

#include "server/chat_prompt.h"
#include "server/field_reader.h"

namespace baleen::server {

/// A name or a number; which ones a model knows is decided later.
text::EffortField read_effort(FieldReader& fields, std::string_view name);

/// "thinking": {"type", "budget_tokens", "display"}.
void read_thinking_object(FieldReader& fields, Conversation& conversation);

}  // namespace baleen::server
