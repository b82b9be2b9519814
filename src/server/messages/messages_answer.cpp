#include "server/messages/messages_answer.h"

#include <utility>

#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>
#include <fmt/format.h>

#include "server/answer_json.h"
#include "server/api_error.h"

namespace baleen::server {
namespace {

constexpr const char* kRequestIdHeader = "request-id";

/// Clients keep a signature with the text and send both back. It only has to be there and to be the
/// same for the same text: reasoning that comes back is taken as it is.
std::string signature_of(std::string_view thinking) {
  uint64_t hash = 0xcbf29ce484222325ULL;  // FNV-1a
  for (const char c : thinking) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  }
  return fmt::format("{:016x}", hash);
}

json::object message_usage(const engine::FinishInfo& finish) {
  return {{"input_tokens", finish.prompt_tokens - finish.cached_tokens},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", finish.cached_tokens},
          {"output_tokens", finish.completion_tokens}};
}

/// stop_reason and stop_sequence.
void add_stop(json::object& message, const engine::FinishInfo& finish) {
  const char* reason = "end_turn";
  if (finish.reason == engine::FinishReason::kLength) {
    reason = "max_tokens";
  } else if (finish.matched_stop) {
    reason = "stop_sequence";
  } else if (!finish.message.tool_calls.empty()) {
    reason = "tool_use";
  }
  message["stop_reason"] = reason;
  message["stop_sequence"] =
      finish.matched_stop ? json::value(*finish.matched_stop) : json::value(nullptr);
}

json::object message_head(const AnswerOptions& options) {
  return {{"id", options.id},
          {"type", "message"},
          {"role", "assistant"},
          {"model", options.model},
          {"content", json::array()},
          {"stop_reason", nullptr},
          {"stop_sequence", nullptr}};
}

json::object tool_use_block(std::string_view name) {
  return {
      {"type", "tool_use"}, {"id", random_id("toolu_")}, {"name", name}, {"input", json::object()}};
}

/// The content as JSON text: a call's input stands in it as the model wrote it, digits included.
std::string content_text(engine::FinishInfo& finish) {
  std::string content;
  const auto add = [&](const std::string& block) {
    content += content.empty() ? "" : ",";
    content += block;
  };
  text::OutputMessage& message = finish.message;
  if (!message.reasoning.empty()) {
    const std::string signature = signature_of(message.reasoning);
    add(json::serialize(json::object{{"type", "thinking"},
                                     {"thinking", std::move(message.reasoning)},
                                     {"signature", signature}}));
  }
  if (!message.content.empty()) {
    add(json::serialize(json::object{{"type", "text"}, {"text", std::move(message.content)}}));
  }
  for (const text::ToolCall& call : message.tool_calls) {
    json::object block = tool_use_block(call.name);
    block.erase("input");
    std::string text = json::serialize(block);
    text.insert(text.size() - 1, ",\"input\":" + call.arguments);
    add(text);
  }
  return "[" + content + "]";
}

Status aborted() {
  return {StatusCode::kCancelled, "the request was aborted", {}, {}};
}

}  // namespace

MessagesAnswer::MessagesAnswer(AnswerTask task, http::ResponseWriter writer)
    : Answer(std::move(task)), writer_(std::move(writer)) {}

void MessagesAnswer::on_event(size_t, engine::OutputEvent&& event) {
  finish_ = std::move(event.finish);
}

void MessagesAnswer::on_complete() {
  if (finish_->reason == engine::FinishReason::kAbort) {
    on_failure(aborted());
    return;
  }
  json::object message = message_head(options());
  add_stop(message, *finish_);
  message["usage"] = message_usage(*finish_);
  message.erase("content");
  std::string body = json::serialize(message);
  body.insert(body.size() - 1, ",\"content\":" + content_text(*finish_));
  http::Response response = http::Response::json(200, std::move(body));
  response.headers.add(kRequestIdHeader, options().id);
  writer_.respond(std::move(response));
}

void MessagesAnswer::on_failure(const Status& status) {
  writer_.respond(error_response(status, ErrorForm::kAnthropic));
}

MessagesStream::MessagesStream(AnswerTask task, http::ResponseWriter writer)
    : Answer(std::move(task)), writer_(std::move(writer)) {}

void MessagesStream::begin() {
  if (events_) {
    return;
  }
  events_ = std::move(*writer_).start_events({{kRequestIdHeader, options().id}});
  writer_.reset();
  json::object message = message_head(options());
  message["usage"] = json::object{{"input_tokens", options().prompt_tokens},
                                  {"cache_creation_input_tokens", 0},
                                  {"cache_read_input_tokens", 0},
                                  {"output_tokens", 0}};
  send("message_start", {{"message", std::move(message)}});
  send("ping", {});
}

void MessagesStream::on_event(size_t, engine::OutputEvent&& event) {
  begin();
  for (text::OutputDelta& delta : join_deltas(std::move(event.deltas))) {
    take_delta(std::move(delta));
  }
  finish_ = std::move(event.finish);
}

void MessagesStream::take_delta(text::OutputDelta&& delta) {
  if (delta.text.empty()) {
    return;
  }
  switch (delta.part) {
    case text::OutputPart::kReasoning:
      if (block_ != Block::kThinking) {
        open(Block::kThinking, {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}});
      }
      thinking_ += delta.text;
      send_delta({{"type", "thinking_delta"}, {"thinking", std::move(delta.text)}});
      break;
    case text::OutputPart::kContent:
      if (block_ != Block::kText) {
        open(Block::kText, {{"type", "text"}, {"text", ""}});
      }
      send_delta({{"type", "text_delta"}, {"text", std::move(delta.text)}});
      break;
    case text::OutputPart::kToolCallBegin:
      open(Block::kToolUse, tool_use_block(delta.text));
      break;
    case text::OutputPart::kToolCallArguments:
      send_delta({{"type", "input_json_delta"}, {"partial_json", std::move(delta.text)}});
      break;
  }
}

void MessagesStream::open(Block block, json::object content) {
  close_block();
  block_ = block;
  ++index_;
  send("content_block_start", {{"index", index_}, {"content_block", std::move(content)}});
}

void MessagesStream::close_block() {
  if (block_ == Block::kNone) {
    return;
  }
  if (block_ == Block::kThinking) {
    send_delta({{"type", "signature_delta"}, {"signature", signature_of(thinking_)}});
    thinking_.clear();
  }
  block_ = Block::kNone;
  send("content_block_stop", {{"index", index_}});
}

void MessagesStream::send_delta(json::object delta) {
  send("content_block_delta", {{"index", index_}, {"delta", std::move(delta)}});
}

void MessagesStream::send(const char* event, json::object data) {
  json::object whole{{"type", event}};
  for (auto& member : data) {
    whole[member.key()] = std::move(member.value());
  }
  events_->send_named(event, json::serialize(whole));
}

void MessagesStream::on_complete() {
  if (finish_->reason == engine::FinishReason::kAbort) {
    on_failure(aborted());
    return;
  }
  close_block();
  json::object delta;
  add_stop(delta, *finish_);
  send("message_delta", {{"delta", std::move(delta)}, {"usage", message_usage(*finish_)}});
  send("message_stop", {});
  events_->close();
}

void MessagesStream::on_failure(const Status& status) {
  if (events_) {
    events_->send_named("error", error_body(status, ErrorForm::kAnthropic));
    events_->close();
  } else {
    writer_->respond(error_response(status, ErrorForm::kAnthropic));
  }
}

}  // namespace baleen::server
