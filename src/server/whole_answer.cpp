#include "server/whole_answer.h"

#include <span>
#include <utility>

#include <boost/json/serialize.hpp>

#include "server/api_error.h"
#include "server/logprob_json.h"

namespace baleen::server {

WholeAnswer::WholeAnswer(AnswerTask task, http::ResponseWriter writer)
    : Answer(std::move(task)), writer_(std::move(writer)), choices_(num_choices()) {}

void WholeAnswer::on_event(size_t index, engine::OutputEvent&& event) {
  Choice& choice = choices_.at(index);
  if (options().logprobs) {
    for (engine::GeneratedToken& token : event.tokens) {
      choice.tokens.push_back(std::move(token));
    }
  }
  choice.finish = std::move(event.finish);
}

void WholeAnswer::on_complete() {
  writer_.respond(http::Response::json(200, body()));
}

void WholeAnswer::on_failure(const Status& status) {
  writer_.respond(error_response(status));
}

json::object WholeAnswer::choice_json(size_t index, const Choice& choice) const {
  const engine::FinishInfo& finish = *choice.finish;
  json::object object{{"index", static_cast<int64_t>(index)}};
  std::span<const engine::GeneratedToken> tokens = choice.tokens;
  if (!tokens.empty() && last_token_is_hidden(options(), finish)) {
    tokens = tokens.first(tokens.size() - 1);
  }
  if (options().form == AnswerForm::kCompletion) {
    object["text"] = finish.message.content;
    int64_t offset = 0;
    object["logprobs"] = options().logprobs
                             ? json::value(completion_logprobs(tokenizer(), tokens, offset))
                             : json::value(nullptr);
  } else {
    MessageText text = message_text(options(), finish.message);
    const auto or_null = [](std::string& from) {
      return from.empty() ? json::value(nullptr) : json::value(std::move(from));
    };
    json::object message{{"role", "assistant"}};
    // An answer without text is "", but null where calls stand in for it or all went to reasoning.
    const bool null_content = !finish.message.tool_calls.empty() || !text.reasoning.empty();
    message["content"] =
        null_content ? or_null(text.content) : json::value(std::move(text.content));
    message["reasoning_content"] = or_null(text.reasoning);
    if (!finish.message.tool_calls.empty()) {
      json::array calls;
      for (const text::ToolCall& call : finish.message.tool_calls) {
        calls.push_back(
            tool_call_json(static_cast<int64_t>(calls.size()), call.name, call.arguments));
      }
      message["tool_calls"] = std::move(calls);
    }
    object["message"] = std::move(message);
    object["logprobs"] =
        options().logprobs ? json::value(chat_logprobs(tokenizer(), tokens)) : json::value(nullptr);
  }
  add_finish(object, finish);
  return object;
}

std::string WholeAnswer::body() const {
  json::object body = answer_head(options());
  json::array choices;
  Usage usage;
  usage.prompt_tokens = options().prompt_tokens;
  for (size_t i = 0; i < choices_.size(); ++i) {
    choices.push_back(choice_json(i, choices_[i]));
    usage.add(*choices_[i].finish);
  }
  body["choices"] = std::move(choices);
  body["usage"] = usage_json(usage);
  body["metadata"] = json::object{{"weight_version", *choices_.back().finish->weight_version}};
  return json::serialize(body);
}

}  // namespace baleen::server
