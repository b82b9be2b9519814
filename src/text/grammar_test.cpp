// Grammars against what they promise: every text that a random model writes under the masks is one
// of the language, and texts of the language can be written.
#include "text/grammar.h"

#include <optional>
#include <random>
#include <regex>

#include <boost/json/parse.hpp>
#include <gtest/gtest.h>

#include "text/json_text.h"
#include "text/output_stream.h"
#include "text/schema_check_test.h"
#include "text/tokenizer.h"
#include "text/tool_grammar.h"

namespace baleen::text {
namespace {

std::shared_ptr<const Tokenizer> tiny() {
  static const auto tokenizer = Tokenizer::load("src/text/testdata/tiny_tokenizer.json");
  return tokenizer;
}

/// More logits than tokens, as padded checkpoints have.
constexpr int kPadding = 37;

int64_t num_logits() {
  return tiny()->vocab_size() + kPadding;
}

const GrammarCompiler& compiler() {
  static const GrammarCompiler one(*tiny(), {tiny()->eos_id()}, num_logits());
  return one;
}

std::shared_ptr<const Grammar> compiled(const GrammarSpec& spec) {
  const auto grammar = compiler().compile(spec);
  EXPECT_TRUE(grammar.ok()) << spec.text << ": " << grammar.status().message;
  return grammar.ok() ? *grammar : nullptr;
}

std::vector<int32_t> allowed_ids(const GrammarMatcher& matcher) {
  std::vector<uint32_t> bits(static_cast<size_t>((num_logits() + 31) / 32), 0xA5A5A5A5U);
  matcher.fill_mask(bits);
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < static_cast<int32_t>(bits.size() * 32); ++id) {
    if ((bits[static_cast<size_t>(id / 32)] >> (id % 32) & 1U) != 0) {
      ids.push_back(id);
    }
  }
  return ids;
}

/// What a model of even odds writes; nothing if it does not end.
std::optional<std::vector<int32_t>> random_answer(const GrammarSpec& spec, uint64_t seed) {
  std::mt19937_64 generator(seed);
  GrammarMatcher matcher(compiled(spec));
  std::vector<int32_t> ids;
  for (int i = 0; i < 20'000; ++i) {
    const std::vector<int32_t> allowed = allowed_ids(matcher);
    if (allowed.empty()) {
      ADD_FAILURE() << "no token is allowed after \"" << tiny()->decode(ids) << '"';
      return std::nullopt;
    }
    const int32_t id = allowed[generator() % allowed.size()];
    EXPECT_LT(id, tiny()->vocab_size());
    EXPECT_TRUE(matcher.accept(id));
    if (id == tiny()->eos_id()) {
      EXPECT_TRUE(matcher.complete());
      EXPECT_TRUE(allowed_ids(matcher).empty()) << "nothing follows the end";
      return ids;
    }
    ids.push_back(id);
  }
  return std::nullopt;
}

bool can_write(const GrammarSpec& spec, const std::string& text) {
  GrammarMatcher matcher(compiled(spec));
  for (const int32_t id : tiny()->encode(text)) {
    const std::vector<int32_t> allowed = allowed_ids(matcher);
    const bool in_mask = std::find(allowed.begin(), allowed.end(), id) != allowed.end();
    EXPECT_EQ(in_mask, matcher.accept(id)) << "mask and acceptance agree";
    if (!in_mask) {
      return false;
    }
  }
  return matcher.accept(tiny()->eos_id());
}

GrammarSpec schema(std::string text) {
  return {GrammarKind::kJsonSchema, std::move(text), false};
}

const char* const kSchemas[] = {
    R"({"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["n"], "additionalProperties": false})",
    R"({"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4})",
    R"({"type": "string", "enum": ["rot", "grün", "蓝"]})",
    R"({"anyOf": [{"type": "null"}, {"type": "string", "maxLength": 5}, {"type": "boolean"}]})",
    R"({"type": "object", "properties": {"kind": {"const": "leaf"},
        "tags": {"type": "array", "maxItems": 2, "items": {"type": "string", "minLength": 1,
        "maxLength": 3}}}, "required": ["kind", "tags"], "additionalProperties": false})",
    R"({"$defs": {"node": {"type": "object", "properties": {"v": {"type": "integer", "minimum": 1,
        "maximum": 9}, "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}},
        "required": ["v", "next"], "additionalProperties": false}}, "$ref": "#/$defs/node"})"};

TEST(GrammarTest, EverySchemaAnswerIsValid) {
  for (const char* text : kSchemas) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
      const auto ids = random_answer(schema(text), seed);
      ASSERT_TRUE(ids) << text;
      const std::string answer = tiny()->decode(*ids);
      boost::json::error_code error;
      const boost::json::value value = boost::json::parse(answer, error);
      ASSERT_FALSE(error) << answer;
      EXPECT_EQ(schema_fault(boost::json::parse(text), value), "") << text << '\n' << answer;
    }
  }
}

