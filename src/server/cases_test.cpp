// The fault cases of tests/cases at API level: each small input with its right result, over HTTP,
// whole and streamed.
#include <algorithm>
#include <optional>

#include <gtest/gtest.h>

#include "server/scripted_api_test.h"

namespace baleen::server {
namespace {

json::value read_case(const std::string& name) {
  return read_json_file("tests/cases/" + name + ".json");
}

/// A chat request of model m with these messages and the further fields of `more`.
json::object chat_request(json::value messages, const json::value* more = nullptr) {
  json::object request{{"model", "m"}, {"messages", std::move(messages)}};
  if (more != nullptr) {
    for (const auto& member : more->as_object()) {
      request[member.key()] = member.value();
    }
  }
  return request;
}

json::array user_says(const char* text) {
  return {json::object{{"role", "user"}, {"content", text}}};
}

json::object thinking(bool on) {
  return {{"type", on ? "enabled" : "disabled"}};
}

std::vector<std::string> strings_of(const json::value& list) {
  std::vector<std::string> strings;
  for (const json::value& entry : list.as_array()) {
    strings.emplace_back(entry.as_string());
  }
  return strings;
}

/// An answer in the terms of the cases, made from a whole response or joined from a stream.
struct CaseAnswer {
  std::string reasoning;
  std::string content;
  std::vector<std::pair<std::string, std::string>> calls;  // name, arguments
  std::string finish_reason;
};

class CasesTest : public testing::Test {
 protected:
  ScriptedApi api;

  void emit_text(const std::string& text, const std::string& finish) {
    // "stop" scripts carry their end token in the text.
    api.emit(text, finish == "length" ? engine::ScriptEnd::kLength : engine::ScriptEnd::kStop);
  }
  CaseAnswer whole(const json::object& request) {
    const json::value body = api.ok(kChatPath, json::serialize(request));
    CaseAnswer answer;
    if (!body.as_object().contains("choices")) {
      return answer;
    }
    const json::value& choice = body.at("choices").at(0);
    const json::object& message = choice.at("message").as_object();
    const auto text_of = [&](const char* name) {
      const json::value& value = message.at(name);
      return value.is_null() ? std::string() : std::string(value.as_string());
    };
    answer.reasoning = text_of("reasoning_content");
    answer.content = text_of("content");
    answer.finish_reason = std::string(choice.at("finish_reason").as_string());
    if (const json::value* calls = message.if_contains("tool_calls")) {
      for (const json::value& call : calls->as_array()) {
        answer.calls.emplace_back(call.at("function").at("name").as_string(),
                                  call.at("function").at("arguments").as_string());
      }
    }
    return answer;
  }
  JoinedChoice streamed(json::object request) {
    request["stream"] = true;
    const StreamedEvents events = api.stream(kChatPath, json::serialize(request));
    EXPECT_EQ(events.status, 200) << events.error_body;
    EXPECT_TRUE(events.done);
    EXPECT_TRUE(events.after_done.empty());
    return join_choice(events.chunks);
  }
};

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

TEST_F(CasesTest, H08CompletionsBecomeMessages) {
  const json::value fault = read_case("H08_completion_to_message");
  json::object request = chat_request(user_says("go"));
  request["thinking"] = thinking(true);
  request["tools"] = json::parse(R"([{"type": "function", "function": {"name": "look"}},
                                     {"type": "function", "function": {"name": "ping"}}])");
  for (const json::value& sub : fault.at("subcases").as_array()) {
    SCOPED_TRACE(json::serialize(sub.at("name")));
    const std::string finish(sub.at("finish").as_string());
    emit_text(std::string(sub.at("text").as_string()), finish);
    const CaseAnswer answer = whole(request);
    const JoinedChoice joined = streamed(request);
    const json::object& expected = sub.at("expected").as_object();
    const auto text_of = [&](const char* name) {
      const json::value& value = expected.at(name);
      return value.is_null() ? std::string() : std::string(value.as_string());
    };
    EXPECT_EQ(answer.reasoning, text_of("reasoning_content"));
    if (expected.contains("content")) {
      EXPECT_EQ(answer.content, text_of("content"));
      EXPECT_EQ(joined.content, answer.content);
    } else {
      for (const std::string& text : strings_of(expected.at("content_must_not_contain"))) {
        EXPECT_EQ(answer.content.find(text), std::string::npos);
        EXPECT_EQ(joined.content.find(text), std::string::npos);
      }
      for (const std::string& text : strings_of(expected.at("content_contains"))) {
        EXPECT_NE(answer.content.find(text), std::string::npos);
        EXPECT_NE(joined.content.find(text), std::string::npos);
      }
    }
    const json::value* calls = expected.if_contains("tool_calls");
    const json::array none;
    const json::array& expected_calls = calls != nullptr ? calls->as_array() : none;
    ASSERT_EQ(answer.calls.size(), expected_calls.size());
    ASSERT_EQ(joined.calls.size(), expected_calls.size());
    for (size_t i = 0; i < expected_calls.size(); ++i) {
      EXPECT_EQ(answer.calls[i].first, std::string(expected_calls[i].at("name").as_string()));
      EXPECT_EQ(json::parse(answer.calls[i].second), expected_calls[i].at("arguments_json"));
      EXPECT_EQ(joined.calls[i].name, answer.calls[i].first);
      EXPECT_EQ(json::parse(joined.calls[i].arguments), expected_calls[i].at("arguments_json"));
    }
    const std::string finish_reason = expected.contains("finish_reason")
                                          ? std::string(expected.at("finish_reason").as_string())
                                          : finish;
    EXPECT_EQ(answer.finish_reason, finish_reason);
    EXPECT_EQ(joined.finish_reason, finish_reason);
    for (const std::string& text :
         strings_of(fault.at("expected_for_all").at("text_fields_never_contain"))) {
      for (const std::string& field :
           {answer.reasoning, answer.content, joined.reasoning, joined.content}) {
        EXPECT_EQ(field.find(text), std::string::npos) << field;
      }
    }
  }
}

/// `text` cut into pieces of `num_characters`; control tokens stay whole, as a model emits them.
std::vector<std::string> cut(const std::string& text, size_t num_characters) {
  std::vector<std::string> pieces;
  size_t count = 0;
  for (const char c : text) {
    const bool begins = (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
    if (begins && count++ % num_characters == 0) {
      pieces.emplace_back();
    }
    pieces.back() += c;
  }
  return pieces;
}

class SplitCaseTest : public CasesTest {
 protected:
  const json::value fault = read_case("H09_streamed_tool_call_every_split");
  const std::string text{fault.at("input").at("completion_text").as_string()};
  const json::object& expected = fault.at("expected").at("for_every_plan").as_object();

  json::object request() {
    json::object out = chat_request(user_says("list"));
    out["thinking"] = thinking(true);
    out["tools"] = json::parse(
        R"([{"type": "function", "function": {"name": "bash", "parameters": {"type": "object",
            "properties": {"command": {"type": "string"}, "timeout": {"type": "integer"}}}}}])");
    return out;
  }
  void check(const JoinedChoice& joined) {
    EXPECT_EQ(joined.reasoning, std::string(expected.at("joined_reasoning").as_string()));
    EXPECT_EQ(joined.content, std::string(expected.at("joined_content").as_string()));
    ASSERT_EQ(joined.calls.size(), 1U);
    EXPECT_EQ(joined.calls[0].name, "bash");
    EXPECT_EQ(json::parse(joined.calls[0].arguments),
              expected.at("tool_calls").at(0).at("joined_arguments_json"));
    EXPECT_EQ(joined.finish_reason, "tool_calls");
    for (const std::string& never : strings_of(expected.at("no_delta_contains"))) {
      for (const std::string& delta : joined.deltas) {
        EXPECT_EQ(delta.find(never), std::string::npos) << delta;
      }
    }
  }
};

