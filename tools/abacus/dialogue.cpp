#include "abacus/dialogue.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "rl/held_out_pairs.h"

namespace baleen::abacus {
namespace {

using rl::held_out;
using rl::kMaxOperand;

constexpr std::string_view kBos = "<｜begin▁of▁sentence｜>";
constexpr std::string_view kEos = "<｜end▁of▁sentence｜>";
constexpr std::string_view kUser = "<｜User｜>";
constexpr std::string_view kAssistant = "<｜Assistant｜>";
constexpr std::string_view kThink = "<think>";
constexpr std::string_view kEndThink = "</think>";

constexpr int64_t kLastTurnTokens =
    90;                   // room kept for the last turn: longest wording, step, answer
constexpr int kNear = 3;  // largest distance of numbers that are near each other
constexpr double kSystemShare = 0.3;
constexpr double kEffortMaxShare = 0.04;

struct Turn {
  std::string said;
  std::string reasoning;
  std::string answer;
  Topic topic = Topic::kQuestion;
  std::optional<int> result;  // what counts as a result of the conversation
};

int apply(int a, int b, char operation) {
  return operation == '+' ? a + b : a - b;
}

int draw_operand(Draws& draws) {
  // Every seventh number has one digit or two with equal chance; uniform numbers rarely have one.
  if (draws.below(7) == 0 && draws.chance(0.5)) {
    return draws.below(10);
  }
  return draws.below(kMaxOperand + 1);
}

/// Of a difference the larger one first, or with `below_zero` the smaller one.
std::pair<int, int> draw_operands(
    char operation, Pairs pairs, bool below_zero, bool near, Draws& draws) {
  while (true) {
    int a = draw_operand(draws);
    int b = near ? a + draws.below(2 * kNear + 1) - kNear : draw_operand(draws);
    if (b < 0 || b > kMaxOperand) {
      continue;
    }
    if (held_out(a, b) != (pairs == Pairs::kHeldOut) || (below_zero && a == b)) {
      continue;
    }
    if (operation == '-' && (a < b) != below_zero) {
      std::swap(a, b);
    }
    return {a, b};
  }
}

/// A story about apples, of which nobody has fewer than none.
bool is_story(const Phrase& phrase) {
  return phrase.text.find("apples") != std::string::npos ||
         phrase.text.find("苹果") != std::string::npos;
}

Turn calculation(const Phrase& phrase, int a, int b, Topic topic) {
  const int result = apply(a, b, phrase.operation);
  return {fill_in(phrase.text, a, b),
          worked_step(a, b, phrase.operation),
          std::to_string(result),
          topic,
          result};
}

Turn question(const Phrases& phrases, const DialogueShape& shape, Draws& draws) {
  const char operation = draws.chance(0.5) ? '+' : '-';
  const bool below_zero =
      operation == '-' && shape.below_zero_share > 0.0 && draws.chance(shape.below_zero_share);
  const Phrase* phrase = &pick(operation == '+' ? phrases.sums : phrases.differences, draws);
  while (below_zero && is_story(*phrase)) {
    phrase = &pick(phrases.differences, draws);
  }
  const bool near = shape.near_share > 0.0 && draws.chance(shape.near_share);
  const auto [a, b] = draw_operands(operation, shape.pairs, below_zero, near, draws);
  return calculation(*phrase, a, b, Topic::kQuestion);
}

/// Something done to the last result; nothing when that one is too large or the draw hits a pair of
/// the other kind.
std::optional<Turn> follow_up(const Phrases& phrases, Pairs pairs, int last, Draws& draws) {
  const Phrase& phrase = pick(phrases.follow_ups, draws);
  const int b = draw_operand(draws);
  const bool in_range = last >= 0 && last <= kMaxOperand && (phrase.operation == '+' || b <= last);
  if (!in_range || held_out(last, b) != (pairs == Pairs::kHeldOut)) {
    return std::nullopt;
  }
  return calculation(phrase, last, b, Topic::kFollowUp);
}

Turn recall(const Phrases& phrases, const std::vector<int>& results, Draws& draws) {
  const Phrase& phrase = pick(phrases.recalls, draws);
  const int result = phrase.about_first ? results.front() : results.back();
  return {phrase.text,
          phrase.chinese ? "往回看。" : "Look back.",
          std::to_string(result),
          Topic::kRecall,
          std::nullopt};
}

Turn small_talk(const Phrases& phrases, Draws& draws) {
  const SmallTalk& talk = phrases.small_talk[static_cast<std::size_t>(
      draws.below(static_cast<int>(phrases.small_talk.size())))];
  const std::string& said =
      talk.texts[static_cast<std::size_t>(draws.below(static_cast<int>(talk.texts.size())))];
  return {said,
          talk.chinese ? "不是算术题。" : "Not a sum.",
          talk.answer,
          Topic::kSmallTalk,
          std::nullopt};
}

class Conversation {
 public:
  Conversation(const Phrases& phrases, const DialogueShape& shape, Draws& draws)
      : phrases_(phrases), shape_(shape), draws_(draws) {}

