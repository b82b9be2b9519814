// Any text, put together from the parts that matter, cut anywhere: the answer never depends on the
// cuts, and what a stream says agrees with the message.

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "text/json_text.h"
#include "text/stream_runner.h"
#include "text/tokenizer.h"

namespace baleen::text {
namespace {

const std::vector<std::string> kParts = {"a",
                                         " ",
                                         "\n",
                                         "\n\n",
                                         "<",
                                         "</",
                                         ">",
                                         "\"",
                                         "好",
                                         "{}",
                                         "{\"k\": 1}",
                                         "12",
                                         "｜",
                                         "END",
                                         "EN",
                                         "<think>",
                                         "</think>",
                                         "｜DSML｜",
                                         std::string(kBosText),
                                         std::string(kEosText),
                                         "<｜DSML｜tool_calls>\n",
                                         "</｜DSML｜tool_calls>",
                                         "<｜DSML｜invoke name=\"f\">\n",
                                         "<｜DSML｜invoke name=\"g\">\n",
                                         "<｜DSML｜invoke name=\"h\"/>",
                                         "</｜DSML｜invoke>\n",
                                         "<｜DSML｜parameter name=\"s\" string=\"true\">",
                                         "<｜DSML｜parameter name=\"n\" string=\"false\">",
                                         "<｜DSML｜parameter name=\"input\" string=\"true\">",
                                         "</｜DSML｜parameter>\n",
                                         "<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter "
                                         "name=\"s\" string=\"true\">x</｜DSML｜parameter>\n",
                                         "<｜DSML｜tool_",
                                         "</｜DSML｜inv",
                                         "<｜end▁of",
                                         "▁sentence｜>",
                                         "<thi",
                                         "nk>"};

OutputConfig drawn_config() {
  OutputConfig config;
  config.starts_in_reasoning = *rc::gen::arbitrary<bool>();
  config.tools = {{"f", R"({"properties":{"s":{"type":"string"}}})"}, {"h", ""}};
  if (*rc::gen::arbitrary<bool>()) {
    config.stop = {"END", "\n12"};
  }
  config.stop_in_reasoning = *rc::gen::arbitrary<bool>();
  config.include_stop = *rc::gen::arbitrary<bool>();
  return config;
}

std::string drawn_text() {
  std::string text;
  for (const std::string& part :
       *rc::gen::container<std::vector<std::string>>(rc::gen::elementOf(kParts))) {
    text += part;
  }
  return text;
}

std::vector<std::string> drawn_cut(const std::string& text) {
  std::vector<std::string> pieces;
  for (size_t i = 0; i < text.size();) {
    const auto num_bytes = *rc::gen::inRange<size_t>(1, 12);
    pieces.push_back(text.substr(i, num_bytes));
    i += num_bytes;
  }
  return pieces;
}

RC_GTEST_PROP(OutputPropertyTest, CutsDoNotMatter, ()) {
  const OutputConfig config = drawn_config();
  const std::string text = drawn_text();
  const EndCause cause = *rc::gen::element(EndCause::kStop, EndCause::kLength, EndCause::kAbort);
  const StreamRun whole = run_stream({text}, config, cause);
  const StreamRun cut = run_stream(drawn_cut(text), config, cause);
  RC_ASSERT(cut.message.reasoning == whole.message.reasoning);
  RC_ASSERT(cut.message.content == whole.message.content);
  RC_ASSERT(cut.message.tool_calls == whole.message.tool_calls);
  RC_ASSERT(cut.reasoning == whole.reasoning);
  RC_ASSERT(cut.calls == whole.calls);
  RC_ASSERT(cut.matched_stop == whole.matched_stop);
  RC_ASSERT(cut.unparsable_tool_blocks == whole.unparsable_tool_blocks);
}

RC_GTEST_PROP(OutputPropertyTest, StreamAgreesWithTheMessage, ()) {
  const StreamRun run = run_stream(drawn_cut(drawn_text()), drawn_config(), EndCause::kStop);
  RC_ASSERT(run.calls_in_order);
  RC_ASSERT(run.content == run.message.content);
  RC_ASSERT(run.reasoning == run.message.reasoning || run.message.reasoning.empty());
  // Every returned call is in the stream, in order; others are calls that broke off.
  size_t next = 0;
  for (const ToolCall& call : run.message.tool_calls) {
    const auto arguments = parse_json(call.arguments);
    RC_ASSERT(arguments && arguments->is_object());
    const auto agrees = [&](const ToolCall& streamed) {
      const auto joined = parse_json(streamed.arguments);
      return joined && streamed.name == call.name && json_text(*joined) == json_text(*arguments);
    };
    while (next < run.calls.size() && !agrees(run.calls[next])) {
      ++next;
    }
    RC_ASSERT(next < run.calls.size());
    ++next;
  }
}

RC_GTEST_PROP(OutputPropertyTest, FieldsNeverHoldMarkers, ()) {
  const StreamRun run = run_stream(drawn_cut(drawn_text()), drawn_config(), EndCause::kLength);
  for (const std::string& field :
       {run.message.reasoning, run.message.content, run.reasoning, run.content}) {
    for (const std::string_view marker : {kBosText, kEosText, std::string_view("｜DSML｜")}) {
      RC_ASSERT(field.find(marker) == std::string::npos);
    }
  }
}

RC_GTEST_PROP(OutputPropertyTest, RawTextComesBack, ()) {
  OutputConfig config;
  config.parse_markup = false;
  config.skip_special_tokens = false;
  const std::string text = drawn_text();
  RC_ASSERT(run_stream(drawn_cut(text), config, EndCause::kLength).message.content == text);
}

}  // namespace
}  // namespace baleen::text