TEST_F(SplitCaseTest, H09PiecesOfEverySizeGiveTheSameCall) {
  for (size_t num_characters = 1; num_characters <= 9; ++num_characters) {
    SCOPED_TRACE(num_characters);
    api.emit_pieces(cut(text, num_characters));
    const JoinedChoice joined = streamed(request());
    check(joined);
    if (num_characters == 1) {
      EXPECT_GE(joined.calls.at(0).num_argument_deltas,
                fault.at("expected").at("for_size_1").at("argument_deltas_at_least").as_int64());
    }
  }
}

TEST_F(SplitCaseTest, H09OneStepAndOneTokenAtATimeGiveTheSameCall) {
  api.emit_pieces({text});
  check(streamed(request()));
  api.emit(text);
  check(streamed(request()));
}

TEST_F(SplitCaseTest, H09EveryCutIntoTwoStepsGivesTheSameCall) {
  const std::vector<std::string> characters = cut(text, 1);
  std::string first;
  for (size_t i = 0; i + 1 < characters.size(); ++i) {
    first += characters[i];
    SCOPED_TRACE(first);
    api.emit_pieces({first, text.substr(first.size())});
    check(streamed(request()));
    if (HasFailure()) {
      break;
    }
  }
}

TEST_F(CasesTest, H10WrappersAndTypedValues) {
  const json::value fault = read_case("H10_wrapped_and_reserved_parameters");
  for (const json::value& sub : fault.at("subcases").as_array()) {
    SCOPED_TRACE(json::serialize(sub.at("name")));
    json::object request = chat_request(user_says("go"));
    request["thinking"] = thinking(true);
    request["tools"] = sub.at("tools");
    api.emit(std::string(sub.at("completion_text").as_string()));
    const CaseAnswer answer = whole(request);
    ASSERT_EQ(answer.calls.size(), 1U);
    EXPECT_EQ(json::parse(answer.calls[0].second), sub.at("expected_arguments_json"));
    const JoinedChoice joined = streamed(request);
    ASSERT_EQ(joined.calls.size(), 1U);
    EXPECT_EQ(json::parse(joined.calls[0].arguments), sub.at("expected_arguments_json"));
  }
}

