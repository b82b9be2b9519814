#include "server/responses/responses_request.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "engine/request_limits.h"
#include "server/chat_prompt.h"
#include "server/echo.h"
#include "server/generation_fields.h"
#include "server/responses/response_store.h"
#include "server/responses/responses_input.h"
#include "server/structured/answer_format.h"
#include "server/thinking_fields.h"

namespace baleen::server {
namespace {

/// "text": {"format": {"type": ...}}.
void read_text_field(FieldReader& fields, RawJson& raw, AnswerFormat& format) {
  const json::object* text = fields.object("text");
  if (text == nullptr) {
    return;
  }
  FieldReader inner(*text, fields.path_of("text"), fields.status());
  inner.only("verbosity", "medium");
  if (const json::object* object = inner.object("format")) {
    const text::JsonValue* raw_text = raw.member("text");
    read_flat_format(*object,
                     inner.path_of("format"),
                     raw_text != nullptr ? raw_text->find("format") : nullptr,
                     fields.status(),
                     format);
  }
  inner.finish();
}

/// "reasoning": {"effort", "summary"}. There are no summaries: the reasoning itself is sent.
void read_reasoning_field(FieldReader& fields, Conversation& conversation) {
  const json::object* reasoning = fields.object("reasoning");
  if (reasoning == nullptr) {
    return;
  }
  FieldReader inner(*reasoning, fields.path_of("reasoning"), fields.status());
  conversation.thinking.efforts.push_back(read_effort(inner, "effort"));
  inner.string("summary");
  inner.string("generate_summary");
  inner.finish();
}

void read_unused(FieldReader& fields) {
  fields.ignore({"user",
                 "metadata",
                 "safety_identifier",
                 "prompt_cache_key",
                 "prompt_cache_retention",
                 "stream_options"});
  if (const auto tier = fields.string("service_tier");
      tier && *tier != "auto" && *tier != "default") {
    fields.fail(
        "service_tier",
        fmt::format("\"{}\" is not supported; accepted: \"auto\", \"default\"", shortened(*tier)));
  }
  fields.only("background", false);
  fields.only("truncation", "disabled");
  fields.not_supported({"conversation", "prompt", "max_tool_calls", "context_management"});
}

/// "include" and "top_logprobs": the log-probs of the message's text. Reasoning is sent in the
/// open, so that there is nothing to encrypt.
void read_include(FieldReader& fields, engine::GenerationRequest& request) {
  request.top_logprobs =
      static_cast<int32_t>(fields.integer("top_logprobs", 0, engine::kMaxTopLogprobs).value_or(0));
  request.want_logprobs = request.top_logprobs > 0;
  const auto include = fields.string_list("include");
  for (size_t i = 0; include && i < include->size(); ++i) {
    const std::string& name = (*include)[i];
    if (name == "message.output_text.logprobs") {
      request.want_logprobs = true;
    } else if (name != "reasoning.encrypted_content") {
      fields.fail(element_path("include", i),
                  fmt::format("\"{}\" is not supported; accepted: message.output_text.logprobs, "
                              "reasoning.encrypted_content",
                              shortened(name)));
    }
  }
}

/// The conversation that the request continues, and its instructions in front.
void begin_conversation(FieldReader& fields,
                        const RequestContext& context,
                        Conversation& conversation) {
  if (const auto instructions = fields.string("instructions"); instructions) {
    text::ChatMessage system;
    system.role = text::Role::kSystem;
    system.content = *instructions;
    conversation.chat.messages.push_back(std::move(system));
    conversation.message_paths.push_back(fields.path_of("instructions"));
  }
  const auto previous = fields.string("previous_response_id");
  if (!previous || !fields.ok()) {
    return;
  }
  const std::optional<StoredResponse> stored =
      context.responses != nullptr ? context.responses->find(*previous) : std::nullopt;
  if (!stored || stored->history.empty()) {
    fields.status() = {StatusCode::kNotFound,
                       fmt::format("previous_response_id: there is no {} response \"{}\"",
                                   stored ? "finished" : "kept",
                                   shortened(*previous)),
                       "previous_response_id",
                       {}};
    return;
  }
  for (const text::ChatMessage& message : stored->history) {
    conversation.chat.messages.push_back(message);
    conversation.message_paths.push_back("previous_response_id");
  }
}

/// The request's settings as the response repeats them.
json::object settings_of(const json::object& body) {
  json::object settings{{"instructions", nullptr},
                        {"max_output_tokens", nullptr},
                        {"metadata", json::object()},
                        {"parallel_tool_calls", true},
                        {"previous_response_id", nullptr},
                        {"reasoning", json::object{{"effort", nullptr}, {"summary", nullptr}}},
                        {"store", true},
                        {"temperature", 1.0},
                        {"text", json::object{{"format", json::object{{"type", "text"}}}}},
                        {"tool_choice", "auto"},
                        {"tools", json::array()},
                        {"top_logprobs", 0},
                        {"top_p", 1.0},
                        {"truncation", "disabled"}};
  for (auto& setting : settings) {
    const json::value* given = body.if_contains(setting.key());
    if (given != nullptr && !given->is_null()) {
      setting.value() = *given;
    }
  }
  return settings;
}

}  // namespace

Result<ApiRequest> read_responses_request(const json::object& body, const RequestContext& context) {
  Status status;
  FieldReader fields(body, "", status);
  ApiRequest request;
  request.prompt_field = "input";
  request.max_tokens_field = "max_output_tokens";
  request.answer.form = AnswerForm::kResponses;
  GenerationFields common;
  fields.require("model");
  common.model = fields.string("model").value_or("");
  common.stream = fields.boolean("stream").value_or(false);
  read_float(fields, "temperature", common.request.sampling.temperature);
  read_float(fields, "top_p", common.request.sampling.top_p);
  const auto max_tokens = fields.integer("max_output_tokens", 1, kMaxInt32);
  const bool store = fields.boolean("store").value_or(true);
  Conversation conversation;
  RawJson raw(context.body);
  read_reasoning_field(fields, conversation);
  read_text_field(fields, raw, conversation.format);
  read_unused(fields);
  read_include(fields, common.request);
  if (fields.ok()) {
    status = check_model(common.model, context.config);
  }
  begin_conversation(fields, context, conversation);
  const size_t num_instructions = fields.value("instructions") != nullptr ? 1 : 0;
  read_input_items(fields, conversation);
  read_flat_tools(fields, raw, conversation);
  fields.finish();
  if (!status.ok()) {
    return status;
  }
  auto responses = std::make_shared<ResponsesOptions>();
  responses->settings = settings_of(body);
  responses->store = store ? context.responses : nullptr;
  if (responses->store != nullptr) {
    const auto& messages = conversation.chat.messages;
    responses->history.assign(messages.begin() + static_cast<std::ptrdiff_t>(num_instructions),
                              messages.end());
  }
  request.answer.responses = std::move(responses);
  return expand_conversation(
      std::move(conversation), std::move(common), max_tokens, context, std::move(request));
}

}  // namespace baleen::server
