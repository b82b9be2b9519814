#pragma once
// The answer as server-sent events. Order per choice: role; reasoning; content and tool calls;
// finish reason. Then, for the whole answer, the usage if asked for and [DONE]. The response begins
// with the first event of the engine, so a request that is refused still gets its HTTP status.
//
//   StreamedAnswer answer({options, tokenizer, num_choices, abort_all}, std::move(writer));

#include <optional>
#include <string>
#include <vector>

#include "server/answer.h"
#include "server/answer_json.h"

namespace baleen::server {

class StreamedAnswer final : public Answer {
 public:
  StreamedAnswer(AnswerTask task, http::ResponseWriter writer);

 private:
  struct Choice {
    bool begun = false;
    bool finished = false;
    bool sent_reasoning_mark = false;            // </think> where reasoning is not separate
    std::string reasoning;                       // all of it so far
    size_t reasoning_sent = 0;                   // bytes of it that went out
    std::vector<engine::GeneratedToken> tokens;  // whose log-probs wait for the next chunk
    int64_t num_tokens = 0;
    int64_t text_offset = 0;
  };

  void on_event(size_t choice, engine::OutputEvent&& event) override;
  void on_complete() override;
  void on_failure(const Status& status) override;
  void begin(size_t index);
  void take_delta(size_t index, text::OutputDelta&& delta);
  void send_reasoning(size_t index);
  void send_content(size_t index, std::string text);
  void send_delta(size_t index, json::object delta);
  void finish(size_t index, const engine::FinishInfo& finish);
  void send_chunk(json::object choice, size_t index);
  void send_usage();
  json::value take_logprobs(Choice& choice);
  Usage usage_so_far() const;

  std::optional<http::ResponseWriter> writer_;  // until the stream begins
  std::optional<http::EventStream> events_;     // from then on
  std::vector<Choice> choices_;
  Usage finished_usage_;  // of ended choices
};

}  // namespace baleen::server
