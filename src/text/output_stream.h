#pragma once
// From generated token ids to what a client sees: characters, then reasoning / content / tool
// calls, with stop strings applied. One object per token stream, used by one thread; every dialect,
// streamed or not, reads the same object, so that they cannot disagree. Correct for every way of
// cutting the stream.
//
//   OutputStream stream(tokenizer, config);
//   std::vector<OutputDelta> deltas;
//   stream.push(id, deltas);               // after each token; stop generating once
//   stream.stopped() stream.finish(EndCause::kStop, deltas); const OutputMessage& message =
//   stream.message();
//
// Source: chat format of DeepSeek-V4, output grammar, and our rules for what that grammar calls an
// error.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace baleen::text {

class Tokenizer;

/// Prompt and output format of a checkpoint generation.
enum class ChatProfile : uint8_t { kV4, kV4_0731, kV41 };

/// A function the model may call in this request.
struct ToolSpec {
  std::string name;
  std::string parameters_json;  // its JSON schema as JSON text; empty when none was given
  bool strict = false;          // arguments are held to the schema
};

struct OutputConfig {
  bool parse_markup = true;          // false: raw completion, all text is content
  bool starts_in_reasoning = false;  // the prompt ended with <think>
  ChatProfile profile = ChatProfile::kV4;
  std::vector<ToolSpec> tools;    // calls of other names are dropped and counted
  std::vector<std::string> stop;  // UTF-8, none empty; act on content only unless stop_in_reasoning
  bool stop_in_reasoning = false;
  bool include_stop = false;        // keep the matched stop string in the text
  bool skip_special_tokens = true;  // raw completions: leave out tokens flagged special
};

enum class OutputPart : uint8_t {
  kReasoning,
  kContent,
  kToolCallBegin,      // text = function name; sent once, before the first arguments of that call
  kToolCallArguments,  // text = next piece of the arguments' JSON text
};

struct OutputDelta {
  OutputPart part = OutputPart::kContent;
  std::string text;         // valid UTF-8, whole characters
  int32_t call_index = -1;  // calls are numbered from 0
};

struct ToolCall {
  std::string name;
  std::string arguments;  // JSON text of an object
  friend bool operator==(const ToolCall&, const ToolCall&) = default;
};

struct OutputMessage {
  std::string reasoning;
  std::string content;
  std::vector<ToolCall> tool_calls;  // complete calls only
};

enum class EndCause : uint8_t {
  kStop,    // an end token, a stop token or a stop string
  kLength,  // token limit or context end
  kAbort,
};

class OutputStream {
 public:
  /// `tokenizer` is shared with the server and every other stream; it is immutable.
  OutputStream(std::shared_ptr<const Tokenizer> tokenizer, OutputConfig config);
  ~OutputStream();
  OutputStream(OutputStream&&) noexcept;
  OutputStream& operator=(OutputStream&&) noexcept;

  /// Appends what the token lets out to `deltas`. Ignored after stopped() or finish().
  void push(int32_t token_id, std::vector<OutputDelta>& deltas);
  /// Releases what was held back and settles the message. Call once.
  void finish(EndCause cause, std::vector<OutputDelta>& deltas);

  /// True once a stop string is complete; its text and all later text stay out.
  bool stopped() const;
  const std::optional<std::string>& matched_stop() const;
  bool in_reasoning() const;
  int64_t reasoning_tokens() const;        // tokens up to and including the end-of-reasoning token
  int64_t unparsable_tool_blocks() const;  // for the counter of the same name
  /// The whole answer; valid after finish().
  const OutputMessage& message() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace baleen::text
