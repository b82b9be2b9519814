#include "server/answer.h"

#include <utility>

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

std::shared_ptr<Answer> make_answer(AnswerOptions options,
                                    std::shared_ptr<const text::Tokenizer> tokenizer,
                                    size_t num_choices,
                                    http::ResponseWriter writer,
                                    std::function<void()> abort_all) {
  if (options.stream) {
    return std::make_shared<StreamedAnswer>(std::move(options),
                                            std::move(tokenizer),
                                            num_choices,
                                            std::move(writer),
                                            std::move(abort_all));
  }
  return std::make_shared<WholeAnswer>(std::move(options),
                                       std::move(tokenizer),
                                       num_choices,
                                       std::move(writer),
                                       std::move(abort_all));
}

std::shared_ptr<engine::OutputSink> answer_sink(std::shared_ptr<Answer> answer, size_t choice) {
  return std::make_shared<ChoiceSink>(std::move(answer), choice);
}

}  // namespace baleen::server
