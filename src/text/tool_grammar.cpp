#include "text/tool_grammar.h"

#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "text/chat_markup.h"
#include "text/json_text.h"

namespace baleen::text {
namespace {

// Blanks and line ends between two tags of a call, and inside its JSON values. The format has one;
// a model that never learned to call would otherwise write nothing else.
constexpr int kMaxCallWhitespace = 8;
// As in answers without calls: enough for indented JSON.
constexpr int kMaxAnswerWhitespace = 32;

JsonValue json_text_value(std::string text) {
  JsonValue value;
  value.kind = JsonValue::Kind::kString;
  value.text = std::move(text);
  return value;
}

/// A raw string argument ends where its closing tag begins. XGrammar knows that of an unbounded
/// string, but would let a bounded one run over its own tag.
void keep_tags_out(JsonValue& schema) {
  const JsonValue* type = schema.find("type");
  const bool is_text = type != nullptr && type->is_string() && type->text == "string";
  if (!is_text || schema.find("pattern") != nullptr || schema.find("enum") != nullptr ||
      schema.find("const") != nullptr || schema.find("format") != nullptr) {
    return;
  }
  const JsonValue* least = schema.find("minLength");
  const JsonValue* most = schema.find("maxLength");
  if (least == nullptr && most == nullptr) {
    return;
  }
  const std::string pattern = fmt::format(
      "[^｜]{{{},{}}}", least != nullptr ? least->text : "0", most != nullptr ? most->text : "");
  std::erase_if(schema.members, [](const JsonMember& member) {
    return member.key == "minLength" || member.key == "maxLength";
  });
  schema.members.push_back({"pattern", json_text_value(pattern)});
}

/// The schema of a tool's arguments as the grammar takes it: always an object.
std::string argument_schema(const ToolSpec& tool) {
  constexpr std::string_view kAny = R"({"type": "object", "additionalProperties": true})";
  std::optional<JsonValue> schema = parse_json(tool.parameters_json);
  if (!schema || !schema->is_object() || schema->members.empty()) {
    return std::string(kAny);
  }
  if (schema->find("type") == nullptr) {
    schema->members.insert(schema->members.begin(), {"type", json_text_value("object")});
  }
  for (JsonMember& member : schema->members) {
    if (member.key == "properties") {
      for (JsonMember& property : member.value.members) {
        keep_tags_out(property.value);
      }
    }
  }
  return json_text(*schema);
}

std::string invoke_tag(const ToolSpec& tool, ChatProfile profile) {
  const MarkupTags& tags = markup_tags(profile);
  return fmt::format(
      R"({{"type": "tag", "begin": {}, "content": {{"type": "json_schema", "style": "{}", )"
      R"("max_whitespace_cnt": {}, "json_schema": {}}}, "end": {}}})",
      json_string(fmt::format("{} name=\"{}\">\n", tags.invoke_begin, tool.name)),
      profile == ChatProfile::kV41 ? "deepseek_v4_1_xml" : "deepseek_xml",
      kMaxCallWhitespace,
      argument_schema(tool),
      json_string(tags.invoke_end + ">\n"));
}

/// A grammar as a part of a structural tag.
std::string content_format(const GrammarSpec& spec) {
  switch (spec.kind) {
    case GrammarKind::kJsonObject:
    case GrammarKind::kJsonSchema:
      return fmt::format(
          R"({{"type": "json_schema", "max_whitespace_cnt": {}, "json_schema": {}}})",
          kMaxAnswerWhitespace,
          spec.kind == GrammarKind::kJsonObject ? R"({"type": "object"})" : spec.text);
    case GrammarKind::kRegex:
      return fmt::format(R"({{"type": "regex", "pattern": {}}})", json_string(spec.text));
    case GrammarKind::kEbnf:
      return fmt::format(R"({{"type": "grammar", "grammar": {}}})", json_string(spec.text));
    case GrammarKind::kStructuralTag: {
      const std::optional<JsonValue> tag = parse_json(spec.text);
      const JsonValue* format = tag ? tag->find("format") : nullptr;
      return format != nullptr ? json_text(*format) : "{}";
    }
  }
  return "{}";
}

}  // namespace

GrammarSpec tool_call_grammar(const ToolCallRules& rules, ChatProfile profile) {
  const MarkupTags& tags = markup_tags(profile);
  std::string invokes;
  for (const ToolSpec& tool : rules.tools) {
    invokes += (invokes.empty() ? "" : ", ") + invoke_tag(tool, profile);
  }
  const std::string calls = fmt::format(
      R"({{"type": "tags_with_separator", "tags": [{}], "separator": "", "at_least_one": true, )"
      R"("stop_after_first": {}}})",
      invokes,
      rules.one_call);
  const std::string begin = tags.block_begin + ">\n";
  const std::string end = tags.block_end + ">";
  const std::string block = fmt::format(
      R"({{"type": "sequence", "elements": [{{"type": "const_string", "value": {}}}, {}, )"
      R"({{"type": "const_string", "value": {}}}]}})",
      json_string("\n\n" + begin),
      calls,
      json_string(end));
  std::string format = block;
  if (rules.otherwise) {
    format = fmt::format(
        R"({{"type": "or", "elements": [{}, {}]}})", block, content_format(*rules.otherwise));
  } else if (!rules.must_call) {
    format = fmt::format(
        R"({{"type": "triggered_tags", "triggers": [{}], "tags": [{{"type": "tag", "begin": {}, )"
        R"("content": {}, "end": {}}}], "stop_after_first": true}})",
        json_string(tags.block_begin),
        json_string(begin),
        calls,
        json_string(end));
  }
  return {GrammarKind::kStructuralTag,
          fmt::format(R"({{"type": "structural_tag", "format": {}}})", format),
          true};
}

}  // namespace baleen::text
