#include "server/streamed_answer.h"

#include <algorithm>
#include <utility>

#include <boost/json/serialize.hpp>

#include "server/api_error.h"
#include "server/logprob_json.h"

namespace baleen::server {
namespace {

bool contains_reasoning(const std::vector<text::OutputDelta>& deltas) {
  return std::any_of(deltas.begin(), deltas.end(), [](const text::OutputDelta& delta) {
    return delta.part == text::OutputPart::kReasoning;
  });
}

}  // namespace

StreamedAnswer::StreamedAnswer(AnswerTask task, http::ResponseWriter writer)
    : Answer(std::move(task)), writer_(std::move(writer)), choices_(num_choices()) {}

void StreamedAnswer::on_event(size_t index, engine::OutputEvent&& event) {
  Choice& choice = choices_.at(index);
  begin(index);
  choice.num_tokens += static_cast<int64_t>(event.tokens.size());
  if (options().logprobs) {
    if (event.finish && !event.tokens.empty() && last_token_is_hidden(options(), *event.finish)) {
      event.tokens.pop_back();
    }
    for (engine::GeneratedToken& token : event.tokens) {
      choice.tokens.push_back(std::move(token));
    }
  }
  // Where the model stopped without ending its reasoning, the stream repeats the text as content
  // (this event has both). It goes out once where reasoning is part of content or held back.
  const bool repeats = event.finish && event.finish->message.reasoning.empty() &&
                       (!choice.reasoning.empty() || contains_reasoning(event.deltas));
  const bool drop_reasoning = repeats && !options().stream_reasoning;
  const bool drop_content = repeats && options().stream_reasoning && !options().separate_reasoning;
  if (drop_reasoning) {
    choice.reasoning.clear();
  }
  for (size_t i = 0; i < event.deltas.size(); ++i) {
    text::OutputDelta& delta = event.deltas[i];
    const bool is_text =
        delta.part == text::OutputPart::kReasoning || delta.part == text::OutputPart::kContent;
    if (is_text && i + 1 < event.deltas.size() && event.deltas[i + 1].part == delta.part) {
      event.deltas[i + 1].text.insert(0, delta.text);
      continue;
    }
    if ((drop_content && delta.part == text::OutputPart::kContent) ||
        (drop_reasoning && delta.part == text::OutputPart::kReasoning)) {
      continue;
    }
    take_delta(index, std::move(delta));
  }
  if (event.finish) {
    finish(index, *event.finish);
  }
}

void StreamedAnswer::begin(size_t index) {
  if (!events_) {
    events_ = std::move(*writer_).start_events();
    writer_.reset();
  }
  if (!choices_[index].begun && options().form == AnswerForm::kChat) {
    choices_[index].begun = true;
    send_chunk({{"delta", json::object{{"role", "assistant"}, {"content", ""}}},
                {"logprobs", nullptr},
                {"finish_reason", nullptr}},
               index);
  }
}

void StreamedAnswer::take_delta(size_t index, text::OutputDelta&& delta) {
  Choice& choice = choices_[index];
  if (delta.part == text::OutputPart::kReasoning) {
    choice.reasoning += delta.text;
    if (options().stream_reasoning) {
      send_reasoning(index);
    }
    return;
  }
  send_reasoning(index);
  if (!options().separate_reasoning && !choice.reasoning.empty() && !choice.sent_reasoning_mark) {
    choice.sent_reasoning_mark = true;
    send_content(index, "</think>");
  }
  switch (delta.part) {
    case text::OutputPart::kReasoning:
      break;
    case text::OutputPart::kContent:
      send_content(index, std::move(delta.text));
      break;
    case text::OutputPart::kToolCallBegin:
      send_delta(index,
                 {{"tool_calls", json::array{tool_call_json(delta.call_index, delta.text, "")}}});
      break;
    case text::OutputPart::kToolCallArguments:
      send_delta(index,
                 {{"tool_calls",
                   json::array{json::object{
                       {"index", delta.call_index},
                       {"function", json::object{{"arguments", std::move(delta.text)}}}}}}});
      break;
  }
}

/// Sends what reasoning has not gone out yet.
void StreamedAnswer::send_reasoning(size_t index) {
  Choice& choice = choices_[index];
  std::string text = choice.reasoning.substr(choice.reasoning_sent);
  choice.reasoning_sent = choice.reasoning.size();
  if (text.empty()) {
    return;
  }
  if (options().separate_reasoning) {
    send_delta(index, {{"reasoning_content", std::move(text)}});
  } else {
    send_content(index, std::move(text));
  }
}

void StreamedAnswer::send_content(size_t index, std::string text) {
  if (text.empty()) {
    return;
  }
  if (options().form == AnswerForm::kChat) {
    send_delta(index, {{"content", std::move(text)}});
    return;
  }
  send_chunk({{"text", std::move(text)},
              {"logprobs", take_logprobs(choices_[index])},
              {"finish_reason", nullptr}},
             index);
}

void StreamedAnswer::send_delta(size_t index, json::object delta) {
  send_chunk({{"delta", std::move(delta)},
              {"logprobs", take_logprobs(choices_[index])},
              {"finish_reason", nullptr}},
             index);
}

void StreamedAnswer::finish(size_t index, const engine::FinishInfo& finish) {
  Choice& choice = choices_[index];
  send_reasoning(index);
  choice.finished = true;
  finished_usage_.add(finish);
  json::object last;
  if (options().form == AnswerForm::kChat) {
    last["delta"] = json::object{{"content", nullptr}};
  } else {
    last["text"] = "";
  }
  last["logprobs"] = take_logprobs(choice);
  add_finish(last, finish);
  send_chunk(std::move(last), index);
}

void StreamedAnswer::send_chunk(json::object choice, size_t index) {
  json::object chunk = answer_head(options());
  choice["index"] = static_cast<int64_t>(index);
  chunk["choices"] = json::array{std::move(choice)};
  if (options().continuous_usage) {
    chunk["usage"] = usage_json(usage_so_far());
  } else if (options().include_usage) {
    chunk["usage"] = nullptr;
  }
  events_->send(json::serialize(chunk));
}

void StreamedAnswer::send_usage() {
  json::object chunk = answer_head(options());
  chunk["choices"] = json::array();
  chunk["usage"] = usage_json(usage_so_far());
  events_->send(json::serialize(chunk));
}

json::value StreamedAnswer::take_logprobs(Choice& choice) {
  if (choice.tokens.empty()) {
    return nullptr;
  }
  const std::vector<engine::GeneratedToken> tokens = std::exchange(choice.tokens, {});
  if (options().form == AnswerForm::kCompletion) {
    return completion_logprobs(tokenizer(), tokens, choice.text_offset);
  }
  return chat_logprobs(tokenizer(), tokens);
}

Usage StreamedAnswer::usage_so_far() const {
  Usage usage = finished_usage_;
  usage.prompt_tokens = options().prompt_tokens;
  for (const Choice& choice : choices_) {
    usage.completion_tokens += choice.finished ? 0 : choice.num_tokens;
  }
  return usage;
}

void StreamedAnswer::on_complete() {
  if (options().include_usage) {
    send_usage();
  }
  events_->send("[DONE]");
  events_->close();
}

void StreamedAnswer::on_failure(const Status& status) {
  if (events_) {
    events_->send(error_body(status));
    events_->close();
  } else {
    writer_->respond(error_response(status));
  }
}

}  // namespace baleen::server
