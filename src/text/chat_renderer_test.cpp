#include "text/chat_renderer.h"

#include <array>
#include <map>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/sha.h>

#include "text/case_reader.h"
#include "text/chat_prompt_texts.h"
#include "text/chat_request.h"

namespace baleen::text {
namespace {

const std::string kB(kBosText);
const std::string kE(kEosText);
const std::string kU = "<｜User｜>";
const std::string kA = "<｜Assistant｜>";

std::string sha256(std::string_view text) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest{};
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data());
  std::string hex;
  for (const unsigned char byte : digest) {
    hex += fmt::format("{:02x}", byte);
  }
  return hex;
}

ChatMessage message(Role role, std::string content) {
  ChatMessage made;
  made.role = role;
  made.content = std::move(content);
  return made;
}
ChatMessage system(std::string content) {
  return message(Role::kSystem, std::move(content));
}
ChatMessage user(std::string content) {
  return message(Role::kUser, std::move(content));
}
ChatMessage assistant(std::string content,
                      std::string reasoning = {},
                      std::vector<HistoryCall> calls = {}) {
  ChatMessage made = message(Role::kAssistant, std::move(content));
  made.reasoning_content = std::move(reasoning);
  made.tool_calls = std::move(calls);
  return made;
}
ChatMessage result(std::string content, std::string id = {}) {
  ChatMessage made = message(Role::kTool, std::move(content));
  made.tool_call_id = std::move(id);
  return made;
}
ChatMessage with_task(ChatMessage made, std::string task) {
  made.task = std::move(task);
  return made;
}

std::string render(const std::vector<ChatMessage>& messages, const RenderOptions& options) {
  const auto prompt = render_messages(messages, options);
  EXPECT_TRUE(prompt.ok()) << prompt.status().message;
  return prompt.ok() ? prompt->text() : "";
}
std::string chat(const std::vector<ChatMessage>& messages) {
  return render(messages, {});
}
std::string thinking(const std::vector<ChatMessage>& messages) {
  return render(messages, {.thinking = true});
}

TEST(ChatTextsTest, AreTheFormatsOwn) {
  const Effort max{EffortLevel::kMax, 0};
  const Effort high{EffortLevel::kHigh, 0};
  const std::string_view preview = effort_text(ChatProfile::kV4, max);
  EXPECT_EQ(preview.size(), 476U);
  EXPECT_EQ(sha256(preview), "f7a24f3b3050d4a83781e9b755b316aae2ec1d9dc87562541d90bcb04d7350f7");
  EXPECT_EQ(effort_text(ChatProfile::kV4_0731, high), preview);
  EXPECT_EQ(effort_text(ChatProfile::kV4, high), "");
  EXPECT_EQ(effort_text(ChatProfile::kV4_0731, {}), "");
  const std::string_view beyond = effort_text(ChatProfile::kV4_0731, max);
  EXPECT_EQ(beyond.size(), 528U);
  EXPECT_EQ(sha256(beyond), "53fb31b8392ec5b4a926481943efc67636748f137c1a49d493a7af4d4fa55d2c");
  const std::string tools =
      tools_block_head(ChatProfile::kV4) + "{\"name\": \"f\"}" + std::string(tools_block_tail());
  EXPECT_EQ(tools.size(), 1002U);
  EXPECT_EQ(sha256(tools), "ea63e9b9ea75623dcd446ad48a5264e07d353d7d6ab2ceaa2b6613173235a12f");
}

TEST(ChatRendererTest, OneQuestion) {
  EXPECT_EQ(chat({user("Name a prime above 20.")}),
            kB + kU + "Name a prime above 20." + kA + "</think>");
  EXPECT_EQ(thinking({user("Name a prime above 20.")}),
            kB + kU + "Name a prime above 20." + kA + "<think>");
}

