#pragma once
// From a conversation of any dialect to what the engine runs: the one decision about thinking, the
// prompt's ids, and the parser that reads the answer. Pure, any thread.
//
//   Conversation conversation = ...;             // filled by the dialect's reader
//   Result<std::vector<int32_t>> prompt =
//       prepare_conversation(std::move(conversation), context, choice);

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/request.h"
#include "server/api_request.h"
#include "server/chat_messages.h"
#include "server/structured/answer_format.h"
#include "text/chat_request.h"
#include "text/thinking.h"

namespace baleen::server {

struct Conversation {
  text::ChatRequest chat;                  // messages and tools of the prompt
  std::vector<text::ToolSpec> tools;       // the same tools, for the output parser
  ToolChoice choice;                       // which of them may or must be called
  AnswerFormat format;                     // what the answer is to look like
  text::ThinkingFields thinking;           // what the request says about it
  std::optional<int32_t> thinking_budget;  // >= 1
  /// Where the client wrote chat.messages[i], for errors; empty: at messages[i].
  std::vector<std::string> message_paths;
};

/// The prompt. Fills what `request` needs to know of it: output parser, reasoning budget and, where
/// the context can make one, the grammar of the answer.
Result<std::vector<int32_t>> prepare_conversation(Conversation conversation,
                                                  const RequestContext& context,
                                                  engine::GenerationRequest& request);

/// The whole request: one prompt with `common`'s samples, each of at most `max_tokens`.
Result<ApiRequest> expand_conversation(Conversation conversation,
                                       GenerationFields common,
                                       std::optional<int64_t> max_tokens,
                                       const RequestContext& context,
                                       ApiRequest request);

}  // namespace baleen::server
