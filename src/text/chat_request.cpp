#include "text/chat_request.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace baleen::text {
namespace {

Status fault(size_t index, std::string_view text) {
  const std::string param = fmt::format("messages[{}]", index);
  return Status::invalid(fmt::format("{}: {}", param, text), param);
}

/// The model must have a turn after the last message.
Status check_last_message(const ChatRequest& request) {
  const size_t last = request.messages.size() - 1;
  const ChatMessage& message = request.messages[last];
  if (request.continue_final_message) {
    if (message.role != Role::kAssistant) {
      return fault(last, "continue_final_message needs an assistant message at the end");
    }
    if (!message.tool_calls.empty()) {
      return fault(last, "a message with tool calls cannot be continued");
    }
    return {};
  }
  // A task has its token after the message, whatever its role.
  if (message.role == Role::kAssistant && message.task.empty()) {
    return fault(last,
                 "the last message is the assistant's; set continue_final_message to continue it");
  }
  if (message.role == Role::kLatestReminder) {
    return fault(last, "a reminder cannot be the last message");
  }
  return {};
}

}  // namespace

Result<RenderedPrompt> render_request(const ChatRequest& request,
                                      ChatProfile profile,
                                      const ThinkingDecision& decision) {
  if (request.messages.empty()) {
    return Status::invalid("messages must have at least one message", "messages");
  }
  if (Status status = check_last_message(request); !status.ok()) {
    return status;
  }
  std::vector<ChatMessage> messages = request.messages;
  for (ChatMessage& message : messages) {
    if (message.role == Role::kDeveloper) {
      message.role = Role::kSystem;
    }
  }
  if (request.continue_final_message) {
    messages.back().without_eos = true;
  }
  size_t num_inserted = 0;
  if (!request.functions.empty() || request.response_format) {
    auto system = std::find_if(messages.begin(), messages.end(), [](const ChatMessage& message) {
      return message.role == Role::kSystem;
    });
    if (system == messages.end()) {
      ChatMessage empty;
      empty.role = Role::kSystem;
      system = messages.insert(messages.begin(), std::move(empty));
      num_inserted = 1;
    }
    system->functions = request.functions;
    system->response_format = request.response_format;
  }
  RenderOptions options;
  options.profile = profile;
  options.thinking = decision.thinking;
  options.effort = decision.effort;
  options.end_with_turn = true;
  options.num_inserted = num_inserted;
  return render_messages(messages, options);
}

}  // namespace baleen::text