TEST(ChatRendererTest, ReasoningOfEarlierTurns) {
  const std::vector<ChatMessage> messages = {
      system("Be terse."), user("2+2?"), assistant("4", "easy"), user("times 3?")};
  const std::string head = kB + "Be terse." + kU + "2+2?" + kA;
  const std::string tail = "4" + kE + kU + "times 3?" + kA;
  EXPECT_EQ(thinking(messages), head + "</think>" + tail + "<think>");
  EXPECT_EQ(render(messages, {.thinking = true, .drop_thinking = false}),
            head + "<think>easy</think>" + tail + "<think>");
  EXPECT_EQ(chat(messages), head + "</think>" + tail + "</think>");
  const Effort max{EffortLevel::kMax, 0};
  const Effort high{EffortLevel::kHigh, 0};
  EXPECT_EQ(
      render(messages, {.thinking = true, .effort = max}),
      kB + std::string(effort_text(ChatProfile::kV4, max)) + thinking(messages).substr(kB.size()));
  EXPECT_EQ(render(messages, {.thinking = true, .effort = high}), thinking(messages));
  EXPECT_EQ(render(messages, {.effort = max}), chat(messages));
  const std::vector<ChatMessage> context(messages.begin(), messages.begin() + 3);
  EXPECT_EQ(render({messages[3]}, {.thinking = true, .effort = max, .context = context}),
            kU + "times 3?" + kA + "<think>");
}

TEST(ChatRendererTest, ToolsAndResultsInCallOrder) {
  ChatMessage first = system("Use tools.");
  first.functions = {
      R"({"name":"add","description":"Add numbers","parameters":{"type":"object","properties":{"a":{"type":"number"},"b":{"type":"number"}},"required":["a","b"]}})"};
  const std::vector<ChatMessage> messages = {
      first,
      user("Add 1 and 2, then 3 and 4."),
      assistant("",
                "Two calls.",
                {{"c1", "add", R"({"a": 1, "b": 2})"}, {"c2", "add", R"({"a":3,"b":4.5})"}}),
      result("7.5", "c2"),
      result("3", "c1"),
      user("And the total?")};
  const std::string text = thinking(messages);
  EXPECT_EQ(sha256(text), "b4479a9f029a11cc997e09d7fcdf4e910dc2f888f75c8743fb0fb5630a12ed4a");
  EXPECT_THAT(
      text,
      testing::EndsWith(
          "<tool_result>3</tool_result>\n\n<tool_result>7.5</tool_result>\n\nAnd the total?" + kA +
          "<think>"));
  EXPECT_EQ(sha256(chat(messages)),
            "3b9e862c837a55fc943c82e44173ff348c82e90806b72c34e903194ea53b5619");
}

TEST(ChatRendererTest, CallsWithoutDeclaredTools) {
  EXPECT_EQ(thinking({user("t"), assistant("ok", "r", {{"", "now", "{}"}}), result("12:00")}),
            kB + kU + "t" + kA +
                "</think>ok\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke "
                "name=\"now\">\n\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>" +
                kE + kU + "<tool_result>12:00</tool_result>" + kA + "<think>");
}

TEST(ChatRendererTest, KindsOfArguments) {
  const std::string arguments =
      R"({"s": "x\ny", "n": 1.50, "t": true, "z": null, "l": [1, "é"], "o": {"k": 1}})";
  const auto line = [](const std::string& key, const char* is_string, const std::string& value) {
    return "<｜DSML｜parameter name=\"" + key + "\" string=\"" + is_string + "\">" + value +
           "</｜DSML｜parameter>\n";
  };
  const auto expected = [&](const std::string& name, const std::string& lines) {
    return kB + kU + "t" + kA +
           "<think>r</think>\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"" + name + "\">\n" +
           lines + "</｜DSML｜invoke>\n</｜DSML｜tool_calls>" + kE;
  };
  EXPECT_EQ(thinking({user("t"), assistant("", "r", {{"", "f", arguments}})}),
            expected("f",
                     line("s", "true", "x\ny") + line("n", "false", "1.5") +
                         line("t", "false", "true") + line("z", "false", "null") +
                         line("l", "false", "[1, \"é\"]") + line("o", "false", "{\"k\": 1}")));
  EXPECT_EQ(thinking({user("t"), assistant("", "r", {{"", "sh", "ls -l"}})}),
            expected("sh", line("arguments", "true", "ls -l")));
  EXPECT_EQ(thinking({user("t"), assistant("", "r", {{"", "sh", R"({"a":[1,2]})", false}})}),
            expected("sh", line("arguments", "false", "{\"a\": [1, 2]}")));
}

