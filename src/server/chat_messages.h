#pragma once
// The messages and tools of a chat request, read from JSON into the form of the text room. Pure,
// any thread.
//
//   RawJson raw(body_text);
//   request.messages = read_messages(fields, raw);
//
// Schemas and arguments reach the model as the client wrote them, digits of numbers included; they
// are therefore taken from the body's text, not from the parsed numbers.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/field_reader.h"
#include "server/tool_declarations.h"
#include "text/chat_message.h"
#include "text/json_text.h"

namespace baleen::server {

/// The body once more, with numbers as text; parsed only when somebody asks.
class RawJson {
 public:
  /// `body` is valid JSON and outlives the object.
  explicit RawJson(std::string_view body) : body_(body) {}
  /// The element `index` of the array member `name`, or null.
  const text::JsonValue* element(std::string_view name, size_t index);
  /// The member `name`, or null.
  const text::JsonValue* member(std::string_view name);

 private:
  std::string_view body_;
  std::optional<text::JsonValue> root_;
};

/// "messages": role, content (text or parts), reasoning_content, tool_calls, tool_call_id. Faults
/// are in fields.status().
std::vector<text::ChatMessage> read_messages(FieldReader& fields, RawJson& raw);

/// "tools", "tool_choice" and "parallel_tool_calls"; no tools when tool_choice is "none".
ToolFields read_tools(FieldReader& fields, RawJson& raw);

}  // namespace baleen::server
