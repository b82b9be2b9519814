#pragma once
// For tests: reads the case files below tests/cases (paths are relative to the top of the
// checkout).
//
//   JsonValue file = read_case("H02_tool_results_out_of_order");
//   std::vector<ChatMessage> messages = case_messages(at(at(file, "input"), "messages"));

#include <fstream>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_message.h"
#include "text/json_text.h"
#include "text/output_stream.h"
#include "text/thinking.h"

namespace baleen::text {

inline JsonValue read_case(const std::string& name) {
  const std::string path = "tests/cases/" + name + ".json";
  std::ifstream stream(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  std::string error;
  auto value = parse_json(text, &error);
  if (!value) {
    throw std::runtime_error(path + ": " + error);
  }
  return std::move(*value);
}

inline const JsonValue& at(const JsonValue& object, std::string_view key) {
  const JsonValue* found = object.find(key);
  if (found == nullptr) {
    throw std::runtime_error("no key " + std::string(key));
  }
  return *found;
}

inline std::string text_at(const JsonValue& object, std::string_view key) {
  const JsonValue* found = object.find(key);
  return found == nullptr || !found->is_string() ? std::string() : found->text;
}

inline bool flag_at(const JsonValue& object, std::string_view key) {
  const JsonValue* found = object.find(key);
  return found != nullptr && found->text == "true";
}

/// Messages in the form of the chat completions API.
inline std::vector<ChatMessage> case_messages(const JsonValue& list) {
  std::vector<ChatMessage> messages;
  for (const JsonValue& item : list.items) {
    ChatMessage message;
    message.role = parse_role(text_at(item, "role")).value();
    message.content = text_at(item, "content");
    message.reasoning_content = text_at(item, "reasoning_content");
    message.tool_call_id = text_at(item, "tool_call_id");
    if (const JsonValue* calls = item.find("tool_calls")) {
      for (const JsonValue& call : calls->items) {
        const JsonValue& function = at(call, "function");
        message.tool_calls.push_back(
            {text_at(call, "id"), text_at(function, "name"), text_at(function, "arguments")});
      }
    }
    messages.push_back(std::move(message));
  }
  return messages;
}

/// The functions of `object`'s tools as JSON text; none when it has no tools.
inline std::vector<std::string> case_functions(const JsonValue& object) {
  std::vector<std::string> functions;
  if (const JsonValue* tools = object.find("tools")) {
    for (const JsonValue& tool : tools->items) {
      functions.push_back(json_text(at(tool, "function")));
    }
  }
  return functions;
}

inline std::vector<ToolSpec> case_tools(const JsonValue& object) {
  std::vector<ToolSpec> specs;
  if (const JsonValue* tools = object.find("tools")) {
    for (const JsonValue& tool : tools->items) {
      const JsonValue& function = at(tool, "function");
      specs.push_back({text_at(function, "name"), json_text(at(function, "parameters"))});
    }
  }
  return specs;
}

inline EffortValue effort_value(const JsonValue& value) {
  switch (value.kind) {
    case JsonValue::Kind::kString:
      return value.text;
    case JsonValue::Kind::kInteger:
      return int64_t{std::stoll(value.text)};
    case JsonValue::Kind::kFloat:
      return std::stod(value.text);
    case JsonValue::Kind::kBool:
      return value.text == "true";
    default:
      return std::monostate();
  }
}

/// What a request, in the form of any dialect, says about thinking.
inline ThinkingFields thinking_fields(const JsonValue& request) {
  ThinkingFields fields;
  if (const JsonValue* thinking = request.find("thinking")) {
    fields.thinking_type = text_at(*thinking, "type");
  }
  if (const JsonValue* kwargs = request.find("chat_template_kwargs")) {
    if (kwargs->find("thinking") != nullptr) {
      fields.kwargs_thinking = flag_at(*kwargs, "thinking");
    }
    if (kwargs->find("enable_thinking") != nullptr) {
      fields.kwargs_enable_thinking = flag_at(*kwargs, "enable_thinking");
    }
  }
  if (const JsonValue* effort = request.find("reasoning_effort")) {
    fields.efforts.push_back({"reasoning_effort", effort_value(*effort)});
  }
  if (const JsonValue* reasoning = request.find("reasoning")) {
    fields.efforts.push_back({"reasoning.effort", effort_value(at(*reasoning, "effort"))});
  }
  return fields;
}

}  // namespace baleen::text
