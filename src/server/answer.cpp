#include "server/answer.h"

#include <utility>

#include "base/log.h"
#include "server/messages/messages_answer.h"
#include "server/native/native_answer.h"
#include "server/responses/responses_answer.h"
#include "server/streamed_answer.h"
#include "server/whole_answer.h"

namespace baleen::server {
namespace {

class ChoiceSink final : public engine::OutputSink {
 public:
  ChoiceSink(std::shared_ptr<Answer> answer, size_t choice)
      : answer_(std::move(answer)), choice_(choice) {}
  void on_event(engine::OutputEvent&& event) override { answer_->take(choice_, std::move(event)); }

 private:
  std::shared_ptr<Answer> answer_;  // shared by the sinks of all choices
  const size_t choice_;
};

const char* outcome_name(engine::FinishReason reason) {
  switch (reason) {
    case engine::FinishReason::kStop:
      return "stop";
    case engine::FinishReason::kLength:
      return "length";
    case engine::FinishReason::kAbort:
      return "abort";
    case engine::FinishReason::kError:
      return "error";
  }
  return "?";
}

}  // namespace

void Answer::take(size_t choice, engine::OutputEvent&& event) {
  if (event.finish && event.finish->reason == engine::FinishReason::kError) {
    fail(event.finish->error);
    return;
  }
  const std::lock_guard lock(mutex_);
  if (ended_) {
    return;
  }
  if (!first_event_) {
    first_event_ = std::chrono::steady_clock::now();
  }
  const bool last = event.finish.has_value();
  const char* outcome = last ? outcome_name(event.finish->reason) : "";
  if (last) {
    completion_tokens_ += event.finish->completion_tokens;
    cached_tokens_ += event.finish->cached_tokens;
  }
  on_event(choice, std::move(event));
  if (last && --num_open_ == 0) {
    ended_ = true;
    on_complete();
    log_end(outcome);
  }
}

void Answer::fail(const Status& status) {
  {
    const std::lock_guard lock(mutex_);
    if (ended_) {
      return;
    }
    ended_ = true;
    on_failure(status);
    log_end(status_code_name(status.code));
  }
  task_.abort_all();
}

void Answer::log_end(const char* outcome) const {
  const auto ms = [&](std::chrono::steady_clock::time_point to) {
    return std::chrono::duration<double, std::milli>(to - begun_).count();
  };
  const auto now = std::chrono::steady_clock::now();
  log::info("server",
            "request id={} stream={} choices={} prompt_tokens={} cached_tokens={} "
            "completion_tokens={} first_ms={:.1f} took_ms={:.1f} outcome={}",
            options().id,
            options().stream,
            num_choices(),
            options().prompt_tokens,
            cached_tokens_,
            completion_tokens_,
            ms(first_event_.value_or(now)),
            ms(now),
            outcome);
}

std::vector<text::OutputDelta> join_deltas(std::vector<text::OutputDelta>&& deltas) {
  std::vector<text::OutputDelta> joined;
  for (text::OutputDelta& delta : deltas) {
    if (!joined.empty() && joined.back().part == delta.part &&
        delta.part != text::OutputPart::kToolCallBegin) {
      joined.back().text += delta.text;
    } else {
      joined.push_back(std::move(delta));
    }
  }
  return joined;
}

std::shared_ptr<Answer> make_answer(AnswerTask task, http::ResponseWriter writer) {
  const bool stream = task.options.stream;
  if (task.options.form == AnswerForm::kMessages) {
    if (stream) {
      return std::make_shared<MessagesStream>(std::move(task), std::move(writer));
    }
    return std::make_shared<MessagesAnswer>(std::move(task), std::move(writer));
  }
  if (task.options.form == AnswerForm::kResponses) {
    return std::make_shared<ResponsesAnswer>(std::move(task), std::move(writer));
  }
  if (task.options.form == AnswerForm::kNative) {
    return std::make_shared<NativeAnswer>(std::move(task), std::move(writer));
  }
  if (stream) {
    return std::make_shared<StreamedAnswer>(std::move(task), std::move(writer));
  }
  return std::make_shared<WholeAnswer>(std::move(task), std::move(writer));
}

std::shared_ptr<engine::OutputSink> answer_sink(std::shared_ptr<Answer> answer, size_t choice) {
  return std::make_shared<ChoiceSink>(std::move(answer), choice);
}

}  // namespace baleen::server
