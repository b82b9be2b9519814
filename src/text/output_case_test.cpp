// Cases of completions and what becomes of them, at the level of text. The same files run over HTTP
// in the server's tests.

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text/case_reader.h"
#include "text/stream_runner.h"
#include "text/thinking.h"
#include "text/tokenizer.h"

namespace baleen::text {
namespace {

const std::string kMarkers[] = {std::string(kBosText), std::string(kEosText), "｜DSML｜"};

EndCause cause_of(const JsonValue& object) {
  return text_at(object, "finish") == "length" ? EndCause::kLength : EndCause::kStop;
}

std::string finish_reason(const StreamRun& run, EndCause cause) {
  if (cause != EndCause::kStop) {
    return "length";
  }
  return run.message.tool_calls.empty() ? "stop" : "tool_calls";
}

/// Both sides keep the order of their members, so that equal values print alike.
std::string normal(const std::string& json) {
  const auto value = parse_json(json);
  return value ? json_text(*value) : "not JSON: " + json;
}

void expect_clean(const StreamRun& run) {
  for (const std::string& marker : kMarkers) {
    EXPECT_THAT(run.message.content, testing::Not(testing::HasSubstr(marker)));
    EXPECT_THAT(run.message.reasoning, testing::Not(testing::HasSubstr(marker)));
    for (const OutputDelta& delta : run.deltas) {
      EXPECT_THAT(delta.text, testing::Not(testing::HasSubstr(marker)));
    }
  }
  for (const ToolCall& call : run.message.tool_calls) {
    const auto arguments = parse_json(call.arguments);
    EXPECT_TRUE(arguments && arguments->is_object()) << call.arguments;
  }
}

TEST(OutputCaseTest, CompletionToMessage) {
  const JsonValue file = read_case("H08_completion_to_message");
  ASSERT_EQ(at(file, "subcases").items.size(), 8U);
  OutputConfig config;
  config.starts_in_reasoning = true;
  config.tools = {{"look", ""}, {"ping", ""}};
  for (const JsonValue& subcase : at(file, "subcases").items) {
    SCOPED_TRACE(text_at(subcase, "name"));
    const JsonValue& expected = at(subcase, "expected");
    for (const auto& plan : cut_plans(text_at(subcase, "text"))) {
      const StreamRun run = run_stream(plan, config, cause_of(subcase));
      expect_clean(run);
      EXPECT_EQ(run.message.reasoning, text_at(expected, "reasoning_content"));
      if (expected.find("content") != nullptr) {
        EXPECT_EQ(run.message.content, text_at(expected, "content"));
      } else {
        EXPECT_EQ(run.message.content, "midend");
      }
      if (const JsonValue* calls = expected.find("tool_calls")) {
        ASSERT_EQ(run.message.tool_calls.size(), calls->items.size());
        for (size_t i = 0; i < calls->items.size(); ++i) {
          EXPECT_EQ(run.message.tool_calls[i].name, text_at(calls->items[i], "name"));
          EXPECT_EQ(normal(run.message.tool_calls[i].arguments),
                    json_text(at(calls->items[i], "arguments_json")));
        }
      }
      if (expected.find("finish_reason") != nullptr) {
        EXPECT_EQ(finish_reason(run, cause_of(subcase)), text_at(expected, "finish_reason"));
      }
    }
  }
}

TEST(OutputCaseTest, StreamedToolCallAtEverySplit) {
  const JsonValue file = read_case("H09_streamed_tool_call_every_split");
  const JsonValue& expected = at(at(file, "expected"), "for_every_plan");
  const JsonValue& call = at(expected, "tool_calls").items.at(0);
  const std::string text = text_at(at(file, "input"), "completion_text");
  OutputConfig config;
  config.starts_in_reasoning = true;
  config.tools = {
      {"bash",
       R"({"type":"object","properties":{"command":{"type":"string"},"timeout":{"type":"integer"}}})"}};
  size_t num_plans = 0;
  for (const auto& plan : cut_plans(text)) {
    ++num_plans;
    const StreamRun run = run_stream(plan, config, EndCause::kStop);
    EXPECT_EQ(run.reasoning, text_at(expected, "joined_reasoning"));
    EXPECT_EQ(run.content, text_at(expected, "joined_content"));
    ASSERT_EQ(run.calls.size(), 1U);
    EXPECT_EQ(run.calls[0].name, text_at(call, "name"));
    EXPECT_EQ(normal(run.calls[0].arguments), json_text(at(call, "joined_arguments_json")));
    EXPECT_EQ(run.message.tool_calls, run.calls);
    EXPECT_EQ(run.message.reasoning, run.reasoning);
    EXPECT_TRUE(run.calls_in_order);
    EXPECT_EQ(finish_reason(run, EndCause::kStop), text_at(expected, "finish_reason"));
    for (const OutputDelta& delta : run.deltas) {
      for (const JsonValue& never : at(expected, "no_delta_contains").items) {
        EXPECT_THAT(delta.text, testing::Not(testing::HasSubstr(never.text)));
      }
    }
  }
  EXPECT_GT(num_plans, cut_characters(text, 1).size());
  const StreamRun run = run_stream(cut_characters(text, 1), config, EndCause::kStop);
  EXPECT_GE(std::count_if(run.deltas.begin(),
                          run.deltas.end(),
                          [](const OutputDelta& delta) {
                            return delta.part == OutputPart::kToolCallArguments;
                          }),
            std::stol(at(at(at(file, "expected"), "for_size_1"), "argument_deltas_at_least").text));
}

TEST(OutputCaseTest, WrappedAndReservedParameters) {
  const JsonValue file = read_case("H10_wrapped_and_reserved_parameters");
  ASSERT_EQ(at(file, "subcases").items.size(), 8U);
  for (const JsonValue& subcase : at(file, "subcases").items) {
    SCOPED_TRACE(text_at(subcase, "name"));
    OutputConfig config;
    config.starts_in_reasoning = true;
    config.tools = case_tools(subcase);
    for (const auto& plan : cut_plans(text_at(subcase, "completion_text"))) {
      const StreamRun run = run_stream(plan, config, EndCause::kStop);
      expect_clean(run);
      ASSERT_EQ(run.message.tool_calls.size(), 1U);
      EXPECT_EQ(normal(run.message.tool_calls[0].arguments),
                json_text(at(subcase, "expected_arguments_json")));
      EXPECT_EQ(run.calls, run.message.tool_calls);
    }
  }
}

TEST(OutputCaseTest, MalformedToolMarkup) {
  const JsonValue file = read_case("H11_malformed_tool_markup");
  OutputConfig config;
  config.starts_in_reasoning = true;
  config.tools = case_tools(at(file, "input"));
  ASSERT_EQ(at(at(file, "input"), "completions").items.size(), 5U);
  for (const JsonValue& completion : at(at(file, "input"), "completions").items) {
    const std::string name = text_at(completion, "name");
    SCOPED_TRACE(name);
    for (const auto& plan : cut_plans(text_at(completion, "text"))) {
      const EndCause cause = cause_of(completion);
      const StreamRun run = run_stream(plan, config, cause);
      expect_clean(run);
      EXPECT_EQ(run.message.content, "Sure.");
      EXPECT_EQ(run.content, "Sure.");
      if (name == "e_duplicate_parameter") {
        ASSERT_EQ(run.message.tool_calls.size(), 1U);
        EXPECT_EQ(run.message.tool_calls[0].arguments, R"({"shelf": "b"})");
        EXPECT_EQ(normal(run.calls[0].arguments), R"({"shelf": "b"})");
        EXPECT_EQ(run.unparsable_tool_blocks, 0);
      } else {
        EXPECT_TRUE(run.message.tool_calls.empty());
        EXPECT_EQ(run.unparsable_tool_blocks, 1);
        EXPECT_EQ(finish_reason(run, cause), cause == EndCause::kLength ? "length" : "stop");
        EXPECT_EQ(run.calls.empty(), cause != EndCause::kLength);
      }
    }
  }
}

TEST(OutputCaseTest, StopSequencesAndReasoning) {
  const JsonValue file = read_case("H13_stop_sequence_and_reasoning");
  ASSERT_EQ(at(file, "subcases").items.size(), 4U);
  for (const JsonValue& subcase : at(file, "subcases").items) {
    SCOPED_TRACE(text_at(subcase, "name"));
    const JsonValue& request = at(subcase, "request");
    OutputConfig config;
    config.starts_in_reasoning =
        decide_thinking(ChatProfile::kV4, thinking_fields(request), false)->thinking;
    for (const JsonValue& stop : at(request, "stop").items) {
      config.stop.push_back(stop.text);
    }
    std::vector<std::vector<std::string>> plans;
    if (const JsonValue* pieces = subcase.find("scripted_pieces")) {
      plans.emplace_back();
      for (const JsonValue& piece : pieces->items) {
        plans[0].push_back(piece.text);
      }
    } else {
      plans = cut_plans(text_at(subcase, "scripted_completion"));
    }
    const JsonValue& expected = at(subcase, "expected");
    for (const auto& plan : plans) {
      const StreamRun run = run_stream(plan, config, EndCause::kStop);
      EXPECT_EQ(run.message.reasoning, text_at(expected, "reasoning_content"));
      EXPECT_EQ(run.message.content, text_at(expected, "content"));
      EXPECT_EQ(run.content, run.message.content);
      EXPECT_EQ(run.matched_stop.has_value(),
                text_at(subcase, "name") != "d_partial_stop_is_released");
    }
  }
}

TEST(ThinkingTest, TableOfRequests) {
  const JsonValue file = read_case("H14_one_mode_decision_and_json_format");
  ASSERT_EQ(at(file, "mode_table").items.size(), 10U);
  for (const JsonValue& row : at(file, "mode_table").items) {
    SCOPED_TRACE(json_text(row));
    const std::string mode = text_at(row, "expected_mode");
    for (const ChatProfile profile : {ChatProfile::kV4, ChatProfile::kV4_0731, ChatProfile::kV41}) {
      for (const bool by_default : {false, true}) {
        const auto decision =
            decide_thinking(profile, thinking_fields(at(row, "request")), by_default);
        ASSERT_TRUE(decision.ok());
        EXPECT_EQ(decision->thinking, mode == "server default" ? by_default : mode == "thinking");
      }
    }
  }
}

TEST(ThinkingTest, OffWinsOverOnButEveryValueIsChecked) {
  ThinkingFields fields;
  fields.thinking_type = "enabled";
  fields.kwargs_enable_thinking = false;
  EXPECT_FALSE(decide_thinking(ChatProfile::kV4, fields, true)->thinking);
  fields.efforts = {{"output_config.effort", std::string("very")}};
  const auto bad = decide_thinking(ChatProfile::kV4, fields, true);
  EXPECT_EQ(bad.status().param, "output_config.effort");
  EXPECT_THAT(bad.status().message, testing::HasSubstr("xhigh"));
  fields.efforts.clear();
  fields.thinking_type = "maybe";
  EXPECT_EQ(decide_thinking(ChatProfile::kV4, fields, true).status().param, "thinking.type");
  fields.thinking_type = "adaptive";
  fields.kwargs_enable_thinking.reset();
  EXPECT_TRUE(decide_thinking(ChatProfile::kV4, fields, false)->thinking);
}

TEST(ThinkingTest, NumbersBelongToV41) {
  const auto decide = [](ChatProfile profile, EffortValue value) {
    ThinkingFields fields;
    fields.efforts.push_back({"reasoning_effort", std::move(value)});
    return decide_thinking(profile, fields, false);
  };
  EXPECT_FALSE(decide(ChatProfile::kV4, int64_t{30}).ok());
  EXPECT_FALSE(decide(ChatProfile::kV4_0731, int64_t{30}).ok());
  EXPECT_EQ(decide(ChatProfile::kV41, int64_t{1})->effort, (Effort{EffortLevel::kNumber, 1}));
  EXPECT_EQ(effort_number(decide(ChatProfile::kV41, int64_t{100})->effort), 100);
  for (const EffortValue& bad : {EffortValue(int64_t{0}),
                                 EffortValue(int64_t{101}),
                                 EffortValue(2.5),
                                 EffortValue(30.0),
                                 EffortValue(true),
                                 EffortValue(std::string("30")),
                                 EffortValue(std::string())}) {
    EXPECT_EQ(decide(ChatProfile::kV41, bad).status().param, "reasoning_effort");
  }
  EXPECT_FALSE(decide(ChatProfile::kV41, std::monostate())->thinking);
  EXPECT_EQ(effort_number({}), 75);
  EXPECT_EQ(default_effort_name(ChatProfile::kV4_0731), "low");
}

}  // namespace
}  // namespace baleen::text
