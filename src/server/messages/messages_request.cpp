#include "server/messages/messages_request.h"

#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "server/chat_prompt.h"
#include "server/echo.h"
#include "server/generation_fields.h"
#include "server/messages/messages_content.h"
#include "server/thinking_fields.h"

namespace baleen::server {
namespace {

void read_output_config(FieldReader& fields, RawJson& raw, Conversation& conversation) {
  const json::object* config = fields.object("output_config");
  if (config == nullptr) {
    return;
  }
  FieldReader inner(*config, fields.path_of("output_config"), fields.status());
  conversation.thinking.efforts.push_back(read_effort(inner, "effort"));
  if (const json::object* format = inner.object("format")) {
    FieldReader form(*format, inner.path_of("format"), fields.status());
    form.require("type");
    form.only("type", "json_schema");
    const text::JsonValue* raw_config = raw.member("output_config");
    read_schema_object(
        form, raw_config != nullptr ? raw_config->find("format") : nullptr, conversation.format);
    form.finish();
  }
  inner.not_supported({"task_budget"});
  inner.finish();
}

/// Edits of the reasoning of earlier turns say what the model's own format does anyway.
void read_context_management(FieldReader& fields) {
  const json::object* management = fields.object("context_management");
  if (management == nullptr) {
    return;
  }
  FieldReader inner(*management, fields.path_of("context_management"), fields.status());
  if (const json::array* edits = inner.array("edits")) {
    for (size_t i = 0; i < edits->size() && inner.ok(); ++i) {
      const json::value* type =
          (*edits)[i].is_object() ? (*edits)[i].get_object().if_contains("type") : nullptr;
      if (type == nullptr || !type->is_string() ||
          !std::string_view(type->get_string()).starts_with("clear_thinking_")) {
        inner.fail(element_path("edits", i),
                   fmt::format("{} is not supported; accepted: clear_thinking edits",
                               type != nullptr ? shown(*type) : "an edit without type"));
      }
    }
  }
  inner.finish();
}

void read_sampling(FieldReader& fields, GenerationFields& common) {
  engine::SamplingConfig& sampling = common.request.sampling;
  read_float(fields, "temperature", sampling.temperature);
  read_float(fields, "top_p", sampling.top_p);
  const auto top_k = fields.integer("top_k", 0, kMaxInt32);
  sampling.top_k = top_k.value_or(0) == 0 ? -1 : static_cast<int32_t>(*top_k);
  read_stop_strings(fields, "stop_sequences", common.request.output);
}

struct MessagesFields {
  GenerationFields common;
  std::optional<int64_t> max_tokens;
  std::vector<int32_t> prompt;
};

Result<MessagesFields> read_fields(const json::object& body,
                                   const RequestContext& context,
                                   bool counts_only) {
  Status status;
  FieldReader fields(body, "", status);
  MessagesFields out;
  Conversation conversation;
  fields.require("model");
  out.common.model = fields.string("model").value_or("");
  if (!counts_only) {
    fields.require("max_tokens");
  }
  out.max_tokens = fields.integer("max_tokens", 1, kMaxInt32);
  out.common.stream = fields.boolean("stream").value_or(false);
  read_sampling(fields, out.common);
  read_thinking_object(fields, conversation);
  RawJson raw(context.body);
  read_output_config(fields, raw, conversation);
  read_context_management(fields);
  fields.ignore({"metadata", "cache_control", "betas"});
  if (const auto tier = fields.string("service_tier");
      tier && *tier != "auto" && *tier != "standard_only") {
    fields.fail("service_tier",
                fmt::format("\"{}\" is not supported; accepted: \"auto\", \"standard_only\"",
                            shortened(*tier)));
  }
  fields.only("speed", "standard");
  fields.not_supported({"container", "mcp_servers", "inference_geo"});
  if (fields.ok()) {
    status = check_model(out.common.model, context.config);
  }
  read_message_list(fields, raw, conversation);
  read_message_tools(fields, raw, conversation);
  fields.finish();
  if (!status.ok()) {
    return status;
  }
  Result<std::vector<int32_t>> prompt =
      prepare_conversation(std::move(conversation), context, out.common.request);
  if (!prompt.ok()) {
    return prompt.status();
  }
  out.prompt = std::move(prompt).value();
  return out;
}

}  // namespace

Result<ApiRequest> read_messages_request(const json::object& body, const RequestContext& context) {
  Result<MessagesFields> read = read_fields(body, context, false);
  if (!read.ok()) {
    return read.status();
  }
  MessagesFields fields = std::move(read).value();
  ApiRequest request;
  request.prompt_field = "messages";
  request.answer.form = AnswerForm::kMessages;
  if (const Status status = expand_choices(std::move(fields.common),
                                           {std::move(fields.prompt)},
                                           fields.max_tokens,
                                           kMaxInt32,
                                           context,
                                           request);
      !status.ok()) {
    return status;
  }
  return request;
}

Result<json::object> count_message_tokens(const json::object& body, const RequestContext& context) {
  const Result<MessagesFields> read = read_fields(body, context, true);
  if (!read.ok()) {
    return read.status();
  }
  return json::object{{"input_tokens", static_cast<int64_t>(read->prompt.size())}};
}

}  // namespace baleen::server
