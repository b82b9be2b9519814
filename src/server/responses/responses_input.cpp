#include "server/responses/responses_input.h"

#include <set>
#include <utility>

#include <fmt/format.h>

#include "server/echo.h"
#include "server/json_input.h"

namespace baleen::server {
namespace {

/// A text, or the joined texts of parts of type `type` or `other_type`.
std::vector<text::ContentPart> read_item_parts(FieldReader& fields, std::string_view name) {
  std::vector<text::ContentPart> parts;
  const json::value* content = fields.value(name);
  if (content == nullptr) {
    return parts;
  }
  if (content->is_string()) {
    parts.push_back({"text", std::string(content->get_string())});
    return parts;
  }
  fields.each_object(name, [&](FieldReader& part, size_t) {
    part.require("type");
    const std::string type = part.string("type").value_or("");
    if (type == "refusal") {
      parts.push_back({"text", part.string("refusal").value_or("")});
    } else if (type == "input_text" || type == "output_text" || type == "text" ||
               type == "summary_text" || type == "reasoning_text") {
      part.require("text");
      parts.push_back({"text", part.string("text").value_or("")});
    } else {
      part.fail("type",
                fmt::format("\"{}\" is not supported; accepted: input_text, output_text",
                            shortened(type)));
    }
    part.ignore({"annotations", "logprobs"});
    part.finish();
  });
  return parts;
}

std::string joined_text(const std::vector<text::ContentPart>& parts) {
  text::ChatMessage message;
  message.parts = parts;
  return parts.empty() ? std::string() : text::content_text(message);
}

/// Puts items together to messages.
class ItemReader {
 public:
  explicit ItemReader(Conversation& conversation) : conversation_(conversation) {}

  void read(FieldReader& item, const std::string& path) {
    const std::string type = item.string("type").value_or("message");
    item.ignore({"id", "status", "phase"});
    if (type == "message") {
      read_message(item, path);
    } else if (type == "function_call") {
      read_call(item, path);
    } else if (type == "function_call_output") {
      read_output(item, path);
    } else if (type == "reasoning") {
      read_reasoning(item, path);
    } else {
      item.fail("type",
                fmt::format("\"{}\" is not supported; accepted: message, function_call, "
                            "function_call_output, reasoning",
                            shortened(type)));
    }
    item.finish();
  }

 private:
  text::ChatMessage& add(text::Role role, const std::string& path) {
    text::ChatMessage& message = conversation_.chat.messages.emplace_back();
    message.role = role;
    conversation_.message_paths.push_back(path);
    in_turn_ = role == text::Role::kAssistant;
    return message;
  }
  /// The assistant's message that this item belongs to.
  text::ChatMessage& turn(const std::string& path, bool begins_another) {
    return in_turn_ && !begins_another ? conversation_.chat.messages.back()
                                       : add(text::Role::kAssistant, path);
  }

  void read_message(FieldReader& item, const std::string& path) {
    item.require("role");
    item.require("content");
    const std::string name = item.string("role").value_or("");
    const std::optional<text::Role> role = text::parse_role(name);
    if (!role || *role == text::Role::kTool || *role == text::Role::kLatestReminder) {
      item.fail(
          "role",
          fmt::format("must be user, assistant, system or developer, is \"{}\"", shortened(name)));
      return;
    }
    std::vector<text::ContentPart> parts = read_item_parts(item, "content");
    if (*role != text::Role::kAssistant) {
      text::ChatMessage& message = add(*role, path);
      message.parts = std::move(parts);
      return;
    }
    const bool has_text = in_turn_ && (!conversation_.chat.messages.back().content.empty() ||
                                       !conversation_.chat.messages.back().tool_calls.empty());
    turn(path, has_text).content = joined_text(parts);
  }

  void read_call(FieldReader& item, const std::string& path) {
    text::HistoryCall call;
    item.require("call_id");
    item.require("name");
    call.id = item.string("call_id").value_or("");
    call.name = item.string("name").value_or("");
    call.arguments = item.string("arguments").value_or("{}");
    turn(path, false).tool_calls.push_back(std::move(call));
  }

  void read_output(FieldReader& item, const std::string& path) {
    item.require("call_id");
    item.require("output");
    const std::string id = item.string("call_id").value_or("");
    std::vector<text::ContentPart> parts = read_item_parts(item, "output");
    text::ChatMessage& message = add(text::Role::kTool, path);
    message.tool_call_id = id;
    message.parts = std::move(parts);
  }

  void read_reasoning(FieldReader& item, const std::string& path) {
    std::string text = joined_text(read_item_parts(item, "content"));
    const std::string summary = joined_text(read_item_parts(item, "summary"));
    item.ignore({"encrypted_content"});
    turn(path, true).reasoning_content = text.empty() ? summary : std::move(text);
  }

  Conversation& conversation_;
  bool in_turn_ = false;  // the last message is the assistant's and made of items
};

void read_flat_choice(FieldReader& fields, ToolChoice& out) {
  const json::value* choice = fields.value("tool_choice");
  if (choice == nullptr) {
    return;
  }
  if (choice->is_object()) {
    FieldReader inner(choice->get_object(), fields.path_of("tool_choice"), fields.status());
    inner.require("type");
    inner.only("type", "function");
    inner.require("name");
    out.kind = ToolChoice::Kind::kNamed;
    out.name = inner.string("name").value_or("");
    inner.finish();
    return;
  }
  read_tool_choice_word(fields, *choice, out);
}

/// The function as chat completions have it, which is how the prompt shows it.
text::JsonValue without_type(text::JsonValue tool) {
  std::erase_if(tool.members, [](const text::JsonMember& member) {
    return member.key == "type" || member.value.kind == text::JsonValue::Kind::kNull;
  });
  return tool;
}

}  // namespace

void read_input_items(FieldReader& fields, Conversation& conversation) {
  fields.require("input");
  const json::value* input = fields.value("input");
  if (input == nullptr) {
    return;
  }
  if (input->is_string()) {
    text::ChatMessage& message = conversation.chat.messages.emplace_back();
    message.content = std::string(input->get_string());
    conversation.message_paths.push_back(fields.path_of("input"));
    return;
  }
  if (!input->is_array()) {
    fields.fail(
        "input",
        fmt::format("must be a string or an array of items, is {}", json_kind_name(*input)));
    return;
  }
  ItemReader reader(conversation);
  fields.each_object("input", [&](FieldReader& item, size_t i) {
    reader.read(item, element_path(fields.path_of("input"), i));
  });
}

void read_flat_tools(FieldReader& fields, RawJson& raw, Conversation& conversation) {
  ToolFields tools;
  read_flat_choice(fields, tools.choice);
  tools.choice.one_call = !fields.boolean("parallel_tool_calls").value_or(true);
  std::set<std::string> names;
  fields.each_object("tools", [&](FieldReader& tool, size_t i) {
    tool.require("type");
    tool.only("type", "function");
    const text::JsonValue* raw_tool = raw.element("tools", i);
    const text::JsonValue function =
        raw_tool != nullptr ? without_type(*raw_tool) : text::JsonValue();
    read_function(tool, raw_tool != nullptr ? &function : nullptr, names, tools);
  });
  settle_tools(fields, tools);
  conversation.chat.functions = std::move(tools.functions);
  conversation.tools = std::move(tools.specs);
  conversation.choice = std::move(tools.choice);
}

}  // namespace baleen::server
