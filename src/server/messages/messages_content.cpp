#include "server/messages/messages_content.h"

#include <set>
#include <utility>

#include <boost/json/serialize.hpp>
#include <fmt/format.h>

#include "server/echo.h"
#include "server/json_input.h"

namespace baleen::server {
namespace {

constexpr size_t kMaxMessageToolNameBytes = 128;

/// {"type": "text", "text": ...}; the type is read already.
std::string read_text_block(FieldReader& block) {
  block.require("text");
  std::string text = block.string("text").value_or("");
  block.ignore({"cache_control", "citations"});
  block.finish();
  return text;
}

/// A search result as text: title, source, then what was found.
std::string read_search_result(FieldReader& block) {
  std::string text = block.string("title").value_or("");
  text += "\n" + block.string("source").value_or("");
  block.each_object("content", [&](FieldReader& inner, size_t) {
    inner.only("type", "text");
    text += "\n" + read_text_block(inner);
  });
  block.ignore({"cache_control", "citations"});
  block.finish();
  return text;
}

/// Blocks that are shown to the model as text or as a note of their type.
text::ContentPart read_shown_block(FieldReader& block, const std::string& type) {
  if (type == "text") {
    return {"text", read_text_block(block)};
  }
  if (type == "search_result") {
    return {"text", read_search_result(block)};
  }
  return {type, ""};
}

/// A text or a list of shown blocks, as the content of `message`.
void read_plain_content(FieldReader& fields, std::string_view name, text::ChatMessage& message) {
  const json::value* content = fields.value(name);
  if (content == nullptr) {
    return;
  }
  if (content->is_string()) {
    message.content = std::string(content->get_string());
    return;
  }
  if (!content->is_array()) {
    fields.fail(
        name,
        fmt::format("must be a string or an array of blocks, is {}", json_kind_name(*content)));
    return;
  }
  fields.each_object(name, [&](FieldReader& block, size_t) {
    block.require("type");
    message.parts.push_back(read_shown_block(block, block.string("type").value_or("")));
  });
}

/// Puts together the messages that the blocks of one client message stand for.
class MessageBuilder {
 public:
  MessageBuilder(text::Role role, std::string path, Conversation& conversation)
      : path_(std::move(path)), conversation_(conversation) {
    message_.role = role;
  }

  void add_block(FieldReader& block, const text::JsonValue* raw_block) {
    block.require("type");
    const std::string type = block.string("type").value_or("");
    const bool assistant = message_.role == text::Role::kAssistant;
    if (type == "tool_result" && message_.role == text::Role::kUser) {
      add_tool_result(block);
    } else if (type == "tool_use" && assistant) {
      add_tool_use(block, raw_block);
    } else if (type == "thinking" && assistant) {
      block.require("thinking");
      message_.reasoning_content += block.string("thinking").value_or("");
      block.ignore({"signature", "cache_control"});
      block.finish();
    } else if (type == "redacted_thinking" && assistant) {
      block.ignore({"data"});  // nothing in it that this model could read
      block.finish();
    } else {
      text::ContentPart part = read_shown_block(block, type);
      if (!assistant || part.type != "text" || !part.text.empty()) {
        message_.parts.push_back(std::move(part));
      }
    }
  }
  /// The text form of a content.
  void add_text(std::string text) { message_.content = std::move(text); }

  void finish(bool has_blocks) {
    const bool only_results = has_blocks && sent_results_ && message_.parts.empty();
    if (!only_results) {
      send(std::move(message_));
    }
  }

 private:
  void send(text::ChatMessage message) {
    conversation_.chat.messages.push_back(std::move(message));
    conversation_.message_paths.push_back(path_);
  }

  void add_tool_result(FieldReader& block) {
    if (!message_.parts.empty()) {
      text::ChatMessage before;
      before.role = message_.role;
      before.parts = std::exchange(message_.parts, {});
      send(std::move(before));
    }
    text::ChatMessage result;
    result.role = text::Role::kTool;
    block.require("tool_use_id");
    result.tool_call_id = block.string("tool_use_id").value_or("");
    read_plain_content(block, "content", result);
    block.boolean("is_error");  // the format has no place for it; the content says what went wrong
    block.ignore({"cache_control"});
    block.finish();
    send(std::move(result));
    sent_results_ = true;
  }

  void add_tool_use(FieldReader& block, const text::JsonValue* raw_block) {
    text::HistoryCall call;
    call.id = block.string("id").value_or("");
    block.require("name");
    call.name = block.string("name").value_or("");
    call.arguments = "{}";
    if (const json::object* input = block.object("input")) {
      const text::JsonValue* raw_input = raw_block != nullptr ? raw_block->find("input") : nullptr;
      call.arguments = raw_input != nullptr ? text::json_text(*raw_input) : json::serialize(*input);
    }
    block.ignore({"cache_control", "caller"});
    block.finish();
    message_.tool_calls.push_back(std::move(call));
  }