TEST(ChatRendererTest, ResponseFormat) {
  ChatMessage first = system("");
  first.response_format = R"({"type": "object", "properties": {"n": {"type": "integer"}}})";
  EXPECT_EQ(
      chat({first, user("give n")}),
      kB +
          "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"
          "{\"type\": \"object\", \"properties\": {\"n\": {\"type\": \"integer\"}}}" +
          kU + "give n" + kA + "</think>");
}

TEST(ChatRendererTest, NeighbouringUserMessagesAreOneTurn) {
  EXPECT_EQ(chat({user("one"), user("two")}), kB + kU + "one\n\ntwo" + kA + "</think>");
  ChatMessage hi = user("hi");
  hi.functions = {R"({"name": "f"})"};  // lost: only system messages carry tools
  EXPECT_EQ(thinking({hi}), kB + kU + "hi" + kA + "<think>");
}

TEST(ChatRendererTest, Tasks) {
  const ChatMessage action = with_task(user("weather?"), "action");
  EXPECT_EQ(chat({action}), kB + kU + "weather?" + kA + "</think><｜action｜>");
  EXPECT_EQ(thinking({action, assistant("Search")}),
            kB + kU + "weather?" + kA + "<think><｜action｜>Search" + kE);
  EXPECT_EQ(chat({user("weather?"), with_task(assistant("Sunny."), "title")}),
            kB + kU + "weather?" + kA + "</think>Sunny." + kE + "<｜title｜>");
  EXPECT_EQ(chat({with_task(user("a"), "query"), user("b")}),
            kB + kU + "a" + kU + "b" + kA + "</think>");
  for (const std::string task : {"query", "authority", "domain", "title", "read_url"}) {
    EXPECT_EQ(chat({with_task(user("a"), task)}), kB + kU + "a<｜" + task + "｜>");
  }
  const auto unknown = render_messages(std::vector{with_task(user("a"), "sing")}, {});
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.status().param, "messages[0].task");
  EXPECT_THAT(unknown.status().message, testing::HasSubstr("sing"));
}

TEST(ChatRendererTest, RemindersContinuationsAndLists) {
  EXPECT_EQ(chat({system("s"), message(Role::kLatestReminder, "2026-05-01,Paris"), user("q")}),
            kB + "s<｜latest_reminder｜>2026-05-01,Paris" + kU + "q" + kA + "</think>");
  ChatMessage roses = assistant("Roses");
  roses.without_eos = true;
  EXPECT_EQ(chat({user("Write a poem"), roses}), kB + kU + "Write a poem" + kA + "</think>Roses");
  ChatMessage list = result("");
  list.parts = {{"text", "A"}, {"image", ""}, {"text", "B"}};
  EXPECT_THAT(chat({user("t"), assistant("", "", {{"", "f", "{}"}}), list}),
              testing::HasSubstr("<tool_result>A\n\n[Unsupported image]\n\nB</tool_result>"));
  EXPECT_EQ(chat({system("hello")}), kB + "hello");
  EXPECT_EQ(chat({}), kB);
  EXPECT_EQ(render({}, {.add_bos = false}), "");
  EXPECT_EQ(chat({user("a"), system("S2"), user("b")}),
            kB + kU + "aS2" + kU + "b" + kA + "</think>");
}

TEST(ChatRendererTest, DeveloperMessages) {
  EXPECT_EQ(thinking({message(Role::kDeveloper, "d"), assistant("x", "r"), user("u")}),
            kB + "x" + kE + kU + "u" + kA + "<think>");
  EXPECT_EQ(chat({message(Role::kDeveloper, "d")}), kB + kU + "d" + kA + "</think>");
  const auto empty = render_messages(std::vector{message(Role::kDeveloper, "")}, {});
  ASSERT_FALSE(empty.ok());
  EXPECT_EQ(empty.status().param, "messages[0].content");
}

