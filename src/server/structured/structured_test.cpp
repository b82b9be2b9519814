// Structured answers over HTTP: formats, tool choices and strict tools in every dialect, on scripts
// that obey and on a random model that would never do so by itself.
#include <regex>

#include <gtest/gtest.h>

#include "server/scripted_api_test.h"
#include "text/schema_check_test.h"

namespace baleen::server {
namespace {

constexpr const char* kSchema =
    R"({"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99},
        "s": {"type": "string", "maxLength": 4}}, "required": ["n", "s"],
        "additionalProperties": false})";
constexpr const char* kTools =
    R"("tools": [{"type": "function", "function": {"name": "look", "parameters":
        {"type": "object", "properties": {"where": {"type": "string", "enum": ["here", "there"]},
         "n": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["where", "n"],
         "additionalProperties": false}}},
       {"type": "function", "function": {"name": "stop", "parameters": {"type": "object",
         "properties": {}, "additionalProperties": false}}}])";

std::string structured_chat(const std::string& fields) {
  return R"({"model": "m", "messages": [{"role": "user", "content": "hi"}], )" + fields + "}";
}

void write_at_random(ScriptedApi& api, uint64_t seed) {
  engine::Script script;
  script.random_seed = seed;
  api.set(script);
}

std::string content_of(const json::value& body) {
  const json::value& content = body.at("choices").at(0).at("message").at("content");
  return content.is_null() ? "" : std::string(content.as_string());
}

std::string schema_format() {
  return std::string(R"("response_format": {"type": "json_schema", "json_schema": {"name": "r",
                         "schema": )") +
         kSchema + "}}";
}

