#pragma once
// One request's answer while it is made: takes the events of its choices and writes the response,
// whole or as a stream. Kept alive by the sinks that the engine holds. Events come on the engine's
// thread, fail() also on a handler thread; nothing here blocks.
//
//   auto answer = make_answer(options, tokenizer, num_choices, std::move(writer), abort_all);
//   engine.submit(request, answer_sink(answer, 0));

#include <functional>
#include <memory>

#include "base/result.h"
#include "engine/request.h"
#include "http/response_writer.h"
#include "server/answer_options.h"

namespace baleen::text {
class Tokenizer;
}  // namespace baleen::text

namespace baleen::server {

class Answer {
 public:
  virtual ~Answer() = default;
  virtual void take(size_t choice, engine::OutputEvent&& event) = 0;
  /// The request cannot be answered: an error response, or the last event of a begun stream.
  virtual void fail(const Status& status) = 0;
};

/// `abort_all` ends the other choices when one fails; called at most once, any thread.
std::shared_ptr<Answer> make_answer(AnswerOptions options,
                                    std::shared_ptr<const text::Tokenizer> tokenizer,
                                    size_t num_choices,
                                    http::ResponseWriter writer,
                                    std::function<void()> abort_all);

std::shared_ptr<engine::OutputSink> answer_sink(std::shared_ptr<Answer> answer, size_t choice);

}  // namespace baleen::server
