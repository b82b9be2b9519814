#include "text/output_stream.h"

#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text/json_text.h"
#include "text/stream_runner.h"
#include "text/tokenizer.h"

namespace baleen::text {
namespace {

const std::string kEos(kEosText);
const std::string kAddSchema =
    R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"}}})";

OutputConfig config_for(bool thinking) {
  OutputConfig config;
  config.starts_in_reasoning = thinking;
  config.tools = {
      {"add", kAddSchema}, {"now", ""}, {"sh", R"({"properties":{"command":{"type":"string"}}})"}};
  return config;
}

std::string invoke(const std::string& name, const std::string& body) {
  return "<｜DSML｜invoke name=\"" + name + "\">\n" + body + "</｜DSML｜invoke>\n";
}

std::string parameter(const std::string& name, bool is_string, const std::string& value) {
  return "<｜DSML｜parameter name=\"" + name + "\" string=\"" + (is_string ? "true" : "false") +
         "\">" + value + "</｜DSML｜parameter>\n";
}

std::string block(const std::string& invokes) {
  return "\n\n<｜DSML｜tool_calls>\n" + invokes + "</｜DSML｜tool_calls>";
}

/// Runs `text` cut in every way and expects the same message each time; returns the whole-text run.
StreamRun run_every_cut(const std::string& text, const OutputConfig& config, EndCause cause) {
  const auto plans = cut_plans(text);
  StreamRun whole = run_stream(plans[0], config, cause);
  for (const auto& plan : plans) {
    const StreamRun run = run_stream(plan, config, cause);
    EXPECT_EQ(run.message.reasoning, whole.message.reasoning) << text << " / " << plan[0];
    EXPECT_EQ(run.message.content, whole.message.content) << text << " / " << plan[0];
    EXPECT_EQ(run.message.tool_calls, whole.message.tool_calls) << text << " / " << plan[0];
    EXPECT_EQ(run.unparsable_tool_blocks, whole.unparsable_tool_blocks) << text;
    EXPECT_EQ(run.matched_stop, whole.matched_stop);
    EXPECT_EQ(run.content, run.message.content);
    EXPECT_EQ(run.calls, whole.calls) << text << " / " << plan[0];
    EXPECT_TRUE(run.calls_in_order);
  }
  return whole;
}

void expect_message(const StreamRun& run,
                    const std::string& reasoning,
                    const std::string& content,
                    const std::vector<ToolCall>& calls) {
  EXPECT_EQ(run.message.reasoning, reasoning);
  EXPECT_EQ(run.message.content, content);
  EXPECT_EQ(run.message.tool_calls, calls);
}

// Well-formed output: what the format's own parser returns.

TEST(OutputStreamReferenceTest, SplitsReasoningFromContent) {
  expect_message(run_every_cut("I add.</think>12" + kEos, config_for(true), EndCause::kStop),
                 "I add.",
                 "12",
                 {});
  expect_message(run_every_cut("12" + kEos, config_for(false), EndCause::kStop), "", "12", {});
  expect_message(run_every_cut("</think>" + kEos, config_for(true), EndCause::kStop), "", "", {});
  expect_message(run_every_cut(kEos, config_for(false), EndCause::kStop), "", "", {});
  expect_message(
      run_every_cut(" \n r \n</think>\n\n x \n\n" + kEos, config_for(true), EndCause::kStop),
      " \n r \n",
      "\n\n x \n\n",
      {});
}

TEST(OutputStreamReferenceTest, ReadsCalls) {
  const std::string calls =
      block(invoke("add", parameter("a", false, "1") + parameter("b", true, "x \"q\"\n2")) +
            invoke("now", "\n"));
  const std::vector<ToolCall> expected = {{"add", R"({"a": 1, "b": "x \"q\"\n2"})"}, {"now", "{}"}};
  const StreamRun run =
      run_every_cut("r</think>Sure." + calls + kEos, config_for(true), EndCause::kStop);
  expect_message(run, "r", "Sure.", expected);
  EXPECT_EQ(run.calls, expected);
  EXPECT_EQ(run.unparsable_tool_blocks, 0);
  expect_message(
      run_every_cut("r</think>" + calls, config_for(true), EndCause::kStop), "r", "", expected);
  expect_message(run_every_cut(block(invoke("now", "")) + kEos, config_for(false), EndCause::kStop),
                 "",
                 "",
                 {{"now", "{}"}});
  expect_message(run_every_cut(block(invoke("add", parameter("b", true, "<b>x</b>"))) + kEos,
                               config_for(false),
                               EndCause::kStop),
                 "",
                 "",
                 {{"add", R"({"b": "<b>x</b>"})"}});
  expect_message(
      run_every_cut(block(invoke("add", parameter("a", false, "[1,{\"k\": 2.50}]"))) + kEos,
                    config_for(false),
                    EndCause::kStop),
      "",
      "",
      {{"add", R"({"a": [1,{"k": 2.50}]})"}});
}

TEST(OutputStreamReferenceTest, ReadsSpacedTagsOfV41) {
  OutputConfig config = config_for(false);
  config.profile = ChatProfile::kV41;
  const std::string text =
      "Ok\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"sh\">\n<｜DSML｜ parameter name=\"command\" "
      "string=\"true\">ls</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";
  expect_message(run_every_cut(text + kEos, config, EndCause::kStop),
                 "",
                 "Ok",
                 {{"sh", R"({"command": "ls"})"}});
}

// Where the format's own parser reports an error, an answer comes all the same.

TEST(OutputStreamLenientTest, ReasoningThatWasNeverClosed) {
  const StreamRun stopped =
      run_stream(cut_characters("At nine." + kEos, 1), config_for(true), EndCause::kStop);
  expect_message(stopped, "", "At nine.", {});
  EXPECT_EQ(stopped.reasoning, "At nine.");  // it had gone out before
  EXPECT_EQ(stopped.content, "At nine.");
  EXPECT_EQ(stopped.deltas.back().text, "At nine.");
  EXPECT_EQ(stopped.reasoning_tokens, 0);
  expect_message(
      run_every_cut("Let me work", config_for(true), EndCause::kLength), "Let me work", "", {});
  expect_message(
      run_every_cut("Let me work", config_for(true), EndCause::kAbort), "Let me work", "", {});
}

TEST(OutputStreamLenientTest, MarkersInTextAreLeftOut) {
  expect_message(
      run_every_cut("<think>x</think>y" + kEos, config_for(false), EndCause::kStop), "", "xy", {});
  expect_message(
      run_every_cut("a" + kEos + "b", config_for(false), EndCause::kLength), "", "ab", {});
  expect_message(
      run_every_cut("a<think>b</think>c</think>d" + kEos, config_for(true), EndCause::kStop),
      "ab",
      "cd",
      {});
  expect_message(
      run_every_cut("x <｜DSML｜invoke name=\"f\"> y" + kEos, config_for(false), EndCause::kStop),
      "",
      "x <invoke name=\"f\"> y",
      {});
  // What is left around a marker must not make another one.
  expect_message(run_every_cut("<thi<think>nk>." + kEos, config_for(false), EndCause::kStop),
                 "",
                 "<think.",
                 {});
  expect_message(run_every_cut("｜DS｜DSML｜ML｜." + kEos, config_for(false), EndCause::kStop),
                 "",
                 "｜DSML.",
                 {});
}

TEST(OutputStreamLenientTest, BeginningsOfMarkersAreTextInTheEnd) {
  for (const std::string tail :
       {"<", "</", "</thin", "<｜", "<｜end▁of", "\n", "\n\n", "\n\n\n\n<"}) {
    expect_message(
        run_every_cut("a" + tail, config_for(false), EndCause::kLength), "", "a" + tail, {});
    expect_message(
        run_every_cut("a" + tail, config_for(true), EndCause::kLength), "a" + tail, "", {});
  }
}

TEST(OutputStreamLenientTest, BlockInsideReasoningEndsIt) {
  const StreamRun run = run_every_cut(
      "r" + block(invoke("now", "")) + "</think>" + kEos, config_for(true), EndCause::kStop);
  expect_message(run, "r", "", {{"now", "{}"}});
}

TEST(OutputStreamLenientTest, BlockNeedsNoNewlinesAndTakesAtMostTwo) {
  const std::string calls = block(invoke("now", "")).substr(2);
  for (const std::string before : {"x", "x\n", "x\n\n"}) {
    expect_message(run_every_cut(before + calls + kEos, config_for(false), EndCause::kStop),
                   "",
                   "x",
                   {{"now", "{}"}});
  }
  expect_message(run_every_cut("x\n\n\n" + calls, config_for(false), EndCause::kStop),
                 "",
                 "x\n",
                 {{"now", "{}"}});
  expect_message(run_every_cut("x\n</think>\n" + calls, config_for(false), EndCause::kStop),
                 "",
                 "x",
                 {{"now", "{}"}});
}

TEST(OutputStreamLenientTest, TextAfterABlockIsContentUnlessBlank) {
  const std::string calls = block(invoke("now", ""));
  expect_message(run_every_cut("a" + calls + " \n" + kEos, config_for(false), EndCause::kStop),
                 "",
                 "a",
                 {{"now", "{}"}});
  expect_message(run_every_cut("a" + calls + "\n b \n" + kEos, config_for(false), EndCause::kStop),
                 "",
                 "a\n b \n",
                 {{"now", "{}"}});
  expect_message(
      run_every_cut("a" + calls + "b" + calls + kEos, config_for(false), EndCause::kStop),
      "",
      "ab",
      {{"now", "{}"}, {"now", "{}"}});
}

TEST(OutputStreamLenientTest, CallsThatCannotBeUsedAreDroppedAndCounted) {
  const std::string good = invoke("now", "");
  const std::string bad[] = {
      invoke("delete_all", ""),
      "<｜DSML｜invoke name=\"add {\n",
      "<｜DSML｜invoke nam=\"add\">\n</｜DSML｜invoke>\n",
      "<｜DSML｜invoke name=\"add\">\n",  // not closed
      invoke("add", "words"),
      invoke("add", "[1]"),
      invoke("add", "words" + parameter("a", false, "1")),
      invoke("add", "<｜DSML｜parameter name=\"a\">1</｜DSML｜parameter>\n"),
      invoke("add", "<｜DSML｜parameter nam=\"a\" string=\"true\">1</｜DSML｜parameter>\n"),
      invoke("add", "</｜DSML｜parameter>\n"),
      invoke("add", "<｜DSML｜parameter name=\"a\" string=\"false\">1"),
      invoke("add", "<｜DSML｜parameter name=\"a\" string=\"false\">1" + parameter("b", true, "x")),
      "<｜DSML｜invoke name=\"add\">\n<｜DSML｜parameter name=\"a\" string=\"false\">1\n",
  };
  for (const std::string& call : bad) {
    SCOPED_TRACE(call);
    const StreamRun alone =
        run_every_cut("Sure." + block(call) + kEos, config_for(false), EndCause::kStop);
    expect_message(alone, "", "Sure.", {});
    EXPECT_EQ(alone.unparsable_tool_blocks, 1);
    const StreamRun mixed = run_every_cut(
        "Sure." + block(good + call + good) + kEos, config_for(false), EndCause::kStop);
    expect_message(mixed, "", "Sure.", {{"now", "{}"}, {"now", "{}"}});
    EXPECT_EQ(mixed.unparsable_tool_blocks, 1);
  }
  EXPECT_EQ(run_every_cut("Sure." + block("") + kEos, config_for(false), EndCause::kStop)
                .unparsable_tool_blocks,
            1);
}

TEST(OutputStreamLenientTest, NothingOfACallGoesOutBeforeItIsCertain) {
  for (const std::string& call : {invoke("delete_all", parameter("a", true, "x")),
                                  invoke("add", "words"),
                                  std::string("<｜DSML｜invoke name=\"add\">\n")}) {
    EXPECT_TRUE(
        run_every_cut(block(call) + kEos, config_for(false), EndCause::kStop).calls.empty());
  }
}

TEST(OutputStreamLenientTest, CallsCutByLengthAreNotReturned) {
  const std::string text =
      "Sure." + block(invoke("now", "") + invoke("add", parameter("b", true, "books")));
  const size_t begin = text.find("<｜DSML｜tool_calls");
  const size_t first_end = text.find("</｜DSML｜invoke>") + std::string("</｜DSML｜invoke").size();
  const size_t second_end =
      text.rfind("</｜DSML｜invoke>") + std::string("</｜DSML｜invoke").size();
  std::string cut;
  for (const std::string& character : cut_characters(text, 1)) {
    cut += character;
    const StreamRun run = run_stream({cut}, config_for(false), EndCause::kLength);
    const size_t expected = cut.size() >= second_end ? 2U : cut.size() >= first_end ? 1U : 0U;
    EXPECT_EQ(run.message.tool_calls.size(), expected) << cut;
    EXPECT_THAT(run.message.content, testing::Not(testing::HasSubstr("｜DSML｜")));
    EXPECT_EQ(run.content, run.message.content);
    if (cut.size() > begin + std::string("<｜DSML｜").size()) {
      EXPECT_EQ(run.message.content, "Sure.") << cut;
    }
  }
  // What was certain has gone out.
  const StreamRun run =
      run_stream({text.substr(0, text.find("ks</"))}, config_for(false), EndCause::kLength);
  ASSERT_EQ(run.calls.size(), 2U);
  EXPECT_EQ(run.calls[1], (ToolCall{"add", "{\"b\": \"boo"}));
}

TEST(OutputStreamLenientTest, ShortFormsOfCalls) {
  expect_message(
      run_every_cut(block(invoke("add", "{\"a\": [2]}")), config_for(false), EndCause::kStop),
      "",
      "",
      {{"add", "{\"a\": [2]}"}});
  expect_message(
      run_every_cut(block("<｜DSML｜invoke name=\"now\"/>\n<｜DSML｜invoke name=\"now\" />"),
                    config_for(false),
                    EndCause::kStop),
      "",
      "",
      {{"now", "{}"}, {"now", "{}"}});
  expect_message(run_every_cut(block("<｜DSML｜invoke name=\"now\"/>\n" + invoke("now", "\n\n \n")),
                               config_for(false),
                               EndCause::kStop),
                 "",
                 "",
                 {{"now", "{}"}, {"now", "{}"}});
}

TEST(OutputStreamLenientTest, LastValueOfAParameterGivenTwice) {
  const StreamRun run =
      run_every_cut(block(invoke("add",
                                 parameter("b", true, "x") + parameter("a", false, "1") +
                                     parameter("b", true, "y"))),
                    config_for(false),
                    EndCause::kStop);
  expect_message(run, "", "", {{"add", R"({"b": "y", "a": 1})"}});
  EXPECT_EQ(json_text(*parse_json(run.calls[0].arguments)), R"({"b": "y", "a": 1})");
}

TEST(OutputStreamLenientTest, ValuesThatAreNotJsonAreStrings) {
  const auto arguments = [](const std::string& value) {
    return run_every_cut(block(invoke("add", parameter("a", false, value))),
                         config_for(false),
                         EndCause::kStop)
        .message.tool_calls.at(0)
        .arguments;
  };
  EXPECT_EQ(arguments("{bad"), R"({"a": "{bad"})");
  EXPECT_EQ(arguments(""), R"({"a": ""})");
  EXPECT_EQ(arguments("\"\\ud83d\""), R"({"a": "\"\\ud83d\""})");  // a lone surrogate
  EXPECT_EQ(arguments("NaN"), R"({"a": "NaN"})");
  EXPECT_EQ(arguments("12345678901234567890123"), R"({"a": 12345678901234567890123})");
  // Bare control characters inside its strings are what a model forgets to escape.
  EXPECT_EQ(arguments("[\n\t\"a\tb\", \"c\nd\\\"\t\\\\\", 1]"),
            "{\"a\": [\n\t\"a\\tb\", \"c\\nd\\\"\\t\\\\\", 1]}");
  EXPECT_EQ(arguments("\"a\tb"), "{\"a\": \"\\\"a\\tb\"}");
}

TEST(OutputStreamLenientTest, WrapperParameters) {
  const auto arguments = [](const std::string& tool, const std::string& body) {
    const StreamRun run =
        run_every_cut(block(invoke(tool, body)), config_for(false), EndCause::kStop);
    EXPECT_EQ(run.calls, run.message.tool_calls);
    return run.message.tool_calls.at(0).arguments;
  };
  EXPECT_EQ(arguments("add", parameter("arguments", false, "{\"a\": 1}")), "{\"a\": 1}");
  EXPECT_EQ(arguments("add", parameter("input", true, "{\"a\": 1}")), "{\"a\": 1}");
  EXPECT_EQ(arguments("sh", parameter("input", true, "ls -l")), R"({"command": "ls -l"})");
  EXPECT_EQ(arguments("sh", parameter("input", false, "7")), R"({"command": "7"})");
  EXPECT_EQ(arguments("now", parameter("input", true, "x")), R"({"input": "x"})");
  EXPECT_EQ(arguments("now", parameter("input", false, "[7]")), R"({"input": [7]})");
  EXPECT_EQ(
      arguments("sh", parameter("input", true, "{\"a\": 1}") + parameter("command", true, "ls")),
      R"({"input": "{\"a\": 1}", "command": "ls"})");
  EXPECT_EQ(arguments("sh", parameter("command", true, "ls") + parameter("input", false, "{}")),
            R"({"command": "ls", "input": {}})");
}

TEST(OutputStreamTest, StreamsStringArgumentsAsTheyCome) {
  const std::string value = "a\"b\\c\nd\te 好";
  const StreamRun run =
      run_stream(cut_characters(block(invoke("sh", parameter("command", true, value))), 1),
                 config_for(false),
                 EndCause::kStop);
  EXPECT_EQ(run.calls.at(0).arguments, R"({"command": "a\"b\\c\nd\te 好"})");
  EXPECT_GE(run.deltas.size(), value.size() - 2);
}

TEST(OutputStreamTest, CountsTokensOfReasoning) {
  const StreamRun run =
      run_stream({"a", "b", "</think>", "c", kEos}, config_for(true), EndCause::kStop);
  EXPECT_EQ(run.reasoning_tokens, 3);
  EXPECT_EQ(run_stream({"a", "b"}, config_for(true), EndCause::kLength).reasoning_tokens, 2);
  EXPECT_EQ(run_stream({"a", "b"}, config_for(false), EndCause::kLength).reasoning_tokens, 0);
}

TEST(OutputStreamTest, KnowsWhenReasoningEnds) {
  const ScriptedTokens script({"a", "</think>", "b"});
  OutputStream stream(script.tokenizer, config_for(true));
  std::vector<OutputDelta> deltas;
  EXPECT_TRUE(stream.in_reasoning());
  stream.push(script.ids[0], deltas);
  EXPECT_TRUE(stream.in_reasoning());
  stream.push(script.ids[1], deltas);
  EXPECT_FALSE(stream.in_reasoning());
  stream.push(script.ids[2], deltas);
  ASSERT_EQ(deltas.size(), 2U);
  EXPECT_EQ(deltas[0].part, OutputPart::kReasoning);
  EXPECT_EQ(deltas[1].part, OutputPart::kContent);
  OutputStream moved = std::move(stream);
  moved.finish(EndCause::kStop, deltas);
  EXPECT_EQ(moved.message().content, "b");
}

TEST(OutputStreamTest, CharactersAreNeverSplit) {
  const StreamRun run =
      run_stream({"\xE4\xBD", "\xA0\xE5", "\xA5"}, config_for(false), EndCause::kLength);
  EXPECT_EQ(run.message.content, "你\uFFFD");
  ASSERT_EQ(run.deltas.size(), 2U);
  EXPECT_EQ(run.deltas[0].text, "你");
}

TEST(OutputStreamTest, RawCompletionsAreContent) {
  OutputConfig config;
  config.parse_markup = false;
  config.starts_in_reasoning = true;  // means nothing here
  const std::string text = "a</think>b\n\n<｜DSML｜tool_calls>";
  expect_message(run_every_cut(text, config, EndCause::kStop), "", text, {});
  EXPECT_EQ(run_stream({"a", kEos}, config, EndCause::kStop).message.content, "a");
  config.skip_special_tokens = false;
  EXPECT_EQ(run_stream({"a", kEos}, config, EndCause::kStop).message.content, "a" + kEos);
}

TEST(OutputStreamStopTest, CutsContentAtTheFirstStopString) {
  OutputConfig config = config_for(false);
  config.stop = {"END.", "\n\n", "D"};
  const StreamRun run = run_every_cut("abc END. tail" + kEos, config, EndCause::kStop);
  EXPECT_EQ(run.message.content, "abc EN");  // "D" is complete before "END."
  EXPECT_EQ(run.matched_stop, "D");
  config.stop = {"ND.", "END.", "D."};
  EXPECT_EQ(run_every_cut("abc END. tail" + kEos, config, EndCause::kStop).message.content, "abc ");
  config.include_stop = true;
  EXPECT_EQ(run_every_cut("abc END. tail" + kEos, config, EndCause::kStop).message.content,
            "abc END.");
  EXPECT_EQ(run_every_cut("abc EN" + kEos, config, EndCause::kStop).message.content, "abc EN");
  EXPECT_EQ(run_every_cut("abc EN", config, EndCause::kStop).matched_stop, std::nullopt);
}

TEST(OutputStreamStopTest, LeavesReasoningAloneUnlessAsked) {
  OutputConfig config = config_for(true);
  config.stop = {"="};
  StreamRun run = run_every_cut("1 = 1</think>2 = 2" + kEos, config, EndCause::kStop);
  expect_message(run, "1 = 1", "2 ", {});
  config.stop_in_reasoning = true;
  run = run_stream({"1 = 1</think>2 = 2" + kEos}, config, EndCause::kLength);
  expect_message(run, "1 ", "", {});
  EXPECT_EQ(run.matched_stop, "=");
}

TEST(OutputStreamStopTest, LeavesToolCallsAlone) {
  OutputConfig config = config_for(false);
  config.stop = {"ls", "\n\n", "<"};
  const StreamRun run =
      run_every_cut("ok" + block(invoke("sh", parameter("command", true, "ls <"))) + kEos,
                    config,
                    EndCause::kStop);
  expect_message(run, "", "ok", {{"sh", R"({"command": "ls <"})"}});
}

TEST(OutputStreamStopTest, ActsOnTheAnswerThatStoodInTheReasoning) {
  OutputConfig config = config_for(true);
  config.stop = {"="};
  EXPECT_EQ(run_stream({"1 = 1" + kEos}, config, EndCause::kStop).message.content, "1 ");
}

TEST(OutputStreamStopTest, IgnoresTokensAfterTheStop) {
  const ScriptedTokens script({"a=b", "c"});
  OutputConfig config = config_for(false);
  config.stop = {"="};
  OutputStream stream(script.tokenizer, config);
  std::vector<OutputDelta> deltas;
  stream.push(script.ids[0], deltas);
  EXPECT_TRUE(stream.stopped());
  stream.push(script.ids[1], deltas);
  stream.finish(EndCause::kStop, deltas);
  EXPECT_EQ(stream.message().content, "a");
}

TEST(OutputStreamDeathTest, FinishTwiceIsAnError) {
  const ScriptedTokens script({"a"});
  OutputStream stream(script.tokenizer, config_for(false));
  std::vector<OutputDelta> deltas;
  EXPECT_DEATH((void)stream.message(), "finish");
  stream.finish(EndCause::kStop, deltas);
  EXPECT_DEATH(stream.finish(EndCause::kStop, deltas), "before");
}

}  // namespace
}  // namespace baleen::text
