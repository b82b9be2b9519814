// What a model may write, cut anywhere: the parser of reasoning, content and tool calls. First
// byte: the request; second: seed of the cuts; then the text. The answer must not depend on the
// cuts, a stream must agree with its message, and no field may hold a marker.
#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz_check.h"
#include "text/json_text.h"
#include "text/stream_runner.h"
#include "text/tokenizer.h"

namespace baleen::text {
namespace {

OutputConfig config_of(uint8_t bits) {
  OutputConfig config;
  config.starts_in_reasoning = (bits & 1U) != 0;
  config.tools = {{"f", R"({"properties":{"s":{"type":"string"},"n":{"type":"number"}}})"},
                  {"h", ""}};
  if ((bits & 2U) != 0) {
    config.stop = {"END", "\n12"};
  }
  config.stop_in_reasoning = (bits & 4U) != 0;
  config.include_stop = (bits & 8U) != 0;
  config.profile = (bits & 16U) != 0 ? ChatProfile::kV41 : ChatProfile::kV4;
  return config;
}

EndCause cause_of(uint8_t bits) {
  constexpr EndCause kCauses[] = {
      EndCause::kStop, EndCause::kLength, EndCause::kAbort, EndCause::kStop};
  return kCauses[bits >> 6U];
}

std::vector<std::string> cut(const std::string& text, uint8_t seed) {
  std::minstd_rand random(seed + 1U);
  std::vector<std::string> pieces;
  for (size_t i = 0; i < text.size();) {
    const size_t num_bytes = 1 + random() % 12;
    pieces.push_back(text.substr(i, num_bytes));
    i += num_bytes;
  }
  return pieces;
}

void check_calls(const StreamRun& run) {
  FUZZ_CHECK(run.calls_in_order);
  size_t next = 0;
  for (const ToolCall& call : run.message.tool_calls) {
    const auto arguments = parse_json(call.arguments);
    FUZZ_CHECK(arguments && arguments->is_object());
    FUZZ_CHECK(call.name == "f" || call.name == "h");
    const auto agrees = [&](const ToolCall& streamed) {
      const auto joined = parse_json(streamed.arguments);
      return joined && streamed.name == call.name && json_text(*joined) == json_text(*arguments);
    };
    while (next < run.calls.size() && !agrees(run.calls[next])) {
      ++next;
    }
    FUZZ_CHECK(next < run.calls.size());
    ++next;
  }
}

void check(uint8_t bits, uint8_t seed, const std::string& text) {
  const OutputConfig config = config_of(bits);
  const StreamRun whole = run_stream({text}, config, cause_of(bits));
  const StreamRun run = run_stream(cut(text, seed), config, cause_of(bits));
  FUZZ_CHECK(run.message.reasoning == whole.message.reasoning);
  FUZZ_CHECK(run.message.content == whole.message.content);
  FUZZ_CHECK(run.message.tool_calls == whole.message.tool_calls);
  FUZZ_CHECK(run.reasoning == whole.reasoning);
  FUZZ_CHECK(run.calls == whole.calls);
  FUZZ_CHECK(run.matched_stop == whole.matched_stop);
  FUZZ_CHECK(run.unparsable_tool_blocks == whole.unparsable_tool_blocks);
  FUZZ_CHECK(run.content == run.message.content);
  FUZZ_CHECK(run.reasoning == run.message.reasoning || run.message.reasoning.empty());
  check_calls(run);
  for (const std::string& field :
       {run.message.reasoning, run.message.content, run.reasoning, run.content}) {
    for (const std::string_view marker : {kBosText, kEosText, std::string_view("｜DSML｜")}) {
      FUZZ_CHECK(field.find(marker) == std::string::npos);
    }
  }
}

}  // namespace
}  // namespace baleen::text

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t kHead = 2;
  if (size <= kHead || size > 4096) {
    return -1;
  }
  baleen::text::check(
      data[0], data[1], std::string(reinterpret_cast<const char*>(data) + kHead, size - kHead));
  return 0;
}
