// The fault case of tests/cases about the one decision on thinking, in every dialect over HTTP.

#include <gtest/gtest.h>

#include "server/case_api_test.h"

namespace baleen::server {
namespace {

/// Reasoning and content of an answer, whatever the dialect.
CaseAnswer answer_of(const std::string& endpoint, const json::value& body) {
  CaseAnswer answer;
  if (endpoint == "chat/completions") {
    const json::object& message = body.at("choices").at(0).at("message").as_object();
    if (message.at("reasoning_content").is_string()) {
      answer.reasoning = std::string(message.at("reasoning_content").as_string());
    }
    answer.content = std::string(message.at("content").as_string());
    return answer;
  }
  const bool is_messages = endpoint == "messages";
  for (const json::value& part : body.at(is_messages ? "content" : "output").as_array()) {
    const bool reasons = part.at("type") == "thinking" || part.at("type") == "reasoning";
    const json::value& text =
        is_messages ? part.at(reasons ? "thinking" : "text") : part.at("content").at(0).at("text");
    (reasons ? answer.reasoning : answer.content) = std::string(text.as_string());
  }
  return answer;
}

TEST(ModeCasesTest, H14PromptAndParserShareOneDecision) {
  const json::value fault = read_case("H14_one_mode_decision_and_json_format");
  for (const bool default_thinking : {false, true}) {
    ScriptedApiOptions options;
    options.server.default_thinking = default_thinking;
    ScriptedApi api(options);
    for (const json::value& row : fault.at("mode_table").as_array()) {
      SCOPED_TRACE(json::serialize(row.at("request")));
      const std::string mode(row.at("expected_mode").as_string());
      const std::string endpoint(row.at("endpoint").as_string());
      const bool expect_thinking = mode == "thinking" || (mode != "chat" && default_thinking);
      json::object request = chat_request(user_says("hi"), &row.at("request"));
      if (endpoint == "responses") {
        request["input"] = request.at("messages");
        request.erase("messages");
      } else if (endpoint == "messages") {
        request["max_tokens"] = 3000;
      }
      api.emit("deep</think>42");
      const CaseAnswer answer =
          answer_of(endpoint, api.ok("/v1/" + endpoint, json::serialize(request)));
      EXPECT_EQ(api.last_prompt_text().ends_with("<｜Assistant｜><think>"), expect_thinking);
      EXPECT_EQ(answer.reasoning, expect_thinking ? "deep" : "");
      EXPECT_EQ(answer.content, expect_thinking ? "42" : "deep42");
    }
    const json::value& sub = fault.at("subcases").at(0);
    ASSERT_EQ(sub.at("name"), "a_off_answer_goes_to_content");
    api.emit(std::string(sub.at("scripted_completion").as_string()));
    const json::value body =
        api.ok(kChatPath, json::serialize(chat_request(user_says("hi"), &sub.at("request"))));
    EXPECT_EQ(body.at("choices").at(0).at("message").at("content"), "42");
    EXPECT_TRUE(body.at("choices").at(0).at("message").at("reasoning_content").is_null());
  }
}

TEST_F(CasesTest, H14GrammarsBeginBehindTheReasoning) {
  const json::value fault = read_case("H14_one_mode_decision_and_json_format");
  const json::value& schema = fault.at("subcases").at(1);
  ASSERT_EQ(schema.at("name"), "b_json_schema_with_thinking");
  emit_text(std::string(schema.at("scripted_completion").as_string()), "stop");
  const CaseAnswer answer = whole(chat_request(user_says("hi"), &schema.at("request")));
  EXPECT_EQ(answer.reasoning,
            std::string(schema.at("expected").at("reasoning_content").as_string()));
  EXPECT_EQ(json::parse(answer.content), schema.at("expected").at("content_json"));
  const json::value& required = fault.at("subcases").at(2);
  ASSERT_EQ(required.at("name"), "c_required_tool_with_thinking");
  json::object request = chat_request(user_says("hi"), &required.at("request"));
  request["tools"] = json::parse(R"([{"type": "function", "function": {"name": "f", "parameters":
      {"type": "object", "properties": {}, "additionalProperties": false}}}])");
  // A model that would rather talk: a block is forced on it.
  api.emit("free text</think>I would rather talk.");
  const CaseAnswer forced = whole(request);
  EXPECT_EQ(forced.reasoning, "free text");
  EXPECT_EQ(forced.finish_reason,
            std::string(required.at("expected").at("finish_reason").as_string()));
  ASSERT_FALSE(forced.calls.empty());
  EXPECT_EQ(forced.calls[0].first, "f");
}

}  // namespace
}  // namespace baleen::server
