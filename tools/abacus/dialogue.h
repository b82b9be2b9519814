#pragma once
// Training conversations of abacus as text in the V4 chat format (chat.md §4): questions in many
// wordings, follow-ups, questions about earlier results, a little small talk; with and without
// reasoning. Text is a pure function of the draws. Any thread.
//
//   Draws draws(seed, Draws::kDialogues, row);
//   Dialogue dialogue = make_dialogue(phrases, DialogueShape{.max_tokens = 384}, count, draws);

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "abacus/draws.h"
#include "abacus/phrases.h"

namespace baleen::abacus {

enum class Topic : uint8_t { kQuestion, kFollowUp, kRecall, kSmallTalk };

/// A stretch of the conversation. Stretches border on control tokens, so they can be tokenized one
/// by one. `learned` ones are what the model says, up to and including the end of its turn.
struct Piece {
  std::string text;
  bool learned = false;
  Topic topic = Topic::kQuestion;
};

/// The same conversation as a client would send it; for the comparison with the chat renderer.
struct Message {
  std::string role;
  std::string content;
  std::string reasoning;  // of the last assistant message in thinking mode, else empty
};

struct Dialogue {
  std::vector<Piece> pieces;
  std::vector<Message> messages;
  bool thinking = false;
  bool effort_max = false;
};

enum class Pairs : uint8_t { kTraining, kHeldOut };

struct DialogueShape {
  int64_t max_tokens = 64;      // the conversation ends before it would pass this
  double thinking_share = 0.5;  // of conversations whose last turn reasons
  Pairs pairs = Pairs::kTraining;
  double below_zero_share = 0.0;  // of the questions for a difference; 0 draws nothing
  double near_share = 0.0;        // of the questions whose numbers differ by at most 3; likewise
};

using CountTokens = std::function<int64_t(std::string_view)>;

Dialogue make_dialogue(const Phrases& phrases,
                       const DialogueShape& shape,
                       const CountTokens& count_tokens,
                       Draws& draws);

/// "37+58: 7+8=15, 3+5+1=9."; tens are left out when both operands have one digit. Below zero the
/// operands change places first: "3-58: 58-3: 8-3=5, 5-0=5."
std::string worked_step(int a, int b, char operation);

}  // namespace baleen::abacus