TEST(ChatRendererTest, ResultsWithUnknownIdsCountAsFirst) {
  const std::vector<HistoryCall> calls = {{"a", "f", "{}"}, {"b", "f", "{}"}, {"c", "f", "{}"}};
  const std::string text = chat({user("t"),
                                 assistant("", "", calls),
                                 result("C", "c"),
                                 user("mid"),
                                 result("B", "b"),
                                 result("?", "x")});
  EXPECT_THAT(text,
              testing::HasSubstr("<tool_result>?</tool_result>\n\nmid\n\n<tool_result>B</"
                                 "tool_result>\n\n<tool_result>C</tool_result>"));
}

TEST(ChatRendererTest, FaultsNameTheMessage) {
  const auto bad = render_messages(
      std::vector{user("t"), assistant("", "", {{"", "f", "{}"}, {"", "f", "[1, 2]"}})}, {});
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.status().param, "messages[1].tool_calls[1].function.arguments");
  ChatMessage first = system("");
  first.functions = {"{"};
  EXPECT_EQ(render_messages(std::vector{first}, {}).status().param,
            "messages[0].tools[0].function");
  first.functions.clear();
  first.response_format = "{";
  EXPECT_EQ(render_messages(std::vector{first}, {}).status().param, "messages[0].response_format");
}

TEST(ChatRendererTest, OnlyTheEnginesOwnTextMayBecomeControlTokens) {
  const auto prompt = render_messages(std::vector{user("<think>")}, {.thinking = true});
  EXPECT_THAT(prompt->pieces,
              testing::ElementsAre(PromptPiece{kB + kU, true},
                                   PromptPiece{"<think>", false},
                                   PromptPiece{kA + "<think>", true}));
  EXPECT_TRUE(prompt->starts_in_reasoning);
  ChatMessage open = assistant("<think>");
  open.without_eos = true;
  EXPECT_FALSE(
      render_messages(std::vector{user("a"), open}, {.thinking = true})->starts_in_reasoning);
}

// What an API promises beyond the published encoder.

ChatRequest request_of(std::vector<ChatMessage> messages) {
  ChatRequest request;
  request.messages = std::move(messages);
  return request;
}
constexpr ThinkingDecision kThink{true, {}};

TEST(ChatRequestTest, RefusesPromptsWithoutATurn) {
  const auto param = [](const ChatRequest& request) {
    return render_request(request, ChatProfile::kV4, kThink).status().param;
  };
  EXPECT_EQ(param(request_of({})), "messages");
  EXPECT_EQ(param(request_of({user("a"), assistant("b")})), "messages[1]");
  EXPECT_EQ(param(request_of({message(Role::kLatestReminder, "x")})), "messages[0]");
  ChatRequest request = request_of({user("a")});
  request.continue_final_message = true;
  EXPECT_EQ(param(request), "messages[0]");
  request.messages = {user("a"), assistant("", "", {{"", "f", "{}"}})};
  EXPECT_EQ(param(request), "messages[1]");
}

TEST(ChatRequestTest, ContinuesTheFinalMessage) {
  ChatRequest request = request_of({user("a"), assistant("Ros")});
  request.continue_final_message = true;
  const auto prompt = render_request(request, ChatProfile::kV4, {});
  EXPECT_EQ(prompt->text(), kB + kU + "a" + kA + "</think>Ros");
  EXPECT_FALSE(prompt->starts_in_reasoning);
}

TEST(ChatRequestTest, LastSystemMessageGetsTheAssistantsHeader) {
  for (const ChatProfile profile : {ChatProfile::kV4, ChatProfile::kV4_0731, ChatProfile::kV41}) {
    const auto prompt = render_request(request_of({system("s")}), profile, kThink);
    EXPECT_THAT(prompt->text(), testing::EndsWith("s" + kA + "<think>"));
    EXPECT_TRUE(prompt->starts_in_reasoning);
    EXPECT_THAT(render_request(request_of({user("u"), system("s")}), profile, {})->text(),
                testing::EndsWith("s" + kA + "</think>"));
  }
}

