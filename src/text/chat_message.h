#pragma once
// One message of a conversation, as the chat format knows it. Plain data; any thread.
//
//   ChatMessage message;
//   message.role = Role::kUser;
//   message.content = "Hello";

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace baleen::text {

enum class Role : uint8_t { kSystem, kUser, kAssistant, kTool, kLatestReminder, kDeveloper };

/// By its published name: system, user, assistant, tool, latest_reminder, developer.
std::optional<Role> parse_role(std::string_view name);

/// One part of a content that is a list. Parts of other types than "text" show as a note.
struct ContentPart {
  std::string type;
  std::string text;
};

/// A call the assistant made earlier in the conversation.
struct HistoryCall {
  std::string id;  // orders the results; never shown to the model
  std::string name;
  std::string arguments;           // JSON text; other text is allowed too
  bool arguments_are_text = true;  // false: the field was no string but the JSON value `arguments`
};

struct ChatMessage {
  Role role = Role::kUser;
  std::string content;
  std::vector<ContentPart> parts;  // when not empty, instead of `content`
  std::string reasoning_content;
  std::vector<HistoryCall> tool_calls;
  std::string tool_call_id;                    // of a tool's result
  std::vector<std::string> functions;          // of each declared tool, its function as JSON text
  std::optional<std::string> response_format;  // JSON text
  std::string task;                            // a quick instruction, such as "title"; empty: none
  bool without_eos = false;                    // an assistant's text that is to be continued
};

/// The content as one text: its text parts, and `[Unsupported T]` for each other part of type T,
/// with blank lines between.
std::string content_text(const ChatMessage& message);

}  // namespace baleen::text
