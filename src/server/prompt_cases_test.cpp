// The fault cases of tests/cases that are about prompts, over HTTP.
#include <algorithm>
#include <optional>

#include <gtest/gtest.h>

#include "server/case_api_test.h"
#include "text/chat_prompt_texts.h"

namespace baleen::server {
namespace {

/// The whole prompt that a case spells out, its block of tools included.
std::string case_prompt(const json::object& expected, text::ChatProfile profile) {
  if (const json::value* prompt = expected.if_contains("prompt")) {
    return std::string(prompt->as_string());
  }
  std::string tools = text::tools_block_head(profile);
  const std::vector<std::string> functions = strings_of(expected.at("tools_block_json_lines"));
  for (size_t i = 0; i < functions.size(); ++i) {
    tools += (i == 0 ? "" : "\n") + functions[i];
  }
  tools += text::tools_block_tail();
  std::string prompt;
  for (const json::value& part : expected.at("prompt_parts").as_array()) {
    prompt += part.is_string() ? std::string(part.as_string()) : tools;
  }
  return prompt;
}

TEST_F(CasesTest, H01TrailingSystemMessageNeverRunsWithoutAHeader) {
  const json::value fault = read_case("H01_trailing_system_message");
  json::object request = chat_request(fault.at("input").at("messages"));
  request["tools"] = fault.at("input").at("tools");
  request["thinking"] = thinking(true);
  api.emit("x</think>y");
  const http::Response answer = api.post(kChatPath, json::serialize(request));
  if (answer.status == 400) {
    const json::value body = json::parse(answer.body);
    EXPECT_EQ(body.at("error").at("type"), "invalid_request_error");
    const std::string param(body.at("error").at("param").as_string());
    EXPECT_NE((std::string(body.at("error").at("message").as_string()) + param).find("messages[4]"),
              std::string::npos)
        << answer.body;
  } else {
    EXPECT_EQ(answer.status, 200);
    EXPECT_TRUE(api.last_prompt_text().ends_with("<｜Assistant｜><think>"));
    EXPECT_NE(api.last_prompt_text().find("Reply in one sentence."), std::string::npos);
  }
}

TEST_F(CasesTest, H02ToolResultsStandInTheOrderOfTheirCalls) {
  const json::value fault = read_case("H02_tool_results_out_of_order");
  const json::object& input = fault.at("input").as_object();
  json::object request = chat_request(input.at("messages"));
  request["thinking"] = thinking(input.at("thinking").as_bool());
  request["tools"] = input.at("tools");
  api.emit("x</think>y");
  for (const bool streams : {false, true}) {
    streams ? (void)streamed(request) : (void)whole(request);
    const std::string prompt = api.last_prompt_text();
    EXPECT_EQ(prompt, case_prompt(fault.at("expected").as_object(), text::ChatProfile::kV4));
    EXPECT_EQ(static_cast<int64_t>(prompt.size()),
              fault.at("expected").at("prompt_utf8_bytes").as_int64());
  }
}

TEST_F(CasesTest, H03HistoryReasoningOverHttp) {
  const json::value fault = read_case("H03_reasoning_history_rules");
  for (const json::value& sub : fault.at("subcases").as_array()) {
    SCOPED_TRACE(json::serialize(sub.at("name")));
    json::object request = chat_request(sub.at("messages"));
    request["thinking"] = thinking(sub.at("thinking").as_bool());
    if (const json::value* tools = sub.as_object().if_contains("tools")) {
      request["tools"] = *tools;
    }
    api.emit("x");
    api.ok(kChatPath, json::serialize(request));
    const std::string prompt = api.last_prompt_text();
    const json::object& expected = sub.at("expected").as_object();
    EXPECT_EQ(static_cast<int64_t>(prompt.size()), expected.at("prompt_utf8_bytes").as_int64());
    if (const json::value* text = expected.if_contains("prompt")) {
      EXPECT_EQ(prompt, std::string(text->as_string()));
    } else {
      for (const json::value& part : expected.at("prompt_parts").as_array()) {
        if (part.is_string()) {
          EXPECT_NE(prompt.find(std::string(part.as_string())), std::string::npos) << part;
        }
      }
    }
  }
}

TEST_F(CasesTest, H04ArgumentsOfEarlierCallsAreWrittenBackByType) {
  const json::value fault = read_case("H04_dsml_argument_rendering");
  int num_refused = 0;
  for (const json::value& sub : fault.at("subcases").as_array()) {
    SCOPED_TRACE(json::serialize(sub.at("name")));
    const json::object call{
        {"id", "c1"},
        {"type", "function"},
        {"function", json::object{{"name", "save"}, {"arguments", sub.at("arguments")}}}};
    json::array messages = user_says("go");
    messages.push_back(
        json::object{{"role", "assistant"}, {"content", ""}, {"tool_calls", json::array{call}}});
    messages.push_back(json::object{{"role", "tool"}, {"tool_call_id", "c1"}, {"content", "r"}});
    api.emit("x");
    const http::Response answer =
        api.post(kChatPath, json::serialize(chat_request(std::move(messages))));
    if (const json::value* status = sub.as_object().if_contains("expected_http_status")) {
      ++num_refused;
      EXPECT_EQ(answer.status, status->as_int64()) << answer.body;
      const json::value body = json::parse(answer.body);
      EXPECT_EQ(body.at("error").at("type"), "invalid_request_error");
      EXPECT_EQ(body.at("error").at("param"), "messages[1].tool_calls[0].function.arguments");
      continue;
    }
    EXPECT_EQ(answer.status, 200) << answer.body;
    const std::string block(sub.at("expected_block").as_string());
    EXPECT_NE(api.last_prompt_text().find("</think>" + block + "<｜end▁of▁sentence｜>"),
              std::string::npos)
        << api.last_prompt_text();
  }
  EXPECT_EQ(num_refused, 1);
}

TEST(EffortCasesTest, H05EffortAndThinkingPerProfile) {
  const json::value fault = read_case("H05_effort_levels_per_checkpoint");
  for (const auto profile :
       {text::ChatProfile::kV4, text::ChatProfile::kV4_0731, text::ChatProfile::kV41}) {
    ScriptedApiOptions options;
    options.server.chat_profile = profile;
    ScriptedApi api(options);
    api.emit("x");
    int num_subcases = 0;
    for (const json::value& sub : fault.at("subcases").as_array()) {
      if (sub.at("profile") != chat_profile_name(profile)) {
        continue;
      }
      ++num_subcases;
      SCOPED_TRACE(json::serialize(sub.at("request")));
      const json::object request =
          chat_request(fault.at("input").at("messages"), &sub.at("request"));
      api.ok(kChatPath, json::serialize(request));
      const std::string prompt = api.last_prompt_text();
      EXPECT_EQ(static_cast<int64_t>(prompt.size()), sub.at("prompt_utf8_bytes").as_int64());
      EXPECT_TRUE(prompt.ends_with(std::string(sub.at("tail").as_string()))) << prompt;
    }
    EXPECT_GE(num_subcases, 3);
    for (const auto& alias : fault.at("expected_extra").at("aliases_to_named_level").as_object()) {
      const auto prompt_of = [&](std::string_view effort) {
        json::object request = chat_request(fault.at("input").at("messages"));
        request["reasoning_effort"] = effort;
        api.ok(kChatPath, json::serialize(request));
        return api.last_prompt_text();
      };
      EXPECT_EQ(prompt_of(alias.key()), prompt_of(alias.value().as_string())) << alias.key();
    }
  }
}

TEST_F(CasesTest, H06ControlTokenLookAlikesStayText) {
  const json::value fault = read_case("H06_special_tokens_in_user_text");
  json::object request = chat_request(fault.at("input").at("messages"));
  request["thinking"] = thinking(true);
  api.emit("x");
  api.ok(kChatPath, json::serialize(request));
  const std::vector<int32_t> prompt = api.last_prompt();
  const json::object& expected = fault.at("expected").as_object();
  for (const auto& entry : expected.at("special_token_counts_in_prompt_ids").as_object()) {
    const std::optional<int32_t> id = api.tokenizer->find(entry.key());
    ASSERT_TRUE(id) << entry.key();
    EXPECT_EQ(std::count(prompt.begin(), prompt.end(), *id), entry.value().as_int64())
        << entry.key();
  }
  EXPECT_EQ(api.last_prompt_text(),
            std::string(expected.at("detokenized_prompt_equals").as_string()));
}

TEST(ProfileCasesTest, H07PromptsOfV41AndEffortsThatItRefuses) {
  const json::value fault = read_case("H07_v41_prompt_format");
  ScriptedApiOptions options;
  options.server.chat_profile = text::ChatProfile::kV41;
  ScriptedApi api(options);
  api.emit("x");
  int num_prompts = 0;
  int num_refused = 0;
  for (const json::value& sub : fault.at("subcases").as_array()) {
    SCOPED_TRACE(json::serialize(sub.at("name")));
    json::object request = chat_request(sub.at("messages"));
    request["thinking"] = thinking(sub.at("thinking").as_bool());
    for (const char* field : {"tools", "reasoning_effort"}) {
      if (const json::value* value = sub.as_object().if_contains(field)) {
        request[field] = *value;
      }
    }
    const json::object& expected = sub.at("expected").as_object();
    const http::Response answer = api.post(kChatPath, json::serialize(request));
    if (const json::value* status = expected.if_contains("http_status")) {
      ++num_refused;
      EXPECT_EQ(answer.status, status->as_int64()) << answer.body;
      for (const std::string& word : strings_of(expected.at("error_mentions"))) {
        EXPECT_NE(answer.body.find(word), std::string::npos) << answer.body;
      }
      continue;
    }
    ++num_prompts;
    EXPECT_EQ(answer.status, 200) << answer.body;
    const std::string prompt = api.last_prompt_text();
    EXPECT_EQ(prompt, case_prompt(expected, text::ChatProfile::kV41));
    EXPECT_EQ(static_cast<int64_t>(prompt.size()), expected.at("prompt_utf8_bytes").as_int64());
  }
  EXPECT_EQ(num_prompts, 3);
  EXPECT_EQ(num_refused, 5);
}

}  // namespace
}  // namespace baleen::server
