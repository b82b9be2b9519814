#pragma once
// The answer that is sent at once, when every choice has ended.
//
//   WholeAnswer answer({options, tokenizer, num_choices, abort_all}, std::move(writer));

#include <optional>
#include <string>
#include <vector>

#include "server/answer.h"
#include "server/answer_json.h"

namespace baleen::server {

class WholeAnswer final : public Answer {
 public:
  WholeAnswer(AnswerTask task, http::ResponseWriter writer);

 private:
  struct Choice {
    std::vector<engine::GeneratedToken> tokens;  // kept where log-probs are asked for
    std::optional<engine::FinishInfo> finish;
  };
  void on_event(size_t choice, engine::OutputEvent&& event) override;
  void on_complete() override;
  void on_failure(const Status& status) override;
  json::object choice_json(size_t index, const Choice& choice) const;
  std::string body() const;

  http::ResponseWriter writer_;
  std::vector<Choice> choices_;
};

}  // namespace baleen::server
