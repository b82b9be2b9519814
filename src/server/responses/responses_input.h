#pragma once
// The input of POST /v1/responses: items that together make the conversation, and its tools. Pure,
// any thread.
//
//   RawJson raw(body_text);
//   read_input_items(fields, conversation);
//   read_flat_tools(fields, raw, conversation);

#include "server/chat_prompt.h"
#include "server/field_reader.h"

namespace baleen::server {

/// "input": a text, or items: messages, function calls, their outputs, reasoning. Items of one turn
/// of the assistant become one message. Appends to the conversation.
void read_input_items(FieldReader& fields, Conversation& conversation);

/// "tools", "tool_choice", "parallel_tool_calls"; here a function's fields lie beside its type.
void read_flat_tools(FieldReader& fields, RawJson& raw, Conversation& conversation);

}  // namespace baleen::server
