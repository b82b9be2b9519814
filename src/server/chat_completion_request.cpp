#include "server/chat_completion_request.h"

#include <optional>
#include <utility>

#include <fmt/format.h>

#include "engine/request_limits.h"
#include "server/chat_messages.h"
#include "server/echo.h"
#include "server/json_input.h"
#include "text/chat_request.h"
#include "text/tokenizer.h"

namespace baleen::server {
namespace {

text::EffortField read_effort(FieldReader& fields) {
  text::EffortField effort{fields.path_of("reasoning_effort"), {}};
  const json::value* value = fields.value("reasoning_effort");
  if (value == nullptr) {
    return effort;
  }
  if (value->is_string()) {
    effort.value = std::string(value->get_string());
  } else if (value->is_int64()) {
    effort.value = value->get_int64();
  } else if (value->is_double()) {
    effort.value = value->get_double();
  } else if (value->is_bool()) {
    effort.value = value->get_bool();
  } else {
    fields.fail("reasoning_effort",
                fmt::format("must be a string or an integer, is {}", json_kind_name(*value)));
  }
  return effort;
}

struct ThinkingRequest {
  text::ThinkingFields fields;
  std::optional<int32_t> budget;
};

ThinkingRequest read_thinking(FieldReader& fields) {
  ThinkingRequest request;
  request.fields.efforts.push_back(read_effort(fields));
  if (const json::object* thinking = fields.object("thinking")) {
    FieldReader inner(*thinking, fields.path_of("thinking"), fields.status());
    inner.require("type");
    request.fields.thinking_type = inner.string("type");
    if (const auto budget = inner.integer("budget_tokens", 1, kMaxInt32)) {
      request.budget = static_cast<int32_t>(*budget);
    }
    inner.finish();
  }
  if (const json::object* kwargs = fields.object("chat_template_kwargs")) {
    FieldReader inner(*kwargs, fields.path_of("chat_template_kwargs"), fields.status());
    request.fields.kwargs_thinking = inner.boolean("thinking");
    request.fields.kwargs_enable_thinking = inner.boolean("enable_thinking");
    request.fields.efforts.push_back(read_effort(inner));
    inner.finish();
  }
  return request;
}

void read_response_format(FieldReader& fields) {
  const json::object* format = fields.object("response_format");
  if (format == nullptr) {
    return;
  }
  const json::value* type = format->if_contains("type");
  if (type == nullptr || *type != "text") {
    fields.fail("response_format.type",
                fmt::format("{} is not supported; accepted: \"text\"",
                            type != nullptr ? shown(*type) : "a format without type"));
    return;
  }
  FieldReader inner(*format, fields.path_of("response_format"), fields.status());
  inner.ignore({"type"});
  inner.finish();
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
  read_response_format(fields);
  ThinkingRequest thinking = read_thinking(fields);
  request.answer.separate_reasoning = fields.boolean("separate_reasoning").value_or(true);
  request.answer.stream_reasoning = fields.boolean("stream_reasoning").value_or(true);
  fields.only("skip_special_tokens", true);
  fields.not_supported({"task", "input_ids"});
  if (fields.ok()) {
    status = check_model(common.model, context.config);
  }
  RawJson raw(context.body);
  text::ChatRequest chat;
  chat.messages = read_messages(fields, raw);
  ToolFields tools = read_tools(fields, raw);
  chat.functions = std::move(tools.functions);
  chat.continue_final_message = fields.boolean("continue_final_message").value_or(false);
  fields.finish();
  if (!status.ok()) {
    return status;
  }

  const text::ChatProfile profile = context.config.chat_profile;
  const Result<text::ThinkingDecision> decision =
      text::decide_thinking(profile, thinking.fields, context.config.default_thinking);
  if (!decision.ok()) {
    return decision.status();
  }
  const Result<text::RenderedPrompt> prompt = text::render_request(chat, profile, *decision);
  if (!prompt.ok()) {
    return prompt.status();
  }
  text::OutputConfig& output = common.request.output;
  output.parse_markup = true;
  output.profile = profile;
  output.starts_in_reasoning = prompt->starts_in_reasoning;
  output.tools = std::move(tools.specs);
  if (prompt->starts_in_reasoning) {
    common.request.reasoning_budget = thinking.budget;
  }
  if (status = expand_choices(std::move(common),
                              {context.tokenizer->encode(prompt->pieces)},
                              max_tokens,
                              kMaxInt32,
                              context,
                              request);
      !status.ok()) {
    return status;
  }
  return request;
}

}  // namespace baleen::server
