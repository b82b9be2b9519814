#pragma once
// The answer that is sent at once, when every choice has ended.
//
//   WholeAnswer answer(options, tokenizer, num_choices, std::move(writer), abort_all);

#include <mutex>
#include <optional>
#include <vector>

#include "server/answer.h"
#include "server/answer_json.h"

namespace baleen::server {

class WholeAnswer final : public Answer {
 public:
  WholeAnswer(AnswerOptions options,
              std::shared_ptr<const text::Tokenizer> tokenizer,
              size_t num_choices,
              http::ResponseWriter writer,
              std::function<void()> abort_all);

  void take(size_t choice, engine::OutputEvent&& event) override;
  void fail(const Status& status) override;

 private:
  struct Choice {
    std::vector<engine::GeneratedToken> tokens;  // kept where log-probs are asked for
    std::optional<engine::FinishInfo> finish;
  };
  json::object choice_json(size_t index, const Choice& choice) const;
  std::string body() const;

  const AnswerOptions options_;
  const std::shared_ptr<const text::Tokenizer> tokenizer_;
  const std::function<void()> abort_all_;
  std::mutex mutex_;
  http::ResponseWriter writer_;
  std::vector<Choice> choices_;
  size_t num_open_;
  bool answered_ = false;
};

}  // namespace baleen::server
