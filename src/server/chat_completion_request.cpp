#include "server/chat_completion_request.h"

#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "engine/request_limits.h"
#include "server/chat_messages.h"
#include "server/chat_prompt.h"
#include "server/thinking_fields.h"

namespace baleen::server {
namespace {

void read_thinking(FieldReader& fields, Conversation& conversation) {
  std::vector<text::EffortField>& efforts = conversation.thinking.efforts;
  efforts.push_back(read_effort(fields, "reasoning_effort"));
  read_thinking_object(fields, conversation);
  if (const json::object* kwargs = fields.object("chat_template_kwargs")) {
    FieldReader inner(*kwargs, fields.path_of("chat_template_kwargs"), fields.status());
    conversation.thinking.kwargs_thinking = inner.boolean("thinking");
    conversation.thinking.kwargs_enable_thinking = inner.boolean("enable_thinking");
    efforts.push_back(read_effort(inner, "reasoning_effort"));
    inner.finish();
  }
}

/// max_completion_tokens, or max_tokens as it was called before.
std::optional<int64_t> read_max_tokens(FieldReader& fields, ApiRequest& request) {
  const auto old_name = fields.integer("max_tokens", 1, kMaxInt32);
  const auto new_name = fields.integer("max_completion_tokens", 1, kMaxInt32);
  if (old_name && new_name && *old_name != *new_name) {
    fields.fail("max_tokens",
                fmt::format("{} contradicts max_completion_tokens {}", *old_name, *new_name));
  }
  request.max_tokens_field = new_name ? "max_completion_tokens" : "max_tokens";
  return new_name ? new_name : old_name;
}

void read_logprobs(FieldReader& fields, engine::GenerationRequest& request) {
  request.want_logprobs = fields.boolean("logprobs").value_or(false);
  const auto top = fields.integer("top_logprobs", 0, engine::kMaxTopLogprobs);
  if (top && !request.want_logprobs) {
    fields.fail("top_logprobs", "needs logprobs: true");
  }
  request.top_logprobs = static_cast<int32_t>(top.value_or(0));
}

}  // namespace

Result<ApiRequest> read_chat_request(const json::object& body, const RequestContext& context) {
  Status status;
  FieldReader fields(body, "", status);
  ApiRequest request;
  request.prompt_field = "messages";
  request.answer.form = AnswerForm::kChat;
  GenerationFields common = read_generation_fields(fields);
  const auto max_tokens = read_max_tokens(fields, request);
  read_logprobs(fields, common.request);
  Conversation conversation;
  read_thinking(fields, conversation);
  request.answer.separate_reasoning = fields.boolean("separate_reasoning").value_or(true);
  request.answer.stream_reasoning = fields.boolean("stream_reasoning").value_or(true);
  fields.only("skip_special_tokens", true);
  fields.not_supported({"task", "input_ids"});
  if (fields.ok()) {
    status = check_model(common.model, context.config);
  }
  RawJson raw(context.body);
  read_response_format(fields, raw, conversation.format);
  read_grammar_fields(fields, false, conversation.format);
  text::ChatRequest& chat = conversation.chat;
  chat.messages = read_messages(fields, raw);
  ToolFields tools = read_tools(fields, raw);
  chat.functions = std::move(tools.functions);
  conversation.tools = std::move(tools.specs);
  conversation.choice = std::move(tools.choice);
  chat.continue_final_message = fields.boolean("continue_final_message").value_or(false);
  fields.finish();
  if (!status.ok()) {
    return status;
  }
  return expand_conversation(
      std::move(conversation), std::move(common), max_tokens, context, std::move(request));
}

}  // namespace baleen::server
