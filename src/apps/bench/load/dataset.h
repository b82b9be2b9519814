#pragma once
// Conversations from a file: JSON lines or one JSON array of objects of these forms:
//   {"prompt": text, "answer_tokens": N}            one request; answer_tokens may be left out
//   {"messages": [{"role", "content"}, ...]}         every user message is a turn
//   {"conversations": [{"from", "value"}, ...]}      likewise; from: human or user, gpt, system
// Answers in the file are not sent: each turn continues with what the server itself answered.
//
//   std::vector<LoadConversation> all = read_dataset("questions.jsonl");

#include <string>
#include <vector>

#include "apps/bench/load/load_plan.h"

namespace baleen::apps {

/// Throws ConfigError naming file and entry.
std::vector<LoadConversation> read_dataset(const std::string& file);

}  // namespace baleen::apps
