#include "server/chat_prompt.h"

#include <charconv>
#include <memory>
#include <string_view>
#include <utility>

#include "server/structured/answer_grammar.h"
#include "text/tokenizer.h"

namespace baleen::server {
namespace {

/// A fault of messages[i] as the client knows that message.
Status in_client_paths(Status status, const std::vector<std::string>& paths) {
  constexpr std::string_view kPrefix = "messages[";
  if (paths.empty() || !status.param.starts_with(kPrefix)) {
    return status;
  }
  size_t index = 0;
  const char* end = status.param.data() + status.param.size();
  const auto [stop, error] = std::from_chars(status.param.data() + kPrefix.size(), end, index);
  if (error != std::errc() || stop == end || *stop != ']' || index >= paths.size()) {
    return status;
  }
  const std::string ours =
      status.param.substr(0, static_cast<size_t>(stop + 1 - status.param.data()));
  const auto rename = [&](std::string& text) {
    if (const size_t at = text.find(ours); at != std::string::npos) {
      text.replace(at, ours.size(), paths[index]);
    }
  };
  rename(status.param);
  rename(status.message);
  return status;
}

}  // namespace

Result<std::vector<int32_t>> prepare_conversation(Conversation conversation,
                                                  const RequestContext& context,
                                                  engine::GenerationRequest& request) {
  const text::ChatProfile profile = context.config.chat_profile;
  const Result<text::ThinkingDecision> decision =
      text::decide_thinking(profile, conversation.thinking, context.config.default_thinking);
  if (!decision.ok()) {
    return decision.status();
  }
  conversation.chat.response_format = conversation.format.schema;
  const Result<text::RenderedPrompt> prompt =
      text::render_request(conversation.chat, profile, *decision);
  if (!prompt.ok()) {
    return in_client_paths(prompt.status(), conversation.message_paths);
  }
  if (context.grammars != nullptr) {
    Result<std::shared_ptr<const text::Grammar>> grammar = context.grammars->make(
        conversation.format, conversation.choice, conversation.tools, profile);
    if (!grammar.ok()) {
      return grammar.status();
    }
    request.grammar = std::move(grammar).value();
  }
  text::OutputConfig& output = request.output;
  output.parse_markup = true;
  output.profile = profile;
  output.starts_in_reasoning = prompt->starts_in_reasoning;
  output.tools = std::move(conversation.tools);
  if (prompt->starts_in_reasoning) {
    request.reasoning_budget = conversation.thinking_budget;
  }
  return context.tokenizer->encode(prompt->pieces);
}

Result<ApiRequest> expand_conversation(Conversation conversation,
                                       GenerationFields common,
                                       std::optional<int64_t> max_tokens,
                                       const RequestContext& context,
                                       ApiRequest request) {
  Result<std::vector<int32_t>> prompt =
      prepare_conversation(std::move(conversation), context, common.request);
  if (!prompt.ok()) {
    return prompt.status();
  }
  if (const Status status = expand_choices(
          std::move(common), {std::move(prompt).value()}, max_tokens, kMaxInt32, context, request);
      !status.ok()) {
    return status;
  }
  return request;
}

}  // namespace baleen::server
