#include "server/chat_messages.h"

#include <algorithm>
#include <set>
#include <utility>

#include <boost/json/serialize.hpp>
#include <fmt/format.h>

#include "server/echo.h"
#include "server/json_input.h"

namespace baleen::server {
namespace {

constexpr size_t kMaxToolNameBytes = 64;

/// {"type": "text", "text": ...}; parts of other types are kept as their type alone.
std::vector<text::ContentPart> read_parts(const json::array& list,
                                          const std::string& path,
                                          Status& status) {
  std::vector<text::ContentPart> parts;
  for (size_t i = 0; i < list.size() && status.ok(); ++i) {
    const std::string part_path = element_path(path, i);
    if (!list[i].is_object()) {
      status = Status::invalid(
          fmt::format("{}: must be an object, is {}", part_path, json_kind_name(list[i])),
          part_path);
      break;
    }
    FieldReader fields(list[i].get_object(), part_path, status);
    fields.require("type");
    text::ContentPart part;
    part.type = fields.string("type").value_or("");
    if (part.type == "text") {
      fields.require("text");
      part.text = fields.string("text").value_or("");
      fields.ignore({"cache_control"});
      fields.finish();
    }
    parts.push_back(std::move(part));
  }
  return parts;
}

void read_content(FieldReader& fields, text::ChatMessage& message) {
  const json::value* content = fields.value("content");
  if (content == nullptr) {
    return;
  }
  if (content->is_string()) {
    message.content = std::string(content->get_string());
  } else if (content->is_array()) {
    message.parts = read_parts(content->get_array(), fields.path_of("content"), fields.status());
  } else {
    fields.fail(
        "content",
        fmt::format("must be a string or an array of parts, is {}", json_kind_name(*content)));
  }
}

text::HistoryCall read_call(const json::object& object,
                            const std::string& path,
                            const text::JsonValue* raw,
                            Status& status) {
  FieldReader fields(object, path, status);
  text::HistoryCall call;
  call.id = fields.string("id").value_or("");
  fields.ignore({"index"});  // clients send back what they were given
  fields.only("type", "function");
  fields.require("function");
  if (const json::object* function = fields.object("function")) {
    FieldReader inner(*function, fields.path_of("function"), status);
    inner.require("name");
    call.name = inner.string("name").value_or("");
    const json::value* arguments = inner.value("arguments");
    if (arguments == nullptr) {
      call.arguments = "{}";
    } else if (arguments->is_string()) {
      call.arguments = std::string(arguments->get_string());
    } else {
      const text::JsonValue* raw_function = raw != nullptr ? raw->find("function") : nullptr;
      const text::JsonValue* raw_arguments =
          raw_function != nullptr ? raw_function->find("arguments") : nullptr;
      call.arguments =
          raw_arguments != nullptr ? text::json_text(*raw_arguments) : json::serialize(*arguments);
      call.arguments_are_text = false;
    }
    inner.finish();
  }
  fields.finish();
  return call;
}

void read_calls(FieldReader& fields, RawJson& raw, size_t index, text::ChatMessage& message) {
  const json::array* calls = fields.array("tool_calls");
  if (calls == nullptr) {
    return;
  }
  const std::string path = fields.path_of("tool_calls");
  for (size_t i = 0; i < calls->size() && fields.ok(); ++i) {
    const std::string call_path = element_path(path, i);
    if (!(*calls)[i].is_object()) {
      fields.fail(element_path("tool_calls", i),
                  fmt::format("must be an object, is {}", json_kind_name((*calls)[i])));
      return;
    }
    const text::JsonValue* raw_message = raw.element("messages", index);
    const text::JsonValue* raw_calls =
        raw_message != nullptr ? raw_message->find("tool_calls") : nullptr;
    const text::JsonValue* raw_call =
        raw_calls != nullptr && i < raw_calls->items.size() ? &raw_calls->items[i] : nullptr;
    message.tool_calls.push_back(
        read_call((*calls)[i].get_object(), call_path, raw_call, fields.status()));
  }
}

text::ChatMessage read_message(FieldReader& fields, RawJson& raw, size_t index) {
  text::ChatMessage message;
  fields.require("role");
  const std::string role = fields.string("role").value_or("");
  const std::optional<text::Role> known = text::parse_role(role);
  if (!known) {
    fields.fail("role",
                fmt::format("must be system, user, assistant, tool, developer or latest_reminder, "
                            "is \"{}\"",
                            shortened(role)));
    return message;
  }
  message.role = *known;
  read_content(fields, message);
  if (message.role == text::Role::kAssistant) {
    message.reasoning_content = fields.string("reasoning_content").value_or("");
    if (auto alias = fields.string("reasoning"); alias && message.reasoning_content.empty()) {
      message.reasoning_content = std::move(*alias);
    }
    read_calls(fields, raw, index, message);
    if (message.tool_calls.empty() && fields.value("content") == nullptr) {
      fields.fail("content", "is required where there are no tool_calls");
    }
  } else {
    fields.require("content");
  }
  if (message.role == text::Role::kTool) {
    message.tool_call_id = fields.string("tool_call_id").value_or("");
    fields.ignore({"name"});  // of the function: the call's id says which one it was
  } else {
    fields.not_supported({"name"});
  }
  fields.not_supported({"task", "wo_eos", "mask", "tools", "content_blocks", "prefix"});
  fields.finish();
  return message;
}

/// "auto", "none", "required", or {"type": "function", "function": {"name"}}.
void read_tool_choice(FieldReader& fields, ToolChoice& out) {
  const json::value* choice = fields.value("tool_choice");
  if (choice == nullptr) {
    return;
  }
  if (choice->is_object()) {
    FieldReader inner(choice->get_object(), fields.path_of("tool_choice"), fields.status());
    inner.require("type");
    inner.only("type", "function");
    inner.require("function");
    if (const json::object* function = inner.object("function")) {
      FieldReader named(*function, inner.path_of("function"), fields.status());
      named.require("name");
      out.kind = ToolChoice::Kind::kNamed;
      out.name = named.string("name").value_or("");
      named.finish();
    }
    inner.finish();
    return;
  }
  read_tool_choice_word(fields, *choice, out);
}

}  // namespace

bool is_tool_name(std::string_view name, size_t max_bytes) {
  return !name.empty() && name.size() <= max_bytes &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '_' || c == '-' || c == '.';
         });
}

