#pragma once
// The answer in the form of OpenAI Responses: output items (reasoning, message, function calls),
// whole or as named, numbered events. One choice.
//
//   ResponsesAnswer answer({options, tokenizer, 1, abort_all}, std::move(writer));

#include <optional>
#include <string>
#include <vector>

#include <boost/json/object.hpp>

#include "server/answer.h"

namespace baleen::server {

namespace json = boost::json;

/// One item of the output while it is made and afterwards.
struct ResponseItem {
  enum class Kind { kReasoning, kMessage, kCall };
  Kind kind = Kind::kMessage;
  std::string id;
  std::string call_id;
  std::string name;
  std::string text;      // reasoning, content or arguments
  json::array logprobs;  // of the content's tokens, where asked for

  json::object to_json(const char* status) const;
};

class ResponsesAnswer final : public Answer {
 public:
  ResponsesAnswer(AnswerTask task, http::ResponseWriter writer);

 private:
  void on_event(size_t choice, engine::OutputEvent&& event) override;
  void on_complete() override;
  void on_failure(const Status& status) override;
  void begin();
  void take_delta(text::OutputDelta&& delta);
  void open(ResponseItem::Kind kind, std::string name);
  void close_item(const char* status);
  void send_text(std::string delta);
  void take_tokens(std::vector<engine::GeneratedToken>&& tokens);
  json::array logprobs_up_to(size_t text_bytes);
  void send(const char* event, json::object data);
  json::object part() const;   // of the open item
  json::object place() const;  // item_id, output_index, content_index
  json::object response(const char* status) const;
  void settle_items();
  void keep(const json::object& body) const;

  std::optional<http::ResponseWriter> writer_;  // until a stream begins
  std::optional<http::EventStream> events_;     // from then on
  int64_t sequence_number_ = 0;
  std::vector<engine::GeneratedToken> tokens_;  // of the answer's text, not in an item yet
  size_t token_bytes_ = 0;                      // of those that are
  size_t text_bytes_ = 0;                       // content before the first call, so far
  bool has_called_ = false;
  std::vector<ResponseItem> items_;
  std::vector<std::string> statuses_;  // of the items that are closed
  bool is_open_ = false;               // the last item
  std::optional<engine::FinishInfo> finish_;
  Status failure_;
};

}  // namespace baleen::server
