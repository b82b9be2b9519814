#include "text/chat_renderer.h"

#include <array>
#include <cstddef>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "text/chat_markup.h"
#include "text/chat_prompt_texts.h"
#include "text/chat_turns.h"
#include "text/json_text.h"

namespace baleen::text {
namespace {

constexpr std::string_view kActionTask = "action";
constexpr std::array<std::string_view, 5> kPlainTasks = {
    "query", "authority", "domain", "title", "read_url"};

class Renderer {
 public:
  Renderer(std::vector<ChatTurn> turns, const RenderOptions& options, bool drop_thinking)
      : turns_(std::move(turns)),
        options_(options),
        drop_thinking_(drop_thinking),
        last_user_(last_user_turn(turns_)) {}

  /// Turns before `first` are context.
  Status render(size_t first) {
    if (options_.add_bos && options_.context.empty()) {
      engine(kBosText);
    }
    if (first == 0) {
      render_effort();
    }
    for (size_t i = first; i < turns_.size(); ++i) {
      if (Status status = render_body(i); !status.ok()) {
        return status;
      }
      if (Status status = render_transition(i); !status.ok()) {
        return status;
      }
    }
    return {};
  }

  RenderedPrompt take() {
    RenderedPrompt prompt;
    prompt.starts_in_reasoning = !pieces_.empty() && pieces_.back().engine_made &&
                                 pieces_.back().text.ends_with(kThinkBegin);
    prompt.pieces = std::move(pieces_);
    return prompt;
  }

 private:
  void engine(std::string_view text) { append(text, true); }
  void caller(std::string_view text) { append(text, false); }

  void append(std::string_view text, bool engine_made) {
    if (text.empty()) {
      return;
    }
    if (pieces_.empty() || pieces_.back().engine_made != engine_made) {
      pieces_.push_back({{}, engine_made});
    }
    pieces_.back().text += text;
  }

  Status fault(size_t i, std::string_view field, std::string_view text) const {
    const std::string param =
        turns_[i].source < options_.num_inserted
            ? std::string(field.substr(1))  // what was put there is a field of the request itself
            : fmt::format("messages[{}]{}", turns_[i].source - options_.num_inserted, field);
    return Status::invalid(fmt::format("{}: {}", param, text), param);
  }

  bool is_v41() const { return options_.profile == ChatProfile::kV41; }

  void render_effort() {
    if (!options_.thinking || turns_.empty()) {
      return;
    }
    if (!is_v41()) {
      engine(effort_text(options_.profile, options_.effort));
    } else if (turns_[0].message.role != Role::kSystem) {
      engine(kSystemText);
      engine(numeric_effort_text(options_.effort));
    }
  }

  /// `</think>` closes an empty reasoning: how turns without one begin.
  std::string_view reasoning_mark(size_t i) const {
    const bool thinks =
        options_.thinking && (!drop_thinking_ || static_cast<std::ptrdiff_t>(i) >= last_user_);
    return thinks ? kThinkBegin : kThinkEnd;
  }

  Status render_body(size_t i) {
    const ChatTurn& turn = turns_[i];
    const ChatMessage& message = turn.message;
    switch (message.role) {
      case Role::kSystem:
        if (is_v41()) {
          engine(kSystemText);
          if (i == 0 && options_.thinking) {
            engine(numeric_effort_text(options_.effort));
          }
        }
        caller(content_text(message));
        return render_instructions(i);
      case Role::kDeveloper:
        if (content_text(message).empty()) {
          return fault(i, ".content", "a developer message needs content");
        }
        engine(kUserText);
        caller(content_text(message));
        return render_instructions(i);
      case Role::kUser:
        engine(kUserText);
        for (const ChatTurn::Block& block : turn.blocks) {
          engine(&block == &turn.blocks.front() ? "" : "\n\n");
          engine(block.is_tool_result ? "<tool_result>" : "");
          caller(block.text);
          engine(block.is_tool_result ? "</tool_result>" : "");
        }
        return {};
      case Role::kLatestReminder:
        engine(kReminderText);
        caller(content_text(message));
        return {};
      case Role::kAssistant:
        return render_assistant(i);
      case Role::kTool:
        break;  // merged into a user turn
    }
    return fault(i, ".role", "a tool message was not merged");
  }

  Status render_instructions(size_t i) {
    const ChatMessage& message = turns_[i].message;
    if (!message.functions.empty()) {
      engine("\n\n");
      engine(tools_block_head(options_.profile));
      for (size_t k = 0; k < message.functions.size(); ++k) {
        const auto function = parse_json(message.functions[k]);
        if (!function) {
          return fault(i, fmt::format(".tools[{}].function", k), "is not JSON");
        }
        engine(k == 0 ? "" : "\n");
        caller(json_text(*function));
      }
      engine(tools_block_tail());
    }
    if (message.response_format) {
      const auto format = parse_json(*message.response_format);
      if (!format) {
        return fault(i, ".response_format", "is not JSON");
      }
      engine("\n\n");
      engine(response_format_head());
      caller(json_text(*format));
    }
    return {};
  }