const text::JsonValue* RawJson::element(std::string_view name, size_t index) {
  const text::JsonValue* list = member(name);
  return list != nullptr && index < list->items.size() ? &list->items[index] : nullptr;
}

const text::JsonValue* RawJson::member(std::string_view name) {
  if (!root_) {
    root_ = text::parse_json(body_).value_or(text::JsonValue());
  }
  return root_->find(name);
}

std::vector<text::ChatMessage> read_messages(FieldReader& fields, RawJson& raw) {
  std::vector<text::ChatMessage> messages;
  fields.require("messages");
  const json::array* list = fields.array("messages");
  if (list == nullptr) {
    return messages;
  }
  if (list->empty()) {
    fields.fail("messages", "must have at least one message");
  }
  for (size_t i = 0; i < list->size() && fields.ok(); ++i) {
    const std::string path = element_path("messages", i);
    if (!(*list)[i].is_object()) {
      fields.fail(path, fmt::format("must be an object, is {}", json_kind_name((*list)[i])));
      break;
    }
    FieldReader message((*list)[i].get_object(), path, fields.status());
    messages.push_back(read_message(message, raw, i));
  }
  return messages;
}

ToolFields read_tools(FieldReader& fields, RawJson& raw) {
  ToolFields tools;
  read_tool_choice(fields, tools.choice);
  tools.choice.one_call = !fields.boolean("parallel_tool_calls").value_or(true);
  const json::array* list = fields.array("tools");
  if (list == nullptr) {
    settle_tools(fields, tools);
    return tools;
  }
  std::set<std::string> names;
  for (size_t i = 0; i < list->size() && fields.ok(); ++i) {
    const std::string path = element_path("tools", i);
    if (!(*list)[i].is_object()) {
      fields.fail(path, fmt::format("must be an object, is {}", json_kind_name((*list)[i])));
      break;
    }
    FieldReader tool((*list)[i].get_object(), path, fields.status());
    tool.require("type");
    tool.only("type", "function");
    tool.require("function");
    const json::object* function = tool.object("function");
    tool.finish();
    if (function == nullptr) {
      break;
    }
    FieldReader inner(*function, tool.path_of("function"), fields.status());
    inner.require("name");
    const std::string name = inner.string("name").value_or("");
    inner.string("description");
    const bool has_parameters = inner.object("parameters") != nullptr;
    const bool strict = inner.boolean("strict").value_or(false);
    inner.finish();
    if (!is_tool_name(name, kMaxToolNameBytes)) {
      inner.fail("name", "must be 1 to 64 letters, digits, '_', '-' or '.'");
    } else if (!names.insert(name).second) {
      inner.fail("name", fmt::format("\"{}\" is declared twice", name));
    }
    const text::JsonValue* raw_tool = raw.element("tools", i);
    const text::JsonValue* raw_function =
        raw_tool != nullptr ? raw_tool->find("function") : nullptr;
    if (!fields.ok() || raw_function == nullptr) {
      break;
    }
    const text::JsonValue* parameters = has_parameters ? raw_function->find("parameters") : nullptr;
    tools.functions.push_back(text::json_text(*raw_function));
    tools.specs.push_back(
        {name, parameters != nullptr ? text::json_text(*parameters) : std::string(), strict});
  }
  settle_tools(fields, tools);
  return tools;
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
