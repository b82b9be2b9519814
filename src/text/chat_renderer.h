#pragma once
// From a conversation to the prompt of a checkpoint generation. Pure, any thread.
//
//   RenderOptions options{.profile = profile, .thinking = true};
//   Result<RenderedPrompt> prompt = render_messages(messages, options);
//   std::vector<int32_t> ids = tokenizer.encode(prompt->pieces);
//
// render_messages() is the published encoder; requests come in through chat_request.h, which adds
// what an API promises beyond it.

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "text/chat_message.h"
#include "text/output_stream.h"
#include "text/thinking.h"
#include "text/tokenizer.h"

namespace baleen::text {

struct RenderOptions {
  ChatProfile profile = ChatProfile::kV4;
  bool thinking = false;
  Effort effort{};
  bool drop_thinking = true;  // leave out reasoning of earlier turns; tools turn this off
  bool add_bos = true;
  std::span<const ChatMessage> context{};  // rendered earlier; the prompt continues it
  bool end_with_turn = false;  // a last system message is followed by the assistant's header
  size_t num_inserted = 0;  // messages in front that the client did not send; not counted in faults
};

struct RenderedPrompt {
  std::vector<PromptPiece> pieces;   // no two neighbours of the same kind
  bool starts_in_reasoning = false;  // the prompt ends with <think>

  std::string text() const;
};

/// A Status names the message at fault by its place in `messages` (in context and messages
/// together, if there is a context): arguments that are JSON but no object, an unknown task, a tool
/// or response format that is not JSON, a developer message without content.
Result<RenderedPrompt> render_messages(std::span<const ChatMessage> messages,
                                       const RenderOptions& options);

}  // namespace baleen::text