TEST(ChatRequestTest, PutsToolsAndFormatIntoTheFirstSystemMessage) {
  ChatRequest request = request_of({user("a"), message(Role::kDeveloper, "d"), user("b")});
  request.functions = {R"({"name": "f"})"};
  request.response_format = R"({"type":"object"})";
  const std::string text = render_request(request, ChatProfile::kV4, {})->text();
  EXPECT_THAT(text, testing::StartsWith(kB + kU + "ad\n\n## Tools"));
  EXPECT_THAT(text, testing::HasSubstr("invoke tool calls.\n\n\n## Response Format:"));
  request.messages = {user("a"), assistant("", "", {{"", "f", "[]"}}), user("b")};
  EXPECT_EQ(render_request(request, ChatProfile::kV4, {}).status().param,
            "messages[1].tool_calls[0].function.arguments");
  request.messages = {user("a")};
  EXPECT_THAT(render_request(request, ChatProfile::kV4, {})->text(),
              testing::StartsWith(kB + "\n\n## Tools"));
}

TEST(ChatRequestTest, JoinsPartsOfContent) {
  ChatMessage parts = user("");
  parts.parts = {{"text", "a"}, {"image_url", ""}, {"text", "b"}};
  EXPECT_EQ(render_request(request_of({parts}), ChatProfile::kV4, {})->text(),
            kB + kU + "a\n\n[Unsupported image_url]\n\nb" + kA + "</think>");
}

// Cases.

void expect_prompt(const JsonValue& input,
                   const JsonValue& expected,
                   ChatProfile profile,
                   const ThinkingDecision& decision) {
  ChatRequest request = request_of(case_messages(at(input, "messages")));
  request.functions = case_functions(input);
  const auto prompt = render_request(request, profile, decision);
  ASSERT_TRUE(prompt.ok()) << prompt.status().message;
  const std::string text = prompt->text();
  std::string in_full = text_at(expected, "prompt");
  if (const JsonValue* parts = expected.find("prompt_parts")) {
    std::string tools = tools_block_head(profile);
    std::string separator;
    for (const JsonValue& line : at(expected, "tools_block_json_lines").items) {
      tools += separator + line.text;
      separator = "\n";
    }
    tools += tools_block_tail();
    EXPECT_EQ(sha256(tools), text_at(expected, "tools_block_sha256"));
    for (const JsonValue& part : parts->items) {
      in_full += part.is_string() ? part.text : tools;
    }
  }
  if (!in_full.empty()) {
    EXPECT_EQ(text, in_full);
  }
  EXPECT_EQ(sha256(text), text_at(expected, "prompt_sha256"));
  EXPECT_EQ(std::to_string(text.size()), at(expected, "prompt_utf8_bytes").text);
  EXPECT_EQ(prompt->starts_in_reasoning, text.ends_with("<think>"));
}

TEST(ChatCaseTest, TrailingSystemMessage) {
  const JsonValue file = read_case("H01_trailing_system_message");
  const JsonValue& input = at(file, "input");
  ChatRequest request = request_of(case_messages(at(input, "messages")));
  request.functions = case_functions(input);
  const std::string text = render_request(request, ChatProfile::kV4, kThink)->text();
  EXPECT_THAT(text, testing::EndsWith("Reply in one sentence.<｜Assistant｜><think>"));
  EXPECT_THAT(text,
              testing::HasSubstr(text_at(at(file, "facts"), "literal_reference_rendering_tail")));
}

TEST(ChatCaseTest, ToolResultsOutOfOrder) {
  const JsonValue file = read_case("H02_tool_results_out_of_order");
  expect_prompt(at(file, "input"), at(file, "expected"), ChatProfile::kV4, kThink);
}

