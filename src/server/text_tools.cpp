#include "server/text_tools.h"

#include <string>
#include <utility>
#include <vector>

#include <boost/json/array.hpp>

#include "server/chat_completion_request.h"
#include "server/chat_messages.h"
#include "text/output_stream.h"
#include "text/tokenizer.h"

namespace baleen::server {
namespace {

json::array ids_json(const std::vector<int32_t>& ids) {
  return json::array(ids.begin(), ids.end());
}

/// A chat request without what only matters for generating; `model` may be missing.
json::object completed_chat(const json::object& body, const RequestContext& context) {
  json::object chat = body;
  if (const json::value* model = chat.if_contains("model"); model == nullptr || model->is_null()) {
    chat["model"] = context.config.model_name;
  }
  return chat;
}

text::OutputMessage parse_text(const std::string& text,
                               text::OutputConfig output,
                               const RequestContext& context) {
  output.profile = context.config.chat_profile;
  text::OutputStream stream(context.tokenizer, std::move(output));
  std::vector<text::OutputDelta> deltas;
  for (const int32_t id : context.tokenizer->encode(text)) {
    stream.push(id, deltas);
  }
  stream.finish(text::EndCause::kStop, deltas);
  return stream.message();
}

}  // namespace

Result<json::object> tokenize(const json::object& body, const RequestContext& context) {
  Status status;
  FieldReader fields(body, "", status);
  // The tokenizer adds no tokens of its own, so there is nothing to leave out.
  fields.boolean("add_special_tokens");
  if (fields.value("prompt") == nullptr) {
    json::object chat = completed_chat(body, context);
    chat.erase("add_special_tokens");
    if (!status.ok()) {
      return status;
    }
    if (!chat.contains("messages")) {
      return Status::invalid("prompt: prompt or messages are needed", "prompt");
    }
    Result<json::object> rendered = render_chat(chat, context);
    if (!rendered.ok()) {
      return rendered.status();
    }
    return json::object{{"tokens", rendered->at("tokens")},
                        {"count", rendered->at("count")},
                        {"max_model_len", context.max_context}};
  }
  if (const auto model = fields.string("model")) {
    status = check_model(*model, context.config);
  }
  const bool is_list = fields.ok() && body.at("prompt").is_array();
  const auto prompts = fields.string_list("prompt");
  fields.finish();
  if (!status.ok()) {
    return status;
  }
  json::array tokens;
  json::array counts;
  for (const std::string& prompt : *prompts) {
    const std::vector<int32_t> ids = context.tokenizer->encode(prompt);
    counts.push_back(static_cast<int64_t>(ids.size()));
    tokens.push_back(ids_json(ids));
  }
  json::object answer{{"max_model_len", context.max_context}};
  answer["tokens"] = is_list ? json::value(std::move(tokens)) : tokens[0];
  answer["count"] = is_list ? json::value(std::move(counts)) : counts[0];
  return answer;
}

Result<json::object> detokenize(const json::object& body, const RequestContext& context) {
  Status status;
  FieldReader fields(body, "", status);
  if (const auto model = fields.string("model")) {
    status = check_model(*model, context.config);
  }
  fields.require("tokens");
  const bool skip = fields.boolean("skip_special_tokens").value_or(true);
  const auto ids = fields.integer_list("tokens", 0, context.tokenizer->vocab_size() - 1);
  fields.finish();
  if (!status.ok()) {
    return status;
  }
  const std::string text = context.tokenizer->decode(*ids, skip);
  return json::object{{"text", text}, {"prompt", text}};
}

Result<json::object> render_chat(const json::object& body, const RequestContext& context) {
  const Result<ApiRequest> request = read_chat_request(completed_chat(body, context), context);
  if (!request.ok()) {
    return request.status();
  }
  const engine::GenerationRequest& choice = request->choices.at(0);
  return json::object{{"prompt", context.tokenizer->decode(choice.prompt)},
                      {"tokens", ids_json(choice.prompt)},
                      {"count", static_cast<int64_t>(choice.prompt.size())},
                      {"starts_in_reasoning", choice.output.starts_in_reasoning}};
}

Result<json::object> parse_function_call(const json::object& body, const RequestContext& context) {
  Status status;
  FieldReader fields(body, "", status);
  fields.require("text");
  const std::string text = fields.string("text").value_or("");
  fields.string("tool_call_parser");  // a checkpoint has one format; the name does not choose it
  RawJson raw(context.body);
  fields.require("tools");
  text::OutputConfig output;
  output.tools = read_tools(fields, raw).specs;
  fields.finish();
  if (!status.ok()) {
    return status;
  }
  const text::OutputMessage message = parse_text(text, std::move(output), context);
  json::array calls;
  for (const text::ToolCall& call : message.tool_calls) {
    calls.push_back(json::object{{"tool_index", static_cast<int64_t>(calls.size())},
                                 {"name", call.name},
                                 {"parameters", call.arguments}});
  }
  return json::object{{"normal_text", message.content}, {"calls", std::move(calls)}};
}

Result<json::object> separate_reasoning(const json::object& body, const RequestContext& context) {
  Status status;
  FieldReader fields(body, "", status);
  fields.require("text");
  const std::string text = fields.string("text").value_or("");
  fields.string("reasoning_parser");
  fields.finish();
  if (!status.ok()) {
    return status;
  }
  constexpr std::string_view kBegin = "<think>";
  text::OutputConfig output;
  output.starts_in_reasoning = true;
  const text::OutputMessage message =
      parse_text(text.starts_with(kBegin) ? text.substr(kBegin.size()) : text, output, context);
  return json::object{{"reasoning_text", message.reasoning}, {"text", message.content}};
}

}  // namespace baleen::server
