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

/// {"type": "text", "text": ...}; parts of other types are kept as their type alone.
std::vector<text::ContentPart> read_parts(FieldReader& message) {
  std::vector<text::ContentPart> parts;
  message.each_object("content", [&](FieldReader& fields, size_t) {
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
  });
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
    message.parts = read_parts(fields);
  } else {
    fields.fail(
        "content",
        fmt::format("must be a string or an array of parts, is {}", json_kind_name(*content)));
  }
}

text::HistoryCall read_call(FieldReader& fields, const text::JsonValue* raw) {
  text::HistoryCall call;
  call.id = fields.string("id").value_or("");
  fields.ignore({"index"});  // clients send back what they were given
  fields.only("type", "function");
  fields.require("function");
  if (const json::object* function = fields.object("function")) {
    FieldReader inner(*function, fields.path_of("function"), fields.status());
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
  fields.each_object("tool_calls", [&](FieldReader& call, size_t i) {
    const text::JsonValue* raw_message = raw.element("messages", index);
    const text::JsonValue* raw_calls =
        raw_message != nullptr ? raw_message->find("tool_calls") : nullptr;
    const text::JsonValue* raw_call =
        raw_calls != nullptr && i < raw_calls->items.size() ? &raw_calls->items[i] : nullptr;
    message.tool_calls.push_back(read_call(call, raw_call));
  });
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
  if (const json::array* list = fields.array("messages"); list != nullptr && list->empty()) {
    fields.fail("messages", "must have at least one message");
  }
  fields.each_object("messages", [&](FieldReader& message, size_t i) {
    messages.push_back(read_message(message, raw, i));
  });
  return messages;
}

ToolFields read_tools(FieldReader& fields, RawJson& raw) {
  ToolFields tools;
  read_tool_choice(fields, tools.choice);
  tools.choice.one_call = !fields.boolean("parallel_tool_calls").value_or(true);
  std::set<std::string> names;
  fields.each_object("tools", [&](FieldReader& tool, size_t i) {
    tool.require("type");
    tool.only("type", "function");
    tool.require("function");
    const json::object* object = tool.object("function");
    tool.finish();
    if (object == nullptr) {
      return;
    }
    FieldReader function(*object, tool.path_of("function"), fields.status());
    const text::JsonValue* raw_tool = raw.element("tools", i);
    read_function(
        function, raw_tool != nullptr ? raw_tool->find("function") : nullptr, names, tools);
  });
  settle_tools(fields, tools);
  return tools;
}

}  // namespace baleen::server