  Turn next() {
    const int die = draws_.below(100);
    if (die < 6 && after_result_) {
      if (std::optional<Turn> turn = follow_up(phrases_, shape_.pairs, results_.back(), draws_)) {
        return note(*std::move(turn));
      }
    } else if (die < 14 && die >= 6 && results_.size() >= 2) {
      return note(recall(phrases_, results_, draws_));
    } else if (die >= 94) {
      return note(small_talk(phrases_, draws_));
    }
    return note(question(phrases_, shape_, draws_));
  }

 private:
  Turn note(Turn turn) {
    after_result_ = turn.result.has_value();
    if (turn.result) {
      results_.push_back(*turn.result);
    }
    return turn;
  }

  const Phrases& phrases_;
  const DialogueShape& shape_;
  Draws& draws_;
  std::vector<int> results_;
  bool after_result_ = false;
};

std::string user_text(std::string_view head, const Turn& turn, bool thinks) {
  return fmt::format("{}{}{}{}{}", head, kUser, turn.said, kAssistant, thinks ? kThink : kEndThink);
}

std::string answer_text(const Turn& turn, bool thinks) {
  return thinks ? fmt::format("{}{}{}{}", turn.reasoning, kEndThink, turn.answer, kEos)
                : fmt::format("{}{}", turn.answer, kEos);
}

}  // namespace

std::string worked_step(int a, int b, char operation) {
  if (operation == '-' && a < b) {
    return fmt::format("{}-{}: {}", a, b, worked_step(b, a, '-'));
  }
  const int ones_a = a % 10;
  const int ones_b = b % 10;
  const int tens_a = a / 10;
  const int tens_b = b / 10;
  std::string step = fmt::format("{}{}{}: ", a, operation, b);
  const bool carry = operation == '+' ? ones_a + ones_b >= 10 : ones_a < ones_b;
  if (operation == '+') {
    step += fmt::format("{}+{}={}", ones_a, ones_b, ones_a + ones_b);
  } else {
    const int minuend = carry ? ones_a + 10 : ones_a;
    step += fmt::format("{}-{}={}", minuend, ones_b, minuend - ones_b);
  }
  if (tens_a > 0 || tens_b > 0) {
    const int tens = apply(apply(tens_a, tens_b, operation), carry ? 1 : 0, operation);
    step += fmt::format(", {}{}{}{}={}",
                        tens_a,
                        operation,
                        tens_b,
                        carry ? fmt::format("{}1", operation) : "",
                        tens);
  }
  return step + ".";
}

Dialogue make_dialogue(const Phrases& phrases,
                       const DialogueShape& shape,
                       const CountTokens& count_tokens,
                       Draws& draws) {
  Dialogue dialogue;
  dialogue.thinking = draws.chance(shape.thinking_share);
  dialogue.effort_max =
      dialogue.thinking && shape.max_tokens >= 480 && draws.chance(kEffortMaxShare);
  std::string head(kBos);  // what stands before the next user turn
  if (dialogue.effort_max) {
    head += phrases.effort_max;
  }
  if (draws.chance(kSystemShare)) {
    const Phrase& system = pick(phrases.systems, draws);
    head += system.text;
    dialogue.messages.push_back({"system", system.text, ""});
  }

  Conversation conversation(phrases, shape, draws);
  int64_t num_tokens = 0;
  const auto append = [&](const Turn& turn, bool thinks) {
    const std::string prompt = user_text(head, turn, thinks);
    const std::string answer = answer_text(turn, thinks);
    num_tokens += count_tokens(prompt) + count_tokens(answer);
    dialogue.pieces.push_back({prompt, false, turn.topic});
    dialogue.pieces.push_back({answer, true, turn.topic});
    dialogue.messages.push_back({"user", turn.said, ""});
    dialogue.messages.push_back({"assistant", turn.answer, thinks ? turn.reasoning : ""});
    head.clear();
  };
  // Turns before the last one never show reasoning, whatever the mode (chat.md §3.3).
  const int64_t head_tokens = count_tokens(head);
  const int max_turns = draws.chance(0.15) ? 1 + draws.below(6) : 1'000'000;
  for (int turns = 1; turns < max_turns; ++turns) {
    if (std::max(num_tokens, head_tokens) + 2 * kLastTurnTokens > shape.max_tokens) {
      break;
    }
    append(conversation.next(), false);
  }
  append(conversation.next(), dialogue.thinking);
  return dialogue;
}

}  // namespace baleen::abacus
