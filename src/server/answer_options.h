#pragma once
// What the shape of an answer depends on, decided when the request is read. Plain values.
//
//   AnswerOptions options;
//   options.form = AnswerForm::kCompletion;

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <boost/json/object.hpp>

#include "cache/choice_layout.h"
#include "text/chat_message.h"

namespace baleen::server {

class ResponseStore;

enum class AnswerForm : uint8_t { kChat, kCompletion, kMessages, kNative, kResponses };

/// What /generate adds, per choice.
struct NativeChoice {
  std::string id;  // the client's rid, or ours
  int64_t num_prompt_tokens = 0;
  int32_t first_prompt_id = -1;  // the token that has no log-prob
  int64_t logprob_start = -1;    // first prompt token whose log-prob is shown; -1: none
  bool logprobs = false;
  bool top_logprobs = false;
  std::vector<int32_t> prompt;  // where routes are asked for: some layers choose by token id
};

/// How recorded choices are written, in base64.
enum class ChoiceEncoding : uint8_t {
  kNumbers,  // i32, low byte first: [tokens, layers, k]
  kCoded,    // the records as docs/contracts/choices.md has them
};

struct NativeOptions {
  bool is_list = false;           // the answer is a list, one object per choice
  bool text_in_logprobs = false;  // tokens of log-probs with their text
  bool routes = false;            // experts of every token that has run
  bool picks = false;             // entries that the indexer picked for it
  ChoiceEncoding encoding = ChoiceEncoding::kNumbers;
  std::optional<cache::ChoiceLayout> recorded;  // of every token
  std::chrono::steady_clock::time_point arrived;
  std::vector<NativeChoice> choices;
};

/// What /v1/responses adds.
struct ResponsesOptions {
  boost::json::object settings;            // the request's, repeated in the response
  std::shared_ptr<ResponseStore> store;    // with the server; null: the response is not kept
  std::vector<text::ChatMessage> history;  // the conversation so far, for the store
};

struct AnswerOptions {
  AnswerForm form = AnswerForm::kChat;
  std::string id;       // chatcmpl-..., cmpl-..., msg_...
  int64_t created = 0;  // seconds since 1970
  std::string model;
  bool stream = false;
  bool include_usage = false;     // a chunk with the usage at the end of the stream
  bool continuous_usage = false;  // the usage so far on every chunk
  bool logprobs = false;
  bool separate_reasoning = true;               // false: reasoning and </think> are part of content
  bool stream_reasoning = true;                 // false: reasoning is sent in one piece
  bool hides_end_token = true;                  // the end or stop token is no part of the text
  int64_t prompt_tokens = 0;                    // of all prompts, each counted once
  std::shared_ptr<const NativeOptions> native;  // of kNative
  std::shared_ptr<const ResponsesOptions> responses;  // of kResponses
};

}  // namespace baleen::server
