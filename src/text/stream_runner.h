#pragma once
// For tests: runs a cut completion through OutputStream and collects what a streaming client would
// have put together from the deltas beside what the finished message says.
//
//   StreamRun run = run_stream(pieces, config, EndCause::kStop);
//   run.message.content == run.content

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "text/output_stream.h"
#include "text/scripted_tokens.h"

namespace baleen::text {

struct StreamRun {
  OutputMessage message;
  std::string reasoning;            // joined deltas
  std::string content;              // joined deltas
  std::vector<ToolCall> calls;      // joined deltas by call index
  std::vector<OutputDelta> deltas;  // one entry per delta and push
  bool calls_in_order = true;       // each name once, before its arguments, indices from 0 on
  std::optional<std::string> matched_stop;
  int64_t reasoning_tokens = 0;
  int64_t unparsable_tool_blocks = 0;
};

inline StreamRun run_stream(const std::vector<std::string>& pieces,
                            const OutputConfig& config,
                            EndCause cause) {
  const ScriptedTokens script(pieces);
  OutputStream stream(script.tokenizer, config);
  StreamRun run;
  const auto take = [&](std::vector<OutputDelta>& deltas) {
    for (OutputDelta& delta : deltas) {
      const auto index = static_cast<size_t>(delta.call_index);
      switch (delta.part) {
        case OutputPart::kReasoning:
          run.reasoning += delta.text;
          break;
        case OutputPart::kContent:
          run.content += delta.text;
          break;
        case OutputPart::kToolCallBegin:
          run.calls_in_order = run.calls_in_order && index == run.calls.size();
          run.calls.push_back({delta.text, ""});
          break;
        case OutputPart::kToolCallArguments:
          run.calls_in_order = run.calls_in_order && index + 1 == run.calls.size();
          if (index < run.calls.size()) {
            run.calls[index].arguments += delta.text;
          }
          break;
      }
      run.deltas.push_back(std::move(delta));
    }
    deltas.clear();
  };
  std::vector<OutputDelta> deltas;
  for (const int32_t id : script.ids) {
    stream.push(id, deltas);
    take(deltas);
    if (stream.stopped()) {
      break;
    }
  }
  stream.finish(cause, deltas);
  take(deltas);
  run.message = stream.message();
  run.matched_stop = stream.matched_stop();
  run.reasoning_tokens = stream.reasoning_tokens();
  run.unparsable_tool_blocks = stream.unparsable_tool_blocks();
  return run;
}

/// Ways of cutting `text`: whole, every size from 1 to 9 characters, every two pieces, bytes.
inline std::vector<std::vector<std::string>> cut_plans(const std::string& text) {
  std::vector<std::vector<std::string>> plans = {{text}};
  for (size_t num_characters = 1; num_characters <= 9; ++num_characters) {
    plans.push_back(cut_characters(text, num_characters));
  }
  std::string first;
  const std::vector<std::string> characters = cut_characters(text, 1);
  for (size_t i = 0; i + 1 < characters.size(); ++i) {
    first += characters[i];
    plans.push_back({first, text.substr(first.size())});
  }
  std::vector<std::string> bytes;
  for (const char c : text) {
    bytes.emplace_back(1, c);
  }
  plans.push_back(std::move(bytes));
  return plans;
}

}  // namespace baleen::text
