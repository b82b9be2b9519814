#pragma once
// One request's answer while it is made: takes the events of its choices and writes the response,
// whole or as a stream. Kept alive by the sinks that the engine holds. Events come on the engine's
// thread, fail() also on a handler thread; nothing here blocks.
//
//   auto answer = make_answer({options, tokenizer, num_choices, abort_all}, std::move(writer));
//   engine.submit(request, answer_sink(answer, 0));

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/result.h"
#include "engine/request.h"
#include "http/response_writer.h"
#include "server/answer_options.h"

namespace baleen::text {
class Tokenizer;
}  // namespace baleen::text

namespace baleen::server {

/// What an answer is made for.
struct AnswerTask {
  AnswerOptions options;
  std::shared_ptr<const text::Tokenizer> tokenizer;
  size_t num_choices = 0;
  std::function<void()> abort_all;  // ends the other choices when one fails; once, any thread
  std::shared_ptr<const void> held = nullptr;  // lives as long as the answer
};

/// Orders the calls of several threads: one at a time, none after the answer has ended.
class Answer {
 public:
  explicit Answer(AnswerTask task) : task_(std::move(task)), num_open_(task_.num_choices) {}
  virtual ~Answer() = default;
  void take(size_t choice, engine::OutputEvent&& event);
  /// The request cannot be answered: an error response, or the last event of a begun stream.
  void fail(const Status& status);

 protected:
  const AnswerOptions& options() const { return task_.options; }
  const text::Tokenizer& tokenizer() const { return *task_.tokenizer; }
  size_t num_choices() const { return task_.num_choices; }

 private:
  /// One event of one choice; `event.finish` is its last.
  virtual void on_event(size_t choice, engine::OutputEvent&& event) = 0;
  /// After the last event of the last choice.
  virtual void on_complete() = 0;
  virtual void on_failure(const Status& status) = 0;

  /// One line per request, without a word of it.
  void log_end(const char* outcome) const;

  const AnswerTask task_;
  const std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
  std::mutex mutex_;
  std::optional<std::chrono::steady_clock::time_point> first_event_;
  int64_t completion_tokens_ = 0;  // of the choices that ended
  int64_t cached_tokens_ = 0;
  size_t num_open_;
  bool ended_ = false;
};

/// Neighbouring pieces of one part as one piece; the beginning of a call stays alone.
std::vector<text::OutputDelta> join_deltas(std::vector<text::OutputDelta>&& deltas);

std::shared_ptr<Answer> make_answer(AnswerTask task, http::ResponseWriter writer);

std::shared_ptr<engine::OutputSink> answer_sink(std::shared_ptr<Answer> answer, size_t choice);

}  // namespace baleen::server
