#include "text/chat_message.h"

#include <array>
#include <utility>

namespace baleen::text {

std::optional<Role> parse_role(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, Role>, 6> kRoles = {{
      {"system", Role::kSystem},
      {"user", Role::kUser},
      {"assistant", Role::kAssistant},
      {"tool", Role::kTool},
      {"latest_reminder", Role::kLatestReminder},
      {"developer", Role::kDeveloper},
  }};
  for (const auto& [text, role] : kRoles) {
    if (text == name) {
      return role;
    }
  }
  return std::nullopt;
}

std::string content_text(const ChatMessage& message) {
  if (message.parts.empty()) {
    return message.content;
  }
  std::string text;
  for (const ContentPart& part : message.parts) {
    text += &part == &message.parts.front() ? "" : "\n\n";
    text += part.type == "text" ? part.text : "[Unsupported " + part.type + "]";
  }
  return text;
}

}  // namespace baleen::text
