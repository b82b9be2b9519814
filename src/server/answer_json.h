#pragma once
// The JSON objects of answers in the OpenAI dialect, shared by whole and streamed answers. Pure,
// any thread.
//
//   json::object body = answer_head(options);
//   body["usage"] = usage_json(usage);

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include "engine/request.h"
#include "server/answer_options.h"

namespace baleen::server {

namespace json = boost::json;

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t reasoning_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t accepted_drafts = 0;  // of speculation
  int64_t refused_drafts = 0;

  void add(const engine::FinishInfo& finish);
};
json::object usage_json(const Usage& usage);

/// id, object, created, model.
json::object answer_head(const AnswerOptions& options);

/// Adds finish_reason and matched_stop to a choice.
void add_finish(json::object& choice, const engine::FinishInfo& finish);

/// A message's reasoning and content as this request wants them: apart, or joined.
struct MessageText {
  std::string reasoning;
  std::string content;
};
MessageText message_text(const AnswerOptions& options, const text::OutputMessage& message);

/// {index, id, type, function{name, arguments}}, with a fresh id.
json::object tool_call_json(int64_t index, std::string_view name, std::string_view arguments);

/// "call_" and the like with 24 random hex digits.
std::string random_id(std::string_view prefix);

/// True when the last generated token stands for the end and is no part of the text.
bool last_token_is_hidden(const AnswerOptions& options, const engine::FinishInfo& finish);

}  // namespace baleen::server