TEST_F(CasesTest, H11BrokenMarkupNeverFailsTheRequest) {
  const json::value fault = read_case("H11_malformed_tool_markup");
  json::object request = chat_request(user_says("go"));
  request["thinking"] = thinking(true);
  request["tools"] = fault.at("input").at("tools");
  const auto num_unparsable = [&] {
    const std::string page = api.metrics.expose();
    const std::string name = "\nbaleen:unparsable_tool_blocks_total ";
    const size_t begin = page.find(name);
    EXPECT_NE(begin, std::string::npos);
    return begin == std::string::npos ? 0 : std::stoi(page.substr(begin + name.size()));
  };
  for (const json::value& completion : fault.at("input").at("completions").as_array()) {
    const std::string name(completion.at("name").as_string());
    SCOPED_TRACE(name);
    const std::string finish(completion.at("finish").as_string());
    const int before = num_unparsable();
    emit_text(std::string(completion.at("text").as_string()), finish);
    const CaseAnswer answer = whole(request);
    EXPECT_TRUE(answer.content.starts_with("Sure."));
    EXPECT_EQ(answer.content.find("｜DSML｜"), std::string::npos);
    EXPECT_EQ(num_unparsable() - before, name[0] == 'e' ? 0 : 1);
    const JoinedChoice joined = streamed(request);
    EXPECT_EQ(joined.content, answer.content);
    EXPECT_EQ(joined.finish_reason, answer.finish_reason);
    if (name[0] == 'e') {
      ASSERT_EQ(answer.calls.size(), 1U);
      EXPECT_EQ(answer.calls[0].first, "stock_add");
      const json::value arguments = json::parse(answer.calls[0].second);
      EXPECT_TRUE(arguments == json::value({{"shelf", "a"}}) ||
                  arguments == json::value({{"shelf", "b"}}));
    } else {
      EXPECT_TRUE(answer.calls.empty());
      EXPECT_EQ(answer.finish_reason, finish);
    }
  }
}

TEST_F(CasesTest, H13StopStringsActOnTheVisibleAnswer) {
  const json::value fault = read_case("H13_stop_sequence_and_reasoning");
  for (const json::value& sub : fault.at("subcases").as_array()) {
    SCOPED_TRACE(json::serialize(sub.at("name")));
    if (const json::value* pieces = sub.as_object().if_contains("scripted_pieces")) {
      api.emit_pieces(strings_of(*pieces));
    } else {
      api.emit(std::string(sub.at("scripted_completion").as_string()));
    }
    const json::object request = chat_request(user_says("go"), &sub.at("request"));
    const CaseAnswer answer = whole(request);
    const JoinedChoice joined = streamed(request);
    const json::object& expected = sub.at("expected").as_object();
    EXPECT_EQ(answer.content, std::string(expected.at("content").as_string()));
    EXPECT_EQ(joined.content, answer.content);
    EXPECT_EQ(answer.finish_reason, std::string(expected.at("finish_reason").as_string()));
    if (const json::value* reasoning = expected.if_contains("reasoning_content")) {
      EXPECT_EQ(answer.reasoning,
                reasoning->is_null() ? std::string() : std::string(reasoning->as_string()));
      EXPECT_EQ(joined.reasoning, answer.reasoning);
    }
    if (const json::value* never = expected.if_contains("no_delta_contains")) {
      for (const std::string& text : strings_of(*never)) {
        for (const std::string& delta : joined.deltas) {
          EXPECT_EQ(delta.find(text), std::string::npos);
        }
      }
    }
  }
}

TEST_F(CasesTest, H13StopStringsMayActOnReasoningWhenAsked) {
  json::object request = chat_request(user_says("go"));
  request["thinking"] = thinking(true);
  request["stop"] = "=";
  request["stop_in_reasoning"] = true;
  api.emit("36*17 = 612, fine.</think>The product = 612.");
  const CaseAnswer answer = whole(request);
  EXPECT_EQ(answer.content + answer.reasoning, "36*17 ");
  EXPECT_EQ(answer.finish_reason, "stop");
}

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