  Status render_assistant(size_t i) {
    const ChatMessage& message = turns_[i].message;
    const bool after_task = i > 0 && !turns_[i - 1].message.task.empty();
    if (options_.thinking && !after_task &&
        (!drop_thinking_ || static_cast<std::ptrdiff_t>(i) > last_user_)) {
      caller(message.reasoning_content);
      engine(kThinkEnd);
    }
    caller(content_text(message));
    if (!message.tool_calls.empty()) {
      const MarkupTags& tags = markup_tags(options_.profile);
      engine("\n\n" + tags.block_begin + ">\n");
      for (size_t k = 0; k < message.tool_calls.size(); ++k) {
        if (Status status = render_call(i, k, tags); !status.ok()) {
          return status;
        }
      }
      engine(tags.block_end + ">");
    }
    engine(message.without_eos ? "" : kEosText);
    return {};
  }

  Status render_call(size_t i, size_t k, const MarkupTags& tags) {
    const HistoryCall& call = turns_[i].message.tool_calls[k];
    engine(tags.invoke_begin + " name=\"");
    caller(call.name);
    engine("\">\n");
    const auto arguments = parse_json(call.arguments);
    if (!call.arguments_are_text) {
      render_parameter(
          "arguments", false, arguments ? json_text(*arguments) : call.arguments, tags);
    } else if (!arguments) {
      render_parameter("arguments", true, call.arguments, tags);
    } else if (!arguments->is_object()) {
      return fault(i,
                   fmt::format(".tool_calls[{}].function.arguments", k),
                   "must be the JSON text of an object");
    } else {
      for (const JsonMember& member : arguments->members) {
        engine(&member == &arguments->members.front() ? "" : "\n");
        const bool is_string = member.value.is_string();
        render_parameter(
            member.key, is_string, is_string ? member.value.text : json_text(member.value), tags);
      }
    }
    engine("\n" + tags.invoke_end + ">\n");
    return {};
  }

  void render_parameter(std::string_view key,
                        bool is_string,
                        std::string_view value,
                        const MarkupTags& tags) {
    engine(tags.parameter_begin + " name=\"");
    caller(key);
    engine(is_string ? "\" string=\"true\">" : "\" string=\"false\">");
    caller(value);
    engine(tags.parameter_end + ">");
  }

  Status render_transition(size_t i) {
    const bool is_last = i + 1 == turns_.size();
    if (!is_last) {
      const Role next = turns_[i + 1].message.role;
      if (next != Role::kAssistant && next != Role::kLatestReminder) {
        return {};
      }
    }
    const ChatMessage& message = turns_[i].message;
    if (message.task == kActionTask) {
      engine(kAssistantText);
      engine(options_.thinking ? kThinkBegin : kThinkEnd);
      engine("<｜action｜>");
      return {};
    }
    if (!message.task.empty()) {
      for (const std::string_view task : kPlainTasks) {
        if (message.task == task) {
          engine(fmt::format("<｜{}｜>", task));
          return {};
        }
      }
      return fault(i,
                   ".task",
                   fmt::format("'{}' is none of action, query, authority, domain, title, read_url",
                               message.task));
    }
    const bool asks = message.role == Role::kUser || message.role == Role::kDeveloper;
    const bool system_asks =
        message.role == Role::kSystem && is_last && (options_.end_with_turn || (is_v41() && i > 0));
    if (asks || system_asks) {
      engine(kAssistantText);
      engine(reasoning_mark(i));
    }
    return {};
  }

  std::vector<ChatTurn> turns_;
  const RenderOptions& options_;
  bool drop_thinking_;
  std::ptrdiff_t last_user_;
  std::vector<PromptPiece> pieces_;
};

bool declares_tools(std::span<const ChatMessage> messages) {
  for (const ChatMessage& message : messages) {
    if (!message.functions.empty()) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::string RenderedPrompt::text() const {
  std::string all;
  for (const PromptPiece& piece : pieces) {
    all += piece.text;
  }
  return all;
}

Result<RenderedPrompt> render_messages(std::span<const ChatMessage> messages,
                                       const RenderOptions& options) {
  std::vector<ChatTurn> turns = merge_turns(options.context);
  size_t num_context = turns.size();
  std::vector<ChatTurn> own = merge_turns(messages);
  for (ChatTurn& turn : own) {
    turn.source += options.context.size();
  }
  std::move(own.begin(), own.end(), std::back_inserter(turns));
  order_tool_results(turns);

  const bool drop_thinking =
      options.drop_thinking && !declares_tools(options.context) && !declares_tools(messages);
  if (options.thinking && drop_thinking) {
    num_context = drop_old_reasoning(
                      {turns.begin(), turns.begin() + static_cast<std::ptrdiff_t>(num_context)})
                      .size();
    turns = drop_old_reasoning(std::move(turns));
  }
  Renderer renderer(std::move(turns), options, drop_thinking);
  if (Status status = renderer.render(num_context); !status.ok()) {
    return status;
  }
  return renderer.take();
}

}  // namespace baleen::text
