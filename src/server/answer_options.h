#pragma once
// What the shape of an answer depends on, decided when the request is read. Plain values.
//
//   AnswerOptions options;
//   options.form = AnswerForm::kCompletion;

#include <cstdint>
#include <string>

namespace baleen::server {

enum class AnswerForm : uint8_t { kChat, kCompletion };

struct AnswerOptions {
  AnswerForm form = AnswerForm::kChat;
  std::string id;       // chatcmpl-... or cmpl-...
  int64_t created = 0;  // seconds since 1970
  std::string model;
  bool stream = false;
  bool include_usage = false;     // a chunk with the usage at the end of the stream
  bool continuous_usage = false;  // the usage so far on every chunk
  bool logprobs = false;
  bool separate_reasoning = true;  // false: reasoning and </think> are part of content
  bool stream_reasoning = true;    // false: reasoning is sent in one piece
  bool hides_end_token = true;     // the end or stop token is no part of the text
  int64_t prompt_tokens = 0;       // of all prompts, each counted once
};

}  // namespace baleen::server
