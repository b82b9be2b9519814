#pragma once
// The conversation as it is rendered: neighbouring user messages and tool results are one turn,
// results stand in the order of the calls, old reasoning is gone where the format drops it. Used by
// the renderer; pure, any thread.
//
//   std::vector<ChatTurn> turns = merge_turns(messages);
//   order_tool_results(turns);

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "text/chat_message.h"

namespace baleen::text {

/// One message of the list, or several that became one user turn.
struct ChatTurn {
  struct Block {
    bool is_tool_result = false;
    std::string tool_call_id;
    std::string text;
  };
  ChatMessage message;        // of a user turn only the task and `without_eos`
  std::vector<Block> blocks;  // of a user turn
  size_t source = 0;          // index of its first message in the list that was merged
};

std::vector<ChatTurn> merge_turns(std::span<const ChatMessage> messages);

void order_tool_results(std::vector<ChatTurn>& turns);

/// Index of the last turn by a user or developer; -1 when there is none.
std::ptrdiff_t last_user_turn(std::span<const ChatTurn> turns);

/// Before the last user turn, assistants lose their reasoning and developer turns go.
std::vector<ChatTurn> drop_old_reasoning(std::vector<ChatTurn> turns);

}  // namespace baleen::text
