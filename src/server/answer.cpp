#include "server/answer.h"

#include <utility>

#include "server/messages/messages_answer.h"
#include "server/native/native_answer.h"
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
  const bool last = event.finish.has_value();
  on_event(choice, std::move(event));
  if (last && --num_open_ == 0) {
    ended_ = true;
    on_complete();
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
  }
  task_.abort_all();
}

std::shared_ptr<Answer> make_answer(AnswerTask task, http::ResponseWriter writer) {
  const bool stream = task.options.stream;
  if (task.options.form == AnswerForm::kMessages) {
    if (stream) {
      return std::make_shared<MessagesStream>(std::move(task), std::move(writer));
    }
    return std::make_shared<MessagesAnswer>(std::move(task), std::move(writer));
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
