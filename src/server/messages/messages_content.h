#pragma once
// The conversation of an Anthropic Messages request: system, messages with their content blocks and
// tools, read into the form that all dialects share. Pure, any thread.
//
//   RawJson raw(body_text);
//   read_message_list(fields, raw, conversation);
//   read_message_tools(fields, raw, conversation);

#include "server/chat_messages.h"
#include "server/chat_prompt.h"
#include "server/field_reader.h"

namespace baleen::server {

/// "system" and "messages". A user's tool results become tool messages in their place; a last
/// message of the assistant is continued. Faults are in fields.status().
void read_message_list(FieldReader& fields, RawJson& raw, Conversation& conversation);

/// "tools" and "tool_choice".
void read_message_tools(FieldReader& fields, RawJson& raw, Conversation& conversation);

}  // namespace baleen::server