  const std::string path_;
  Conversation& conversation_;
  text::ChatMessage message_;
  bool sent_results_ = false;
};

void read_one_message(FieldReader& fields,
                      const text::JsonValue* raw_message,
                      const std::string& path,
                      Conversation& conversation) {
  fields.require("role");
  fields.require("content");
  const std::string role = fields.string("role").value_or("");
  const json::value* content = fields.value("content");
  fields.finish();
  if (!fields.ok()) {
    return;
  }
  if (role != "user" && role != "assistant" && role != "system") {
    fields.fail("role",
                fmt::format("must be user, assistant or system, is \"{}\"", shortened(role)));
    return;
  }
  MessageBuilder builder(*text::parse_role(role), path, conversation);
  if (content->is_string()) {
    builder.add_text(std::string(content->get_string()));
    builder.finish(false);
    return;
  }
  if (!content->is_array()) {
    fields.fail(
        "content",
        fmt::format("must be a string or an array of blocks, is {}", json_kind_name(*content)));
    return;
  }
  const text::JsonValue* raw_blocks =
      raw_message != nullptr ? raw_message->find("content") : nullptr;
  fields.each_object("content", [&](FieldReader& block, size_t i) {
    const bool in_raw = raw_blocks != nullptr && i < raw_blocks->items.size();
    builder.add_block(block, in_raw ? &raw_blocks->items[i] : nullptr);
  });
  builder.finish(!content->get_array().empty());
}

/// The tool's function as the prompt shows it.
std::string function_text(const std::string& name,
                          const std::optional<std::string>& description,
                          const std::string& parameters) {
  std::string text = fmt::format("{{\"name\": {}", text::json_string(name));
  if (description) {
    text += fmt::format(", \"description\": {}", text::json_string(*description));
  }
  return fmt::format("{}, \"parameters\": {}}}", text, parameters);
}

void read_one_tool(FieldReader& tool,
                   const text::JsonValue* raw_tool,
                   std::set<std::string>& names,
                   ToolFields& tools) {
  tool.only("type", "custom");
  tool.require("name");
  tool.require("input_schema");
  const std::string name = tool.string("name").value_or("");
  const auto description = tool.string("description");
  const bool has_schema = tool.object("input_schema") != nullptr;
  const bool strict = tool.boolean("strict").value_or(false);
  tool.only("defer_loading", false);
  tool.ignore({"cache_control", "eager_input_streaming"});
  tool.finish();
  claim_tool_name(tool, name, kMaxMessageToolNameBytes, names);
  const text::JsonValue* schema =
      raw_tool != nullptr && has_schema ? raw_tool->find("input_schema") : nullptr;
  if (!tool.ok() || schema == nullptr) {
    return;
  }
  const std::string parameters = text::json_text(*schema);
  tools.functions.push_back(function_text(name, description, parameters));
  tools.specs.push_back({name, parameters, strict});
}

/// {"type": "auto" | "any" | "tool" | "none", "name", "disable_parallel_tool_use"}.
void read_choice(FieldReader& fields, ToolChoice& choice) {
  fields.require("type");
  const std::string type = fields.string("type").value_or("");
  if (type == "none") {
    choice.kind = ToolChoice::Kind::kNone;
  } else if (type == "any") {
    choice.kind = ToolChoice::Kind::kRequired;
  } else if (type == "tool") {
    choice.kind = ToolChoice::Kind::kNamed;
    fields.require("name");
    choice.name = fields.string("name").value_or("");
  } else if (type != "auto") {
    fields.fail("type", fmt::format("must be auto, any, tool or none, is \"{}\"", shortened(type)));
  }
  choice.one_call = fields.boolean("disable_parallel_tool_use").value_or(false);
  fields.finish();
}

}  // namespace

void read_message_list(FieldReader& fields, RawJson& raw, Conversation& conversation) {
  if (fields.value("system") != nullptr) {
    text::ChatMessage system;
    system.role = text::Role::kSystem;
    read_plain_content(fields, "system", system);
    conversation.chat.messages.push_back(std::move(system));
    conversation.message_paths.push_back(fields.path_of("system"));
  }
  fields.require("messages");
  if (const json::array* list = fields.array("messages"); list != nullptr && list->empty()) {
    fields.fail("messages", "must have at least one message");
  }
  fields.each_object("messages", [&](FieldReader& message, size_t i) {
    read_one_message(message,
                     raw.element("messages", i),
                     element_path(fields.path_of("messages"), i),
                     conversation);
  });
  const std::vector<text::ChatMessage>& messages = conversation.chat.messages;
  conversation.chat.continue_final_message =
      fields.ok() && !messages.empty() && messages.back().role == text::Role::kAssistant;
}

void read_message_tools(FieldReader& fields, RawJson& raw, Conversation& conversation) {
  ToolFields tools;
  if (const json::object* choice = fields.object("tool_choice")) {
    FieldReader inner(*choice, fields.path_of("tool_choice"), fields.status());
    read_choice(inner, tools.choice);
  }
  std::set<std::string> names;
  fields.each_object("tools", [&](FieldReader& tool, size_t i) {
    read_one_tool(tool, raw.element("tools", i), names, tools);
  });
  settle_tools(fields, tools);
  conversation.chat.functions = std::move(tools.functions);
  conversation.tools = std::move(tools.specs);
  conversation.choice = std::move(tools.choice);
}

}  // namespace baleen::server