TEST(GrammarTest, AnyObjectIsJson) {
  for (uint64_t seed = 0; seed < 5; ++seed) {
    if (const auto ids = random_answer({GrammarKind::kJsonObject, "", false}, seed)) {
      EXPECT_TRUE(boost::json::parse(tiny()->decode(*ids)).is_object());
    }
  }
  const GrammarSpec any{GrammarKind::kJsonObject, "", false};
  EXPECT_TRUE(can_write(any, R"({"a": [1, 2.5e3, "é", null], "b": {"c": true}})"));
  EXPECT_TRUE(can_write(any, "{\n  \"a\": {\n    \"b\": 1\n  }\n}"));
  EXPECT_FALSE(can_write(any, "[1]"));
  EXPECT_FALSE(can_write(any, "{\"a\": }"));
}

TEST(GrammarTest, RegexAndEbnf) {
  const GrammarSpec date{GrammarKind::kRegex, "[0-9]{4}-[0-9]{2}(-[0-9]{2})?", false};
  const std::regex plain("[0-9]{4}-[0-9]{2}(-[0-9]{2})?");
  const GrammarSpec sum{
      GrammarKind::kEbnf, "root ::= term (\" + \" term){0,3}\nterm ::= [1-9] [0-9]{0,2}\n", false};
  const std::regex sum_plain("[1-9][0-9]{0,2}( \\+ [1-9][0-9]{0,2}){0,3}");
  for (uint64_t seed = 0; seed < 30; ++seed) {
    EXPECT_TRUE(std::regex_match(tiny()->decode(*random_answer(date, seed)), plain));
    EXPECT_TRUE(std::regex_match(tiny()->decode(*random_answer(sum, seed)), sum_plain));
  }
  EXPECT_TRUE(can_write(date, "2026-11"));
  EXPECT_FALSE(can_write(date, "2026-1"));
}

TEST(GrammarTest, ControlTokensStayOut) {
  GrammarMatcher matcher(compiled(schema(R"({"type": "string"})")));
  for (const int32_t id : tiny()->encode("\"a")) {
    ASSERT_TRUE(matcher.accept(id));
  }
  for (const int32_t id : allowed_ids(matcher)) {
    EXPECT_FALSE(tiny()->is_added(id)) << tiny()->token_bytes(id);
  }
  EXPECT_FALSE(matcher.accept(*tiny()->find("</think>")));
  EXPECT_FALSE(matcher.accept(tiny()->eos_id()));
  EXPECT_FALSE(matcher.complete());
  for (const int32_t id : tiny()->encode("\"")) {
    ASSERT_TRUE(matcher.accept(id));
  }
  EXPECT_TRUE(matcher.complete());
}

TEST(GrammarTest, WhatIsNoGrammarIsRefusedWithAReason) {
  const GrammarSpec faulty[] = {
      schema("{"),
      schema(R"({"type": "strin"})"),
      schema("false"),
      {GrammarKind::kRegex, "(", false},
      {GrammarKind::kEbnf, "root ::= missing", false},
      {GrammarKind::kEbnf, "other ::= \"a\"", false},
      {GrammarKind::kStructuralTag, "{}", false},
      {GrammarKind::kStructuralTag, R"({"format": {"type": "nothing"}})", false}};
  for (const GrammarSpec& spec : faulty) {
    const auto grammar = compiler().compile(spec);
    EXPECT_FALSE(grammar.ok()) << spec.text;
    EXPECT_FALSE(grammar.status().message.empty());
    EXPECT_EQ(grammar.status().message.find(".cc:"), std::string::npos)
        << "no source lines: " << grammar.status().message;
  }
}

/// What the output parser makes of an answer.
OutputMessage parsed(const std::vector<int32_t>& ids,
                     const std::vector<ToolSpec>& tools,
                     ChatProfile profile) {
  OutputConfig config;
  config.tools = tools;
  config.profile = profile;
  OutputStream stream(tiny(), config);
  std::vector<OutputDelta> deltas;
  for (const int32_t id : ids) {
    stream.push(id, deltas);
  }
  stream.finish(EndCause::kStop, deltas);
  EXPECT_EQ(stream.unparsable_tool_blocks(), 0);
  return stream.message();
}

const std::vector<ToolSpec>& tools() {
  static const std::vector<ToolSpec> all = {
      {"look", R"({"type": "object", "properties": {"where": {"type": "string", "maxLength": 8},
          "how": {"type": "string", "enum": ["near", "far"]},
          "n": {"type": "integer", "minimum": 1, "maximum": 50}}, "required": ["where", "n"],
          "additionalProperties": false})"},
      {"stop", R"({"type": "object", "properties": {}, "additionalProperties": false})"},
      {"mix", R"({"type": "object", "properties": {"v": {"anyOf": [{"type": "string", "enum":
          ["a", "b"]}, {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}]}},
          "required": ["v"], "additionalProperties": false})"}};
  return all;
}

