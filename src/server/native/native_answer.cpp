#include "server/native/native_answer.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include <boost/json/serialize.hpp>

#include "cache/choice_arrays.h"
#include "server/api_error.h"
#include "server/base64.h"
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

/// What speculation did for the choice; nothing where it had no part in it.
void add_drafts(const engine::DraftCounts& drafts, json::object& meta) {
  if (drafts.verify_steps == 0) {
    return;
  }
  const auto ratio = [](int64_t part, int64_t whole) {
    return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
  };
  meta["spec_verify_ct"] = drafts.verify_steps;
  meta["spec_draft_token_num"] = drafts.drafted;
  meta["spec_accept_token_num"] = drafts.accepted;
  meta["spec_accept_rate"] = ratio(drafts.accepted, drafts.drafted);
  // Tokens per step that verified drafts: the model's own is one of them.
  meta["spec_accept_length"] = 1.0 + ratio(drafts.accepted, drafts.verify_steps);
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
  json::object meta{{"id", wanted.id}};
  meta["prompt_tokens"] = wanted.num_prompt_tokens;
  meta["completion_tokens"] = static_cast<int64_t>(choice.ids.size());
  if (choice.finish) {
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - native.arrived;
    meta["finish_reason"] =
        finish_reason(*choice.finish, choice.ids.empty() ? -1 : choice.ids.back());
    meta["cached_tokens"] = choice.finish->cached_tokens;
    meta["weight_version"] = *choice.finish->weight_version;
    meta["e2e_latency"] = took.count();
    add_drafts(choice.finish->drafts, meta);
    add_choices(index, meta);
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

/// The experts and entries that were asked for, from routed_experts_start_len on.
void NativeAnswer::add_choices(size_t index, json::object& meta) const {
  const NativeOptions& native = *options().native;
  const Choice& choice = choices_[index];
  if (!choice.finish->choices) {
    return;
  }
  const cache::ChoiceRecords& records = *choice.finish->choices;
  const bool coded = native.encoding == ChoiceEncoding::kCoded;
  if (native.routes && coded) {
    meta["routed_experts"] = base64(records.routes);
  } else if (native.routes) {
    std::vector<int32_t> ids = native.choices[index].prompt;
    ids.insert(ids.end(), choice.ids.begin(), choice.ids.end());
    meta["routed_experts"] = base64_of_numbers(
        cache::expert_array(*native.recorded,
                            records,
                            choice.finish->token_routes.get(),
                            std::span(ids).subspan(static_cast<size_t>(records.first_position),
                                                   static_cast<size_t>(records.count))));
  }
  if (native.picks) {
    meta["indexer_topk"] = coded ? base64(records.picks)
                                 : base64_of_numbers(cache::pick_array(*native.recorded, records));
  }
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
