#include "server/tool_declarations.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "server/echo.h"

namespace baleen::server {

void claim_tool_name(FieldReader& tool,
                     const std::string& name,
                     size_t max_bytes,
                     std::set<std::string>& names) {
  const bool is_plain = std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  });
  if (name.empty() || name.size() > max_bytes || !is_plain) {
    tool.fail("name", fmt::format("must be 1 to {} letters, digits, '_', '-' or '.'", max_bytes));
  } else if (!names.insert(name).second) {
    tool.fail("name", fmt::format("\"{}\" is declared twice", name));
  }
}

void read_function(FieldReader& function,
                   const text::JsonValue* raw,
                   std::set<std::string>& names,
                   ToolFields& tools) {
  function.require("name");
  const std::string name = function.string("name").value_or("");
  function.string("description");
  const bool has_parameters = function.object("parameters") != nullptr;
  const bool strict = function.boolean("strict").value_or(false);
  function.finish();
  claim_tool_name(function, name, kMaxToolNameBytes, names);
  if (!function.ok() || raw == nullptr) {
    return;
  }
  const text::JsonValue* parameters = has_parameters ? raw->find("parameters") : nullptr;
  tools.functions.push_back(text::json_text(*raw));
  tools.specs.push_back(
      {name, parameters != nullptr ? text::json_text(*parameters) : std::string(), strict});
}

void read_tool_choice_word(FieldReader& fields, const json::value& choice, ToolChoice& out) {
  const std::string text = choice.is_string() ? std::string(choice.get_string()) : "";
  if (text == "none") {
    out.kind = ToolChoice::Kind::kNone;
  } else if (text == "required") {
    out.kind = ToolChoice::Kind::kRequired;
  } else if (text != "auto") {
    fields.fail("tool_choice",
                fmt::format("must be \"auto\", \"none\", \"required\" or a function, is {}",
                            shown(choice)));
  }
}

void settle_tools(FieldReader& fields, ToolFields& tools) {
  const ToolChoice& choice = tools.choice;
  if (choice.kind == ToolChoice::Kind::kNone) {
    tools.functions.clear();
    tools.specs.clear();
  } else if (choice.kind == ToolChoice::Kind::kRequired && tools.specs.empty()) {
    fields.fail(choice.field, "needs tools to choose from");
  } else if (choice.kind == ToolChoice::Kind::kNamed &&
             std::none_of(tools.specs.begin(), tools.specs.end(), [&](const text::ToolSpec& tool) {
               return tool.name == choice.name;
             })) {
    fields.fail(choice.field, fmt::format("\"{}\" is not among the tools", shortened(choice.name)));
  }
}

}  // namespace baleen::server
