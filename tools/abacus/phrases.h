#pragma once
// The wordings of tools/abacus/phrases.json: what users ask and how the model answers. Read once at
// start (throws ConfigError naming file and key), then shared by all threads.
//
//   const Phrases phrases = read_phrases("tools/abacus/phrases.json");
//   const Phrase& phrase = pick(phrases.sums, draws);

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "abacus/draws.h"

namespace baleen::abacus {

struct Phrase {
  std::string text;  // with {a} and {b} for the operands
  int weight = 1;
  char operation = 0;        // '+' or '-'; 0 where the phrase names none
  bool about_first = false;  // recalls: the first result, else the last one
  bool chinese = false;      // decides the language of a short reasoning
};

struct SmallTalk {
  std::string answer;
  std::vector<std::string> texts;
  bool chinese = false;
};

struct Phrases {
  std::vector<Phrase> sums;
  std::vector<Phrase> differences;
  std::vector<Phrase> follow_ups;
  std::vector<Phrase> recalls;
  std::vector<Phrase> systems;
  std::vector<SmallTalk> small_talk;
  std::string effort_max;  // put before everything by a request of maximum effort (chat.md §4 a)
};

Phrases read_phrases(const std::string& path);

/// One of the phrases, with a probability in proportion to its weight.
const Phrase& pick(const std::vector<Phrase>& phrases, Draws& draws);

/// The phrase with the operands put in.
std::string fill_in(std::string_view text, int a, int b);

}  // namespace baleen::abacus
