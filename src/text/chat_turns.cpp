#include "text/chat_turns.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace baleen::text {

std::vector<ChatTurn> merge_turns(std::span<const ChatMessage> messages) {
  std::vector<ChatTurn> turns;
  for (size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    const bool is_result = message.role == Role::kTool;
    if (!is_result && message.role != Role::kUser) {
      turns.push_back({message, {}, i});
      continue;
    }
    // A tool result joins the turn before it even when that has a task; a user's text does not.
    const bool joins = !turns.empty() && turns.back().message.role == Role::kUser &&
                       (is_result || turns.back().message.task.empty());
    if (!joins) {
      ChatTurn turn;
      turn.message.role = Role::kUser;
      turn.source = i;
      if (!is_result) {
        turn.message.task = message.task;
        turn.message.without_eos = message.without_eos;
      }
      turns.push_back(std::move(turn));
    }
    turns.back().blocks.push_back({is_result, message.tool_call_id, content_text(message)});
  }
  return turns;
}

void order_tool_results(std::vector<ChatTurn>& turns) {
  std::unordered_map<std::string, size_t> order;  // by call id; unknown ids count as first
  for (ChatTurn& turn : turns) {
    if (turn.message.role == Role::kAssistant && !turn.message.tool_calls.empty()) {
      order.clear();
      for (size_t i = 0; i < turn.message.tool_calls.size(); ++i) {
        if (!turn.message.tool_calls[i].id.empty()) {
          order[turn.message.tool_calls[i].id] = i;
        }
      }
    }
    std::vector<ChatTurn::Block> results;
    for (const ChatTurn::Block& block : turn.blocks) {
      if (block.is_tool_result) {
        results.push_back(block);
      }
    }
    if (results.size() < 2 || order.empty()) {
      continue;
    }
    const auto place = [&](const ChatTurn::Block& block) {
      const auto found = order.find(block.tool_call_id);
      return found == order.end() ? 0 : found->second;
    };
    std::stable_sort(results.begin(), results.end(), [&](const auto& a, const auto& b) {
      return place(a) < place(b);
    });
    auto next = results.begin();
    for (ChatTurn::Block& block : turn.blocks) {
      if (block.is_tool_result) {
        block = std::move(*next++);
      }
    }
  }
}

std::ptrdiff_t last_user_turn(std::span<const ChatTurn> turns) {
  for (size_t i = turns.size(); i > 0; --i) {
    const Role role = turns[i - 1].message.role;
    if (role == Role::kUser || role == Role::kDeveloper) {
      return static_cast<std::ptrdiff_t>(i) - 1;
    }
  }
  return -1;
}

std::vector<ChatTurn> drop_old_reasoning(std::vector<ChatTurn> turns) {
  const std::ptrdiff_t last_user = last_user_turn(turns);
  std::vector<ChatTurn> kept;
  for (size_t i = 0; i < turns.size(); ++i) {
    ChatTurn& turn = turns[i];
    if (static_cast<std::ptrdiff_t>(i) < last_user) {
      if (turn.message.role == Role::kDeveloper) {
        continue;
      }
      if (turn.message.role == Role::kAssistant) {
        turn.message.reasoning_content.clear();
      }
    }
    kept.push_back(std::move(turn));
  }
  return kept;
}

}  // namespace baleen::text