TEST(ToolGrammarTest, ForcedCallsParseAndFollowTheirSchemas) {
  for (const ChatProfile profile : {ChatProfile::kV4, ChatProfile::kV41}) {
    for (const bool one_call : {false, true}) {
      const ToolCallRules rules{tools(), true, one_call, std::nullopt};
      const GrammarSpec spec = tool_call_grammar(rules, profile);
      for (uint64_t seed = 0; seed < 25; ++seed) {
        const auto ids = random_answer(spec, seed);
        ASSERT_TRUE(ids);
        const OutputMessage message = parsed(*ids, tools(), profile);
        ASSERT_FALSE(message.tool_calls.empty()) << tiny()->decode(*ids);
        EXPECT_EQ(message.content, "");
        EXPECT_TRUE(!one_call || message.tool_calls.size() == 1);
        for (const ToolCall& call : message.tool_calls) {
          const auto tool = std::find_if(tools().begin(), tools().end(), [&](const ToolSpec& one) {
            return one.name == call.name;
          });
          ASSERT_NE(tool, tools().end());
          EXPECT_EQ(schema_fault(boost::json::parse(tool->parameters_json),
                                 boost::json::parse(call.arguments)),
                    "")
              << call.arguments << '\n'
              << tiny()->decode(*ids);
        }
      }
    }
  }
}

TEST(ToolGrammarTest, ABoundedStringCannotRunOverItsTag) {
  const GrammarSpec spec =
      tool_call_grammar({{tools()[0]}, true, true, std::nullopt}, ChatProfile::kV4);
  const std::string head =
      "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"look\">\n"
      "<｜DSML｜parameter name=\"where\" string=\"true\">";
  const std::string tail =
      "<｜DSML｜parameter name=\"n\" string=\"false\">7</｜DSML｜parameter>\n"
      "</｜DSML｜invoke>\n</｜DSML｜tool_calls>";
  EXPECT_TRUE(can_write(spec, head + "a <b> é</｜DSML｜parameter>\n" + tail));
  EXPECT_FALSE(can_write(spec, head + "<｜DSML｜</｜DSML｜parameter>\n" + tail));
  EXPECT_FALSE(can_write(spec, head + "123456789</｜DSML｜parameter>\n" + tail));
}

TEST(ToolGrammarTest, NoModelWritesBlanksForEver) {
  const std::string head = "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"look\">\n";
  const std::string where =
      "<｜DSML｜parameter name=\"where\" string=\"true\">a</｜DSML｜parameter>";
  const std::string number = "<｜DSML｜parameter name=\"n\" string=\"false\">7";
  const std::string tail = "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>";
  const std::string few = " \n  ";
  const std::string many(100, '\n');
  const GrammarSpec spec =
      tool_call_grammar({{tools()[0]}, true, true, std::nullopt}, ChatProfile::kV4);
  EXPECT_TRUE(can_write(spec, head + few + where + few + number + few + tail));
  EXPECT_FALSE(can_write(spec, head + many + where + "\n" + number + tail));
  EXPECT_FALSE(can_write(spec, head + where + many + number + tail));
  EXPECT_FALSE(can_write(spec, head + where + "\n" + number + many + tail));
  const GrammarSpec either = tool_call_grammar(
      {tools(), false, false, schema(R"({"type": "array", "items": {"type": "boolean"}})")},
      ChatProfile::kV4);
  EXPECT_TRUE(can_write(either, "[" + few + "true]"));
  EXPECT_FALSE(can_write(either, "[" + many + "true]"));
}

TEST(ToolGrammarTest, WithoutMustTheAnswerIsTextOrTextAndCalls) {
  const GrammarSpec spec =
      tool_call_grammar({tools(), false, false, std::nullopt}, ChatProfile::kV4);
  EXPECT_TRUE(can_write(spec, "Just text, <b> and { too."));
  const std::string call =
      "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"stop\">\n"
      "</｜DSML｜invoke>\n</｜DSML｜tool_calls>";
  EXPECT_TRUE(can_write(spec, "I stop.\n\n" + call));
  EXPECT_FALSE(can_write(spec, "I stop.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"go\">\n"));
  EXPECT_FALSE(can_write(spec, "I stop.\n\n" + call + " and more"));
}

TEST(ToolGrammarTest, CallsOrAnAnswerOfTheAskedForm) {
  const GrammarSpec spec = tool_call_grammar(
      {tools(), false, false, schema(R"({"type": "integer", "minimum": 1, "maximum": 9})")},
      ChatProfile::kV4);
  EXPECT_TRUE(can_write(spec, "7"));
  EXPECT_FALSE(can_write(spec, "seven"));
  EXPECT_TRUE(can_write(spec,
                        "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"stop\">\n"
                        "</｜DSML｜invoke>\n</｜DSML｜tool_calls>"));
}

TEST(ToolGrammarTest, AToolWithoutSchemaTakesAnyArguments) {
  const GrammarSpec spec =
      tool_call_grammar({{{"f", ""}}, true, false, std::nullopt}, ChatProfile::kV4);
  EXPECT_TRUE(
      can_write(spec,
                "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n"
                "<｜DSML｜parameter name=\"x\" string=\"true\">any</｜DSML｜parameter>\n"
                "<｜DSML｜parameter name=\"y\" string=\"false\">[1, {}]</｜DSML｜parameter>\n"
                "</｜DSML｜invoke>\n</｜DSML｜tool_calls>"));
}

}  // namespace
}  // namespace baleen::text
