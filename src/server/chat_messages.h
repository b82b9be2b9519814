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
#include "text/chat_message.h"
#include "text/json_text.h"
#include "text/output_stream.h"

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

/// 1 to `max_bytes` letters, digits, '_', '-' or '.'.
bool is_tool_name(std::string_view name, size_t max_bytes);

/// Which calls an answer may have.
struct ToolChoice {
  enum class Kind : uint8_t { kAuto, kNone, kRequired, kNamed };
  Kind kind = Kind::kAuto;
  std::string name;                   // of kNamed
  bool one_call = false;              // not several in one answer
  std::string field = "tool_choice";  // for errors
};

struct ToolFields {
  std::vector<std::string> functions;  // each tool's function, for the prompt
  std::vector<text::ToolSpec> specs;   // the same, for the output parser
  ToolChoice choice;
};
/// "tools", "tool_choice" and "parallel_tool_calls"; no tools when tool_choice is "none".
ToolFields read_tools(FieldReader& fields, RawJson& raw);

/// "tool_choice" as a word: "auto", "none" or "required".
void read_tool_choice_word(FieldReader& fields, const json::value& choice, ToolChoice& out);

/// Drops the tools of a request that may not call any, and refuses a choice that has no tool.
void settle_tools(FieldReader& fields, ToolFields& tools);

}  // namespace baleen::server
