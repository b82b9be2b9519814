#include "server/answer_json.h"

#include <random>

#include <fmt/format.h>

namespace baleen::server {

void Usage::add(const engine::FinishInfo& finish) {
  completion_tokens += finish.completion_tokens;
  reasoning_tokens += finish.reasoning_tokens;
  cached_tokens += finish.cached_tokens;
  accepted_drafts += finish.drafts.accepted;
  refused_drafts += finish.drafts.drafted - finish.drafts.accepted;
}

json::object usage_json(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"reasoning_tokens", usage.reasoning_tokens},
          {"prompt_tokens_details", json::object{{"cached_tokens", usage.cached_tokens}}},
          {"completion_tokens_details",
           json::object{{"reasoning_tokens", usage.reasoning_tokens},
                        {"accepted_prediction_tokens", usage.accepted_drafts},
                        {"rejected_prediction_tokens", usage.refused_drafts}}}};
}

json::object answer_head(const AnswerOptions& options) {
  const char* object = "text_completion";
  if (options.form == AnswerForm::kChat) {
    object = options.stream ? "chat.completion.chunk" : "chat.completion";
  }
  return {{"id", options.id},
          {"object", object},
          {"created", options.created},
          {"model", options.model}};
}

void add_finish(json::object& choice, const engine::FinishInfo& finish) {
  const char* reason = "stop";
  if (finish.reason == engine::FinishReason::kLength) {
    reason = "length";
  } else if (finish.reason == engine::FinishReason::kAbort) {
    reason = "abort";
  } else if (!finish.message.tool_calls.empty()) {
    reason = "tool_calls";
  }
  choice["finish_reason"] = reason;
  if (finish.matched_stop) {
    choice["matched_stop"] = *finish.matched_stop;
  } else if (finish.matched_stop_token) {
    choice["matched_stop"] = *finish.matched_stop_token;
  } else {
    choice["matched_stop"] = nullptr;
  }
}

MessageText message_text(const AnswerOptions& options, const text::OutputMessage& message) {
  if (options.separate_reasoning || message.reasoning.empty()) {
    return {message.reasoning, message.content};
  }
  const bool ended = !message.content.empty() || !message.tool_calls.empty();
  return {"", message.reasoning + (ended ? "</think>" : "") + message.content};
}

json::object tool_call_json(int64_t index, std::string_view name, std::string_view arguments) {
  return {{"index", index},
          {"id", random_id("call_")},
          {"type", "function"},
          {"function", json::object{{"name", name}, {"arguments", arguments}}}};
}

std::string random_id(std::string_view prefix) {
  // Ids only need to differ, also between servers; nothing is kept secret by them.
  thread_local std::mt19937_64 generator = [] {
    std::random_device entropy;
    std::seed_seq seed{entropy(), entropy(), entropy(), entropy()};
    return std::mt19937_64(seed);
  }();
  return fmt::format("{}{:016x}{:08x}", prefix, generator(), generator() >> 32U);
}

bool last_token_is_hidden(const AnswerOptions& options, const engine::FinishInfo& finish) {
  return options.hides_end_token && finish.reason == engine::FinishReason::kStop &&
         !finish.matched_stop;
}

}  // namespace baleen::server
