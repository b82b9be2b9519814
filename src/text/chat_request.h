#pragma once
// From a chat request to its prompt: what the API promises beyond the published encoder. Tools and
// response format go to the first system message, the role developer is a system message, and a
// prompt without a turn for the model is refused. Pure, any thread.
//
//   ChatRequest request;
//   request.messages = ...;
//   Result<RenderedPrompt> prompt = render_request(request, ChatProfile::kV4, decision);
//   output.starts_in_reasoning = prompt->starts_in_reasoning;

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "text/chat_message.h"
#include "text/chat_renderer.h"
#include "text/thinking.h"

namespace baleen::text {

struct ChatRequest {
  std::vector<ChatMessage> messages;
  std::vector<std::string> functions;          // of each tool, its function as JSON text
  std::optional<std::string> response_format;  // as JSON text, where the answer is to be JSON
  bool continue_final_message = false;         // the last message is an assistant's unfinished text
};

/// A Status names the field: `messages`, `messages[i]`, or what render_messages() names; indices
/// are those of the request.
Result<RenderedPrompt> render_request(const ChatRequest& request,
                                      ChatProfile profile,
                                      const ThinkingDecision& decision);

}  // namespace baleen::text
