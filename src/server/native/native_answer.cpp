#include "server/native/native_answer.h"

#include <algorithm>
#include <array>
#include <utility>

#include <boost/json/serialize.hpp>

#include "server/api_error.h"
#include "text/tokenizer.h"

namespace baleen::server {
namespace {

/// How an answer ended, in the words of the dialect. `last_id`: of the answer, -1 if it is empty.
json::object finish_reason(const engine::FinishInfo& finish, int32_t last_id) {
  switch (finish.reason) {
    case engine::FinishReason::kLength:
      return {{"type", "length"}, {"length", finish.completion_tokens}};
    case engine::FinishReason::kAbort:
      return {{"type", "abort"},
              {"message", "the request was aborted"},
              {"status_code", nullptr},
              {"err_type", nullptr}};
    default:
      return {{"type", "stop"},
              {"matched",
               finish.matched_stop ? json::value(*finish.matched_stop) : json::value(last_id)}};
  }
}

}  // namespace

NativeAnswer::NativeAnswer(AnswerTask task, http::ResponseWriter writer)
    : Answer(std::move(task)), writer_(std::move(writer)), choices_(num_choices()) {}

void NativeAnswer::on_event(size_t index, engine::OutputEvent&& event) {
  Choice& choice = choices_.at(index);
  for (const text::OutputDelta& delta : event.deltas) {
    choice.text += delta.text;
  }
  for (const engine::GeneratedToken& token : event.tokens) {
    choice.ids.push_back(token.id);
  }
  take_logprobs(index, event);
  choice.finish = std::move(event.finish);
  if (options().stream) {
    if (!events_) {
      events_ = std::move(*writer_).start_events();
      writer_.reset();
    }
    events_->send(json::serialize(choice_json(index)));
  }
}

void NativeAnswer::take_logprobs(size_t index, const engine::OutputEvent& event) {
  Choice& choice = choices_[index];
  const NativeChoice& wanted = options().native->choices[index];
  if (!wanted.logprobs) {
    return;
  }
  for (const engine::GeneratedToken& token : event.tokens) {
    choice.logprobs.push_back(triple(token.id, token.logprob));
    if (wanted.top_logprobs) {
      json::array top;
      for (const engine::TokenLogprob& other : token.top_logprobs) {
        top.push_back(triple(other.id, other.logprob));
      }
      choice.top_logprobs.push_back(std::move(top));
    }
  }
  if (wanted.logprob_start < 0 || event.prompt_logprobs.empty()) {
    return;
  }
  for (auto at = static_cast<size_t>(wanted.logprob_start); at <= event.prompt_logprobs.size();
       ++at) {
    choice.prompt_logprobs.push_back(
        at == 0 ? triple(wanted.first_prompt_id, std::nullopt)
                : triple(event.prompt_logprobs[at - 1].id, event.prompt_logprobs[at - 1].logprob));
  }
}

json::array NativeAnswer::triple(int32_t id, std::optional<float> logprob) const {
  json::array out;
  // JSON has no infinity.
  out.push_back(logprob ? json::value(std::max(static_cast<double>(*logprob), -9999.0))
                        : json::value(nullptr));
  out.push_back(id);
  out.push_back(options().native->text_in_logprobs ? json::value(tokenizer().decode(std::array{id}))
                                                   : json::value(nullptr));
  return out;
}

json::object NativeAnswer::meta_info(size_t index) const {
  const Choice& choice = choices_[index];
  const NativeOptions& native = *options().native;
  const NativeChoice& wanted = native.choices[index];
  json::object meta{{"id", wanted.id}, {"weight_version", native.weight_version}};
  meta["prompt_tokens"] = wanted.num_prompt_tokens;
  meta["completion_tokens"] = static_cast<int64_t>(choice.ids.size());
  if (choice.finish) {
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - native.arrived;
    meta["finish_reason"] =
        finish_reason(*choice.finish, choice.ids.empty() ? -1 : choice.ids.back());
    meta["cached_tokens"] = choice.finish->cached_tokens;
    meta["e2e_latency"] = took.count();
  } else {
    meta["finish_reason"] = nullptr;
  }
  if (wanted.logprobs) {
    meta["output_token_logprobs"] = choice.logprobs;
    meta["input_token_logprobs"] = choice.prompt_logprobs;
    if (wanted.top_logprobs) {
      meta["output_top_logprobs"] = choice.top_logprobs;
    }
  }
  return meta;
}

json::object NativeAnswer::choice_json(size_t index) const {
  const Choice& choice = choices_[index];
  json::array ids(choice.ids.begin(), choice.ids.end());
  json::object object{
      {"text", choice.text}, {"output_ids", std::move(ids)}, {"meta_info", meta_info(index)}};
  if (options().stream && options().native->is_list) {
    object["index"] = static_cast<int64_t>(index);
  }
  return object;
}

void NativeAnswer::on_complete() {
  if (events_) {
    events_->send("[DONE]");
    events_->close();
    return;
  }
  if (!options().native->is_list) {
    writer_->respond(http::Response::json(200, json::serialize(choice_json(0))));
    return;
  }
  json::array list;
  for (size_t i = 0; i < choices_.size(); ++i) {
    list.push_back(choice_json(i));
  }
  writer_->respond(http::Response::json(200, json::serialize(list)));
}

void NativeAnswer::on_failure(const Status& status) {
  if (events_) {
    events_->send(error_body(status));
    events_->close();
  } else {
    writer_->respond(error_response(status));
  }
}

}  // namespace baleen::server