TEST(StructuredTest, ARandomModelAnswersTheSchemaInEveryDialect) {
  ScriptedApi api;
  const json::value schema = json::parse(kSchema);
  const std::string format =
      std::string(R"({"type": "json_schema", "name": "r", "schema": )") + kSchema + "}";
  for (uint64_t seed = 0; seed < 10; ++seed) {
    write_at_random(api, seed);
    std::vector<std::string> texts;
    texts.push_back(content_of(api.ok(kChatPath, structured_chat(schema_format()))));
    texts.push_back(
        join_choice(
            api.stream(kChatPath, structured_chat(schema_format() + R"(, "stream": true)")).chunks)
            .content);
    texts.emplace_back(
        api.ok("/v1/messages",
               R"({"model": "m", "max_tokens": 3000, "messages": [{"role": "user", "content": "hi"}],
                   "output_config": {"format": {"type": "json_schema", "schema": )" +
                   std::string(kSchema) + "}}}")
            .at("content")
            .at(0)
            .at("text")
            .as_string());
    texts.emplace_back(
        api.ok("/v1/responses",
               R"({"model": "m", "input": "hi", "text": {"format": )" + format + "}}")
            .at("output")
            .at(0)
            .at("content")
            .at(0)
            .at("text")
            .as_string());
    json::object native{{"text", "hi"}};
    native["sampling_params"] = json::object{{"json_schema", kSchema}, {"max_new_tokens", 3000}};
    texts.emplace_back(api.ok("/generate", json::serialize(native)).at("text").as_string());
    for (const std::string& text : texts) {
      EXPECT_EQ(text::schema_fault(schema, json::parse(text)), "") << text;
    }
  }
}

TEST(StructuredTest, TheSchemaIsShownToTheModel) {
  ScriptedApi api;
  api.emit(R"({"n": 1, "s": ""})");
  api.ok(kChatPath, structured_chat(schema_format()));
  EXPECT_NE(api.last_prompt_text().find("## Response Format:\n\nYou MUST strictly adhere to the "
                                        "following schema to reply:\n{\"type\": \"object\", "),
            std::string::npos)
      << api.last_prompt_text();
}

TEST(StructuredTest, TheGrammarBeginsBehindTheReasoning) {
  ScriptedApi api;
  api.emit("maybe {\"n\": \"x\"}? no.</think>{\"n\": 5, \"s\": \"\"}");
  const json::value body =
      api.ok(kChatPath, structured_chat(R"("thinking": {"type": "enabled"}, )" + schema_format()));
  EXPECT_EQ(body.at("choices").at(0).at("message").at("reasoning_content"),
            "maybe {\"n\": \"x\"}? no.");
  EXPECT_EQ(content_of(body), R"({"n": 5, "s": ""})");
  // A model that would end, or call a tool, instead of answering.
  for (uint64_t seed = 0; seed < 5; ++seed) {
    write_at_random(api, seed);
    const json::value forced =
        api.ok(kChatPath,
               structured_chat(R"("thinking": {"type": "enabled", "budget_tokens": 20}, )" +
                               schema_format()));
    EXPECT_EQ(text::schema_fault(json::parse(kSchema), json::parse(content_of(forced))), "");
    EXPECT_EQ(forced.at("choices").at(0).at("finish_reason"), "stop");
  }
}

TEST(StructuredTest, RegexEbnfObjectsAndTags) {
  ScriptedApi api;
  for (uint64_t seed = 0; seed < 5; ++seed) {
    write_at_random(api, seed);
    const std::string date =
        content_of(api.ok(kChatPath, structured_chat(R"("regex": "[0-9]{4}-[0-9]{2}")")));
    EXPECT_TRUE(std::regex_match(date, std::regex("[0-9]{4}-[0-9]{2}"))) << date;
    const std::string word =
        content_of(api.ok(kChatPath, structured_chat(R"("ebnf": "root ::= \"yes\" | \"no\"")")));
    EXPECT_TRUE(word == "yes" || word == "no") << word;
    const json::value raw = api.ok(
        kTextPath, R"({"model": "m", "prompt": "q", "max_tokens": 50, "regex": "(ab){1,3}"})");
    EXPECT_TRUE(std::regex_match(std::string(raw.at("choices").at(0).at("text").as_string()),
                                 std::regex("(ab){1,3}")));
    const std::string tagged = content_of(
        api.ok(kChatPath,
               structured_chat(
                   R"("response_format": {"type": "structural_tag", "format": {"type": "sequence",
             "elements": [{"type": "const_string", "value": "<n>"}, {"type": "regex",
             "pattern": "[0-9]{1,3}"}, {"type": "const_string", "value": "</n>"}]}})")));
    EXPECT_TRUE(std::regex_match(tagged, std::regex("<n>[0-9]{1,3}</n>"))) << tagged;
  }
  api.emit(R"({"a": [1, 2]})");
  EXPECT_EQ(content_of(api.ok(kChatPath,
                              structured_chat(R"("response_format": {"type": "json_object"})"))),
            R"({"a": [1, 2]})");
}

TEST(StructuredTest, SeveralChoicesHaveAGrammarEach) {
  ScriptedApi api;
  write_at_random(api, 3);
  const json::value body = api.ok(kChatPath, structured_chat(R"("n": 4, "regex": "[a-c]{2,6}")"));
  for (const json::value& choice : body.at("choices").as_array()) {
    EXPECT_TRUE(std::regex_match(std::string(choice.at("message").at("content").as_string()),
                                 std::regex("[a-c]{2,6}")));
  }
}

TEST(StructuredTest, DraftsDoNotSlipPastTheMask) {
  ScriptedApi api;
  // Steps of several tokens, as accepted drafts give them; the second half is not in the language.
  api.emit_pieces({"abab", "xyz"});
  const json::value body =
      api.ok(kTextPath, R"({"model": "m", "prompt": "q", "max_tokens": 50, "regex": "(ab){2}"})");
  EXPECT_EQ(body.at("choices").at(0).at("text"), "abab");
  EXPECT_EQ(body.at("choices").at(0).at("finish_reason"), "stop");
}

struct CallCheck {
  int num_calls = 0;
  std::string finish_reason;
};

CallCheck check_calls(const json::value& body) {
  CallCheck out;
  const json::value& choice = body.at("choices").at(0);
  out.finish_reason = std::string(choice.at("finish_reason").as_string());
  const json::object& message = choice.at("message").as_object();
  if (const json::value* calls = message.if_contains("tool_calls")) {
    const json::value tools = json::parse("{" + std::string(kTools) + "}");
    for (const json::value& call : calls->as_array()) {
      const json::object& function = call.at("function").as_object();
      const size_t index = function.at("name") == "look" ? 0 : 1;
      EXPECT_EQ(text::schema_fault(tools.at("tools").at(index).at("function").at("parameters"),
                                   json::parse(function.at("arguments").as_string())),
                "")
          << call;
      ++out.num_calls;
    }
  }
  return out;
}

TEST(StructuredTest, RequiredAndNamedCallsAreForcedInBothModes) {
  ScriptedApi api;
  for (const char* mode : {R"("thinking": {"type": "disabled"})",
                           R"("thinking": {"type": "enabled", "budget_tokens": 15})"}) {
    for (uint64_t seed = 0; seed < 8; ++seed) {
      write_at_random(api, seed);
      const std::string fields = std::string(mode) + ", " + kTools;
      const CallCheck required = check_calls(
          api.ok(kChatPath, structured_chat(fields + R"(, "tool_choice": "required")")));
      EXPECT_GE(required.num_calls, 1);
      EXPECT_EQ(required.finish_reason, "tool_calls");
      const CallCheck one = check_calls(
          api.ok(kChatPath,
                 structured_chat(fields +
                                 R"(, "tool_choice": "required", "parallel_tool_calls": false)")));
      EXPECT_EQ(one.num_calls, 1);
      const json::value named = api.ok(
          kChatPath,
          structured_chat(
              fields + R"(, "tool_choice": {"type": "function", "function": {"name": "look"}})"));
      EXPECT_EQ(check_calls(named).num_calls, 1);
      EXPECT_EQ(
          named.at("choices").at(0).at("message").at("tool_calls").at(0).at("function").at("name"),
          "look");
    }
  }
}

TEST(StructuredTest, TheOtherDialectsForceCallsToo) {
  ScriptedApi api;
  const std::string schema =
      R"({"type": "object", "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 9}},
          "required": ["n"], "additionalProperties": false})";
  for (uint64_t seed = 0; seed < 5; ++seed) {
    write_at_random(api, seed);
    const std::string tools = R"("tools": [{"name": "f", "input_schema": )" + schema + "}]";
    const std::string head =
        R"({"model": "m", "max_tokens": 3000, "messages": [{"role": "user", "content": "hi"}], )";
    for (const char* choice : {R"({"type": "any"})", R"({"type": "tool", "name": "f"})"}) {
      const json::value body =
          api.ok("/v1/messages", head + tools + R"(, "tool_choice": )" + choice + "}");
      EXPECT_EQ(body.at("stop_reason"), "tool_use");
      EXPECT_EQ(text::schema_fault(json::parse(schema), body.at("content").at(0).at("input")), "");
    }
    const json::value response =
        api.ok("/v1/responses",
               R"({"model": "m", "input": "hi", "tool_choice": {"type": "function", "name": "f"},
            "tools": [{"type": "function", "name": "f", "parameters": )" +
                   schema + "}]}");
    EXPECT_EQ(response.at("output").at(0).at("type"), "function_call");
    EXPECT_EQ(
        text::schema_fault(json::parse(schema),
                           json::parse(response.at("output").at(0).at("arguments").as_string())),
        "");
  }
}

