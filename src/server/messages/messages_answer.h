#pragma once
// The answer in the form of Anthropic Messages: content blocks (thinking, text, tool_use), whole or
// as named events. One choice.
//
//   MessagesAnswer answer({options, tokenizer, 1, abort_all}, std::move(writer));

#include <optional>
#include <string>

#include <boost/json/object.hpp>

#include "server/answer.h"

namespace baleen::server {

namespace json = boost::json;

/// The whole message, sent when it is complete.
class MessagesAnswer final : public Answer {
 public:
  MessagesAnswer(AnswerTask task, http::ResponseWriter writer);

 private:
  void on_event(size_t choice, engine::OutputEvent&& event) override;
  void on_complete() override;
  void on_failure(const Status& status) override;

  http::ResponseWriter writer_;
  std::optional<engine::FinishInfo> finish_;
};

/// message_start, ping, then per block its start, deltas and stop, then message_delta with stop
/// reason and usage, message_stop. The response begins with the engine's first event.
class MessagesStream final : public Answer {
 public:
  MessagesStream(AnswerTask task, http::ResponseWriter writer);

 private:
  enum class Block { kNone, kThinking, kText, kToolUse };
  void on_event(size_t choice, engine::OutputEvent&& event) override;
  void on_complete() override;
  void on_failure(const Status& status) override;
  void begin();
  void take_delta(text::OutputDelta&& delta);
  void open(Block block, json::object content);
  void close_block();
  void send_delta(json::object delta);
  void send(const char* event, json::object data);

  std::optional<http::ResponseWriter> writer_;  // until the stream begins
  std::optional<http::EventStream> events_;     // from then on
  Block block_ = Block::kNone;
  int64_t index_ = -1;    // of the block
  std::string thinking_;  // of the open block
  std::optional<engine::FinishInfo> finish_;
};

}  // namespace baleen::server