TEST(ChatCaseTest, ReasoningHistory) {
  const JsonValue file = read_case("H03_reasoning_history_rules");
  ASSERT_EQ(at(file, "subcases").items.size(), 4U);
  for (const JsonValue& subcase : at(file, "subcases").items) {
    SCOPED_TRACE(text_at(subcase, "name"));
    expect_prompt(
        subcase, at(subcase, "expected"), ChatProfile::kV4, {flag_at(subcase, "thinking"), {}});
  }
}

TEST(ChatCaseTest, ArgumentsOfEarlierCalls) {
  const JsonValue file = read_case("H04_dsml_argument_rendering");
  ASSERT_EQ(at(file, "subcases").items.size(), 7U);
  for (const JsonValue& subcase : at(file, "subcases").items) {
    SCOPED_TRACE(text_at(subcase, "name"));
    const auto prompt =
        render_request(request_of({user("u"),
                                   assistant("", "", {{"", "save", text_at(subcase, "arguments")}}),
                                   result("r")}),
                       ChatProfile::kV4,
                       {});
    if (subcase.find("expected_http_status") != nullptr) {
      EXPECT_EQ(prompt.status().code, StatusCode::kInvalidArgument);
    } else {
      EXPECT_THAT(prompt->text(),
                  testing::HasSubstr("</think>" + text_at(subcase, "expected_block") + kE));
    }
  }
}

TEST(ChatCaseTest, V41Prompts) {
  const JsonValue file = read_case("H07_v41_prompt_format");
  ASSERT_EQ(at(file, "subcases").items.size(), 8U);
  for (const JsonValue& subcase : at(file, "subcases").items) {
    SCOPED_TRACE(text_at(subcase, "name"));
    ThinkingFields fields;
    fields.thinking_type = flag_at(subcase, "thinking") ? "enabled" : "disabled";
    if (const JsonValue* effort = subcase.find("reasoning_effort")) {
      fields.efforts.push_back({"reasoning_effort", effort_value(*effort)});
    }
    const auto decision = decide_thinking(ChatProfile::kV41, fields, false);
    const JsonValue& expected = at(subcase, "expected");
    if (expected.find("http_status") != nullptr) {
      EXPECT_EQ(decision.status().code, StatusCode::kInvalidArgument);
      EXPECT_EQ(decision.status().param, "reasoning_effort");
      EXPECT_THAT(decision.status().message, testing::HasSubstr("reasoning_effort"));
    } else {
      expect_prompt(subcase, expected, ChatProfile::kV41, *decision);
    }
  }
}

TEST(ChatCaseTest, EffortLevelsPerCheckpoint) {
  const JsonValue file = read_case("H05_effort_levels_per_checkpoint");
  const std::map<std::string, ChatProfile> profiles = {
      {"v4", ChatProfile::kV4}, {"v4-0731", ChatProfile::kV4_0731}, {"v4.1", ChatProfile::kV41}};
  ASSERT_EQ(at(file, "subcases").items.size(), 11U);
  for (const JsonValue& subcase : at(file, "subcases").items) {
    SCOPED_TRACE(json_text(subcase));
    const ChatProfile profile = profiles.at(text_at(subcase, "profile"));
    const auto decision = decide_thinking(profile, thinking_fields(at(subcase, "request")), false);
    ASSERT_TRUE(decision.ok());
    EXPECT_EQ(decision->thinking, text_at(subcase, "mode") == "thinking");
    expect_prompt(at(file, "input"), subcase, profile, *decision);
    EXPECT_THAT(
        render_request(
            request_of(case_messages(at(at(file, "input"), "messages"))), profile, *decision)
            ->text(),
        testing::EndsWith(text_at(subcase, "tail")));
  }
  for (const JsonMember& alias : at(at(file, "expected_extra"), "aliases_to_named_level").members) {
    for (const auto& [name, profile] : profiles) {
      ThinkingFields a;
      a.efforts.push_back({"reasoning_effort", alias.key});
      ThinkingFields b;
      b.efforts.push_back({"reasoning_effort", alias.value.text});
      EXPECT_EQ(*decide_thinking(profile, a, false), *decide_thinking(profile, b, false))
          << alias.key;
    }
  }
}

}  // namespace
}  // namespace baleen::text
