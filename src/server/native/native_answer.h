#pragma once
// The answer of /generate: text, token ids and meta_info of every choice, whole or as events that
// each repeat all of a choice's text so far.
//
//   NativeAnswer answer({options, tokenizer, num_choices, abort_all}, std::move(writer));

#include <optional>
#include <string>
#include <vector>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include "server/answer.h"

namespace baleen::server {

namespace json = boost::json;

class NativeAnswer final : public Answer {
 public:
  NativeAnswer(AnswerTask task, http::ResponseWriter writer);

 private:
  struct Choice {
    std::string text;
    std::vector<int32_t> ids;
    json::array logprobs;         // triples of the answer's tokens
    json::array top_logprobs;     // a list of triples per token
    json::array prompt_logprobs;  // triples from logprob_start on
    std::optional<engine::FinishInfo> finish;
  };
  void on_event(size_t choice, engine::OutputEvent&& event) override;
  void on_complete() override;
  void on_failure(const Status& status) override;
  void take_logprobs(size_t index, const engine::OutputEvent& event);
  json::array triple(int32_t id, std::optional<float> logprob) const;
  json::object choice_json(size_t index) const;
  json::object meta_info(size_t index) const;
  void add_choices(size_t index, json::object& meta) const;

  std::optional<http::ResponseWriter> writer_;  // until a stream begins
  std::optional<http::EventStream> events_;     // from then on
  std::vector<Choice> choices_;
};

}  // namespace baleen::server
