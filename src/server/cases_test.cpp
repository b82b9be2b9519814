// The fault cases of tests/cases that are about answers: each small input with its right result,
// over HTTP, whole and streamed.

#include <gtest/gtest.h>

#include "server/case_api_test.h"

namespace baleen::server {
namespace {

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

TEST_F(CasesTest, H12CharactersThatSpanStepsComeWhole) {
  const json::value fault = read_case("H12_utf8_split_across_tokens");
  std::vector<int32_t> id_of_byte(256, -1);
  for (int32_t id = 0; id < api.tokenizer->vocab_size(); ++id) {
    if (const std::string_view bytes = api.tokenizer->token_bytes(id); bytes.size() == 1) {
      id_of_byte.at(static_cast<unsigned char>(bytes[0])) = id;
    }
  }
  int num_subcases = 0;
  for (const json::value& sub : fault.at("subcases").as_array()) {
    SCOPED_TRACE(json::serialize(sub.at("name")));
    ++num_subcases;
    engine::Script script;  // a token of the case is a step of single bytes
    for (const std::string& hex : strings_of(sub.at("token_bytes_hex"))) {
      std::vector<int32_t>& step = script.steps.emplace_back();
      for (size_t i = 0; i < hex.size(); i += 2) {
        step.push_back(id_of_byte.at(std::stoul(hex.substr(i, 2), nullptr, 16)));
        ASSERT_GE(step.back(), 0) << hex;
      }
    }
    const std::string flushed(sub.at("expected_flush_at_end").as_string());
    script.end = flushed.empty() ? engine::ScriptEnd::kStop : engine::ScriptEnd::kLength;
    api.set(script);
    std::vector<std::string> expected;
    for (const std::string& emitted : strings_of(sub.at("expected_emitted_per_step"))) {
      if (!emitted.empty()) {
        expected.push_back(emitted);
      }
    }
    if (!flushed.empty()) {
      expected.back() += flushed;  // the end is known in the last step
    }
    json::object request = chat_request(user_says("go"));
    request["thinking"] = thinking(false);
    EXPECT_EQ(whole(request).content, std::string(sub.at("joined").as_string()));
    std::vector<std::string> deltas = streamed(request).deltas;
    std::erase(deltas, "");
    EXPECT_EQ(deltas, expected);
  }
  EXPECT_EQ(num_subcases, 5);
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

}  // namespace
}  // namespace baleen::server
