#pragma once
// From a conversation to a training sample: the prompt format's own renderer writes the text, and
// each turn's tokens get the weight of its role. A turn of the assistant is its reasoning, content,
// calls and end token; the header that asks for it belongs to the turn before. Pure, any thread.
//
//   Result<EncodedSample> sample = encode_chat(messages, tokenizer, options);

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "text/chat_message.h"
#include "text/output_stream.h"
#include "text/tokenizer.h"

namespace baleen::train {

struct EncodedSample {
  std::vector<int32_t> ids;
  std::vector<float> weights;  // per token, as a target
};

enum class ThinkingMode : uint8_t {
  kAuto,  // on where an assistant message after the last user's has reasoning
  kOff,
  kOn,
};

struct ChatSampleOptions {
  text::ChatProfile profile = text::ChatProfile::kV4;
  ThinkingMode thinking = ThinkingMode::kAuto;
  /// The format leaves the reasoning of earlier turns out; then only turns behind the last user's
  /// are trained in thinking mode, because the earlier ones read differently from what was said.
  bool drop_thinking = true;
  std::set<text::Role> trained_roles = {text::Role::kAssistant};
  float other_weight = 0.0F;  // of all other tokens
};

/// `trained` per message: false takes its turn out. A Status names the message at fault.
Result<EncodedSample> encode_chat(std::span<const text::ChatMessage> messages,
                                  const std::vector<bool>& trained,
                                  const text::Tokenizer& tokenizer,
                                  const ChatSampleOptions& options);

/// The completion and the end token are trained, the prompt has `other_weight`. Text of both is
/// read with control tokens in it.
EncodedSample encode_completion(const std::string& prompt,
                                const std::string& completion,
                                const text::Tokenizer& tokenizer,
                                float other_weight);

}  // namespace baleen::train