TEST(StructuredTest, StrictToolsHoldOnlyThemselves) {
  ScriptedApi api;
  const std::string strict = std::regex_replace(std::string(kTools),
                                                std::regex("\"name\": \"look\","),
                                                "\"name\": \"look\", \"strict\": true,");
  api.emit("Just text.");
  EXPECT_EQ(content_of(api.ok(kChatPath, structured_chat(strict))), "Just text.");
  api.emit(
      "Now.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"look\">\n"
      "<｜DSML｜parameter name=\"where\" string=\"true\">here</｜DSML｜parameter>\n"
      "<｜DSML｜parameter name=\"n\" string=\"false\">7</｜DSML｜parameter>\n"
      "</｜DSML｜invoke>\n</｜DSML｜tool_calls>");
  const CallCheck checked = check_calls(api.ok(kChatPath, structured_chat(strict)));
  EXPECT_EQ(checked.num_calls, 1);
  EXPECT_EQ(checked.finish_reason, "tool_calls");
}

TEST(StructuredTest, CallsOrTheFormat) {
  ScriptedApi api;
  const std::string strict = std::regex_replace(
      std::string(kTools), std::regex("\"parameters\":"), "\"strict\": true, \"parameters\":");
  int num_with_calls = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    write_at_random(api, seed);
    const json::value body = api.ok(kChatPath, structured_chat(strict + ", " + schema_format()));
    if (check_calls(body).num_calls > 0) {
      ++num_with_calls;
    } else {
      EXPECT_EQ(text::schema_fault(json::parse(kSchema), json::parse(content_of(body))), "");
    }
  }
  EXPECT_GT(num_with_calls, 0);
  EXPECT_LT(num_with_calls, 20);
}

TEST(StructuredTest, FaultsNameTheirField) {
  ScriptedApi api;
  const auto refused = [&](const std::string& fields, const std::string& param) {
    const http::Response answer = api.post(kChatPath, structured_chat(fields));
    EXPECT_EQ(answer.status, 400) << answer.body;
    EXPECT_EQ(json::parse(answer.body).at("error").at("param"), json::value(param)) << answer.body;
  };
  refused(R"("regex": "(")", "regex");
  refused(R"("ebnf": "root ::= missing")", "ebnf");
  refused(R"("regex": "a", "ebnf": "root ::= \"a\"")", "ebnf");
  refused(R"("regex": "a", "response_format": {"type": "json_object"})", "regex");
  refused(R"("response_format": {"type": "json_schema"})", "response_format.json_schema");
  refused(R"("response_format": {"type": "json_schema", "json_schema": {"name": "r"}})",
          "response_format.json_schema.schema");
  refused(R"("response_format": {"type": "json_schema", "json_schema": {"schema": 5}})",
          "response_format.json_schema.schema");
  refused(R"("response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "x"}}})",
          "response_format.json_schema.schema");
  refused(R"("response_format": {"type": "xml"})", "response_format.type");
  refused(R"("response_format": {"type": "structural_tag", "format": {"type": "x"}})",
          "response_format.format");
  refused(R"("tool_choice": "required")", "tool_choice");
  refused(R"("tool_choice": "sometimes", )" + std::string(kTools), "tool_choice");
  refused(
      R"("tool_choice": {"type": "function", "function": {"name": "go"}}, )" + std::string(kTools),
      "tool_choice");
  refused(R"("regex": "a", "min_tokens": 5)", "min_tokens");
  refused(R"("regex": "a", "ignore_eos": true)", "ignore_eos");
  EXPECT_TRUE(api.idle_soon());
}

}  // namespace
}  // namespace baleen::server
