#pragma once
// What a load run asks, drawn before it begins: conversations with their turns, lengths and
// arrival times. Pure and seeded: one seed gives one plan, whatever the server does.
//
//   LoadPlan plan = make_load_plan(mix, 200, level, seed);

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/bench/load/length_law.h"

namespace baleen::apps {

struct LoadTurn {
  std::string text;           // the user's words; empty: made up, `prompt_tokens` long
  int32_t prompt_tokens = 0;  // wished; of made-up words
  int32_t answer_tokens = 0;  // most tokens of the answer
};

struct LoadConversation {
  double arrival_s = 0.0;  // from the begin of the run; 0 where arrivals are not timed
  int32_t group = -1;      // whose shared prefix it has; -1: none
  std::string system;      // of a data set; instead of a shared prefix
  uint64_t text_seed = 0;  // of the made-up words
  std::vector<LoadTurn> turns;
};

struct LoadPlan {
  std::vector<LoadConversation> conversations;
  int32_t num_requests = 0;  // turns of all
};

/// What is asked, whatever the pace.
struct LoadMix {
  LengthLaw prompt_tokens = LengthLaw::parse("256", "prompt");
  LengthLaw answer_tokens = LengthLaw::parse("64", "answer");
  int32_t turns = 1;                      // requests of a conversation, each continuing the last
  int32_t groups = 0;                     // shared prefixes; 0: none
  int32_t shared_tokens = 1024;           // of a shared prefix
  std::vector<LoadConversation> dataset;  // not empty: these, over and over
};

/// How it is asked: at a rate, or so many at a time.
struct LoadLevel {
  double rate = 0.0;        // conversations that begin per second, in the mean; 0: by concurrency
  int32_t concurrency = 1;  // conversations at a time; with a rate: the most

  std::string name() const;  // "4 at a time", "2.5 per second"
};

/// At least `num_requests` requests, whole conversations.
LoadPlan make_load_plan(const LoadMix& mix,
                        int32_t num_requests,
                        const LoadLevel& level,
                        uint64_t seed);

/// Made-up English words, `count` of them, a function of the seed; each with a blank before it.
std::string made_up_words(uint64_t seed, int64_t count);

}  // namespace baleen::apps
