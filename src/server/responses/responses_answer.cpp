#include "server/responses/responses_answer.h"

#include <algorithm>
#include <span>
#include <utility>

#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>

#include "server/answer_json.h"
#include "server/api_error.h"
#include "server/logprob_json.h"
#include "server/responses/response_store.h"
#include "text/tokenizer.h"

namespace baleen::server {
namespace {

/// The event names of an item's text.
struct TextEvents {
  const char* delta;
  const char* done;
};

TextEvents events_of(ResponseItem::Kind kind) {
  switch (kind) {
    case ResponseItem::Kind::kReasoning:
      return {"response.reasoning_text.delta", "response.reasoning_text.done"};
    case ResponseItem::Kind::kMessage:
      return {"response.output_text.delta", "response.output_text.done"};
    case ResponseItem::Kind::kCall:
      return {"response.function_call_arguments.delta", "response.function_call_arguments.done"};
  }
  return {"", ""};
}

json::object part_json(const ResponseItem& item) {
  if (item.kind == ResponseItem::Kind::kReasoning) {
    return {{"type", "reasoning_text"}, {"text", item.text}};
  }
  return {{"type", "output_text"},
          {"text", item.text},
          {"annotations", json::array()},
          {"logprobs", item.logprobs}};
}

const char* status_name(const engine::FinishInfo& finish) {
  switch (finish.reason) {
    case engine::FinishReason::kLength:
      return "incomplete";
    case engine::FinishReason::kAbort:
      return "cancelled";
    default:
      return "completed";
  }
}

json::object response_usage(const engine::FinishInfo& finish) {
  return {{"input_tokens", finish.prompt_tokens},
          {"input_tokens_details", json::object{{"cached_tokens", finish.cached_tokens}}},
          {"output_tokens", finish.completion_tokens},
          {"output_tokens_details", json::object{{"reasoning_tokens", finish.reasoning_tokens}}},
          {"total_tokens", finish.prompt_tokens + finish.completion_tokens}};
}

}  // namespace

json::object ResponseItem::to_json(const char* status) const {
  const bool is_begun = !text.empty() || std::string_view(status) != "in_progress";
  json::array content;
  if (is_begun) {
    content.push_back(part_json(*this));
  }
  switch (kind) {
    case Kind::kReasoning:
      return {{"id", id},
              {"type", "reasoning"},
              {"summary", json::array()},
              {"content", std::move(content)},
              {"status", status}};
    case Kind::kMessage:
      return {{"id", id},
              {"type", "message"},
              {"role", "assistant"},
              {"content", std::move(content)},
              {"status", status}};
    case Kind::kCall:
      return {{"id", id},
              {"type", "function_call"},
              {"call_id", call_id},
              {"name", name},
              {"arguments", text},
              {"status", status}};
  }
  return {};
}

ResponsesAnswer::ResponsesAnswer(AnswerTask task, http::ResponseWriter writer)
    : Answer(std::move(task)), writer_(std::move(writer)) {
  keep(response("in_progress"));
}

json::object ResponsesAnswer::response(const char* status) const {
  json::array output;
  for (size_t i = 0; i < items_.size(); ++i) {
    output.push_back(
        items_[i].to_json(i < statuses_.size() ? statuses_[i].c_str() : "in_progress"));
  }
  json::object body{{"id", options().id},
                    {"object", "response"},
                    {"created_at", options().created},
                    {"status", status},
                    {"background", false},
                    {"error", nullptr},
                    {"incomplete_details", nullptr},
                    {"model", options().model},
                    {"output", std::move(output)},
                    {"usage", nullptr}};
  if (finish_) {
    body["usage"] = response_usage(*finish_);
    if (finish_->reason == engine::FinishReason::kLength) {
      body["incomplete_details"] = json::object{{"reason", "max_output_tokens"}};
    }
  }
  if (!failure_.ok()) {
    body["error"] = json::object{{"code", "server_error"}, {"message", failure_.message}};
  }
  for (const auto& setting : options().responses->settings) {
    body[setting.key()] = setting.value();
  }
  return body;
}

void ResponsesAnswer::keep(const json::object& body) const {
  const ResponsesOptions& responses = *options().responses;
  if (responses.store == nullptr) {
    return;
  }
  StoredResponse stored{json::serialize(body), {}};
  if (finish_) {
    stored.history = responses.history;
    text::ChatMessage& answer = stored.history.emplace_back();
    answer.role = text::Role::kAssistant;
    for (const ResponseItem& item : items_) {
      if (item.kind == ResponseItem::Kind::kReasoning) {
        answer.reasoning_content += item.text;
      } else if (item.kind == ResponseItem::Kind::kMessage) {
        answer.content += item.text;
      } else {
        answer.tool_calls.push_back({item.call_id, item.name, item.text, true});
      }
    }
  }
  responses.store->put(options().id, std::move(stored));
}

void ResponsesAnswer::begin() {
  if (events_) {
    return;
  }
  events_ = std::move(*writer_).start_events();
  writer_.reset();
  send("response.created", {{"response", response("in_progress")}});
  send("response.in_progress", {{"response", response("in_progress")}});
}

void ResponsesAnswer::on_event(size_t, engine::OutputEvent&& event) {
  take_tokens(std::move(event.tokens));
  for (const text::OutputDelta& delta : event.deltas) {
    has_called_ = has_called_ || delta.part == text::OutputPart::kToolCallBegin;
    text_bytes_ += delta.part == text::OutputPart::kContent && !has_called_ ? delta.text.size() : 0;
  }
  if (options().stream) {
    begin();
    for (text::OutputDelta& delta : join_deltas(std::move(event.deltas))) {
      take_delta(std::move(delta));
    }
  }
  finish_ = std::move(event.finish);
}

void ResponsesAnswer::take_tokens(std::vector<engine::GeneratedToken>&& tokens) {
  if (!options().logprobs || has_called_) {
    return;
  }
  for (engine::GeneratedToken& token : tokens) {
    if (!token.reasoning) {
      tokens_.push_back(std::move(token));
    }
  }
}

/// Of the tokens that begin in the first `text_bytes` of the content and are in no item yet. The
/// content begins with the first token behind the reasoning; those of calls and of the end come
/// after it.
json::array ResponsesAnswer::logprobs_up_to(size_t text_bytes) {
  size_t count = 0;
  while (count < tokens_.size() && token_bytes_ < text_bytes) {
    token_bytes_ += tokenizer().token_bytes(tokens_[count++].id).size();
  }
  json::array logprobs = token_logprobs(tokenizer(), std::span(tokens_).first(count));
  tokens_.erase(tokens_.begin(), tokens_.begin() + static_cast<std::ptrdiff_t>(count));
  return logprobs;
}

void ResponsesAnswer::take_delta(text::OutputDelta&& delta) {
  if (delta.text.empty()) {
    return;
  }
  const auto continues = [&](ResponseItem::Kind kind) {
    return is_open_ && items_.back().kind == kind;
  };
  switch (delta.part) {
    case text::OutputPart::kReasoning:
      if (!continues(ResponseItem::Kind::kReasoning)) {
        open(ResponseItem::Kind::kReasoning, {});
      }
      send_text(std::move(delta.text));
      break;
    case text::OutputPart::kContent:
      if (!continues(ResponseItem::Kind::kMessage)) {
        open(ResponseItem::Kind::kMessage, {});
      }
      send_text(std::move(delta.text));
      break;
    case text::OutputPart::kToolCallBegin:
      open(ResponseItem::Kind::kCall, std::move(delta.text));
      break;
    case text::OutputPart::kToolCallArguments:
      send_text(std::move(delta.text));
      break;
  }
}

json::object ResponsesAnswer::place() const {
  json::object place{{"item_id", items_.back().id},
                     {"output_index", static_cast<int64_t>(items_.size()) - 1}};
  if (items_.back().kind != ResponseItem::Kind::kCall) {
    place["content_index"] = 0;
  }
  return place;
}

json::object ResponsesAnswer::part() const {
  json::object data = place();
  data["part"] = part_json(items_.back());
  return data;
}

void ResponsesAnswer::open(ResponseItem::Kind kind, std::string name) {
  close_item("completed");
  ResponseItem& item = items_.emplace_back();
  item.kind = kind;
  item.name = std::move(name);
  switch (kind) {
    case ResponseItem::Kind::kReasoning:
      item.id = random_id("rs_");
      break;
    case ResponseItem::Kind::kMessage:
      item.id = random_id("msg_");
      break;
    case ResponseItem::Kind::kCall:
      item.id = random_id("fc_");
      item.call_id = random_id("call_");
      break;
  }
  is_open_ = true;
  send("response.output_item.added",
       {{"output_index", static_cast<int64_t>(items_.size()) - 1},
        {"item", item.to_json("in_progress")}});
  if (kind != ResponseItem::Kind::kCall) {
    send("response.content_part.added", part());
  }
}

void ResponsesAnswer::send_text(std::string delta) {
  ResponseItem& item = items_.back();
  item.text += delta;
  json::object data = place();
  data["delta"] = std::move(delta);
  if (item.kind == ResponseItem::Kind::kMessage) {
    json::array logprobs = logprobs_up_to(std::min(item.text.size(), text_bytes_));
    item.logprobs.insert(item.logprobs.end(), logprobs.begin(), logprobs.end());
    data["logprobs"] = std::move(logprobs);
  }
  send(events_of(item.kind).delta, std::move(data));
}

void ResponsesAnswer::close_item(const char* status) {
  if (!is_open_) {
    return;
  }
  is_open_ = false;
  const ResponseItem& item = items_.back();
  json::object done = place();
  if (item.kind == ResponseItem::Kind::kCall) {
    done["name"] = item.name;
    done["arguments"] = item.text;
  } else {
    done["text"] = item.text;
  }
  if (item.kind == ResponseItem::Kind::kMessage) {
    done["logprobs"] = item.logprobs;
  }
  send(events_of(item.kind).done, std::move(done));
  if (item.kind != ResponseItem::Kind::kCall) {
    send("response.content_part.done", part());
  }
  statuses_.emplace_back(status);
  send("response.output_item.done",
       {{"output_index", static_cast<int64_t>(items_.size()) - 1}, {"item", item.to_json(status)}});
}

/// The items of an answer that was not streamed.
void ResponsesAnswer::settle_items() {
  const char* status = finish_->reason == engine::FinishReason::kStop ? "completed" : "incomplete";
  const auto add = [&](ResponseItem::Kind kind, const char* prefix, const std::string& text) {
    ResponseItem& item = items_.emplace_back();
    item.kind = kind;
    item.id = random_id(prefix);
    item.text = text;
    statuses_.emplace_back("completed");
    return &item;
  };
  const text::OutputMessage& message = finish_->message;
  if (!message.reasoning.empty()) {
    add(ResponseItem::Kind::kReasoning, "rs_", message.reasoning);
  }
  if (!message.content.empty() || (message.tool_calls.empty() && message.reasoning.empty())) {
    add(ResponseItem::Kind::kMessage, "msg_", message.content)->logprobs =
        logprobs_up_to(text_bytes_);
  }
  if (!statuses_.empty()) {
    statuses_.back() = status;
  }
  for (const text::ToolCall& call : message.tool_calls) {
    ResponseItem* item = add(ResponseItem::Kind::kCall, "fc_", call.arguments);
    item->name = call.name;
    item->call_id = random_id("call_");
  }
}

void ResponsesAnswer::on_complete() {
  const char* status = status_name(*finish_);
  if (!options().stream) {
    settle_items();
    const json::object body = response(status);
    keep(body);
    writer_->respond(http::Response::json(200, json::serialize(body)));
    return;
  }
  const bool is_whole = finish_->reason == engine::FinishReason::kStop;
  close_item(is_whole ? "completed" : "incomplete");
  const json::object body = response(status);
  keep(body);
  const char* event = "response.completed";
  if (finish_->reason == engine::FinishReason::kLength) {
    event = "response.incomplete";
  } else if (finish_->reason == engine::FinishReason::kAbort) {
    event = "response.failed";
  }
  send(event, {{"response", body}});
  events_->close();
}

void ResponsesAnswer::on_failure(const Status& status) {
  failure_ = status;
  const json::object body = response("failed");
  keep(body);
  if (events_) {
    send("response.failed", {{"response", body}});
    events_->close();
  } else {
    writer_->respond(error_response(status));
  }
}

void ResponsesAnswer::send(const char* event, json::object data) {
  json::object whole{{"type", event}, {"sequence_number", sequence_number_++}};
  for (auto& member : data) {
    whole[member.key()] = std::move(member.value());
  }
  events_->send_named(event, json::serialize(whole));
}

}  // namespace baleen::server
