#include "apps/bench/load/load_plan.h"

#include <algorithm>
#include <array>
#include <random>

#include <fmt/format.h>

namespace baleen::apps {
namespace {

constexpr std::array<const char*, 64> kWords = {
    "time",   "people", "water", "light", "house", "river", "stone", "paper",  "green",  "small",
    "early",  "across", "under", "every", "other", "great", "sound", "point",  "world",  "place",
    "night",  "music",  "table", "horse", "field", "story", "color", "winter", "summer", "number",
    "letter", "answer", "after", "again", "began", "build", "carry", "clear",  "close",  "cover",
    "cross",  "learn",  "leave", "might", "never", "north", "south", "often",  "order",  "plain",
    "quick",  "reach",  "short", "since", "stand", "start", "still", "study",  "their",  "thing",
    "think",  "three",  "voice", "write"};

}  // namespace

std::string LoadLevel::name() const {
  return rate > 0.0 ? fmt::format("{:g} per second", rate)
                    : fmt::format("{} at a time", concurrency);
}

LoadPlan make_load_plan(const LoadMix& mix,
                        int32_t num_requests,
                        const LoadLevel& level,
                        uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::exponential_distribution<double> gap(level.rate > 0.0 ? level.rate : 1.0);
  LoadPlan plan;
  double now = 0.0;
  while (plan.num_requests < num_requests) {
    const auto index = static_cast<int32_t>(plan.conversations.size());
    LoadConversation conversation;
    if (!mix.dataset.empty()) {
      conversation = mix.dataset[static_cast<size_t>(index) % mix.dataset.size()];
      for (LoadTurn& turn : conversation.turns) {
        if (turn.answer_tokens == 0) {
          turn.answer_tokens = mix.answer_tokens.draw(generator);
        }
      }
    } else {
      conversation.group = mix.groups > 0 ? index % mix.groups : -1;
      for (int32_t turn = 0; turn < mix.turns; ++turn) {
        LoadTurn& made = conversation.turns.emplace_back();
        made.prompt_tokens = mix.prompt_tokens.draw(generator);
        made.answer_tokens = mix.answer_tokens.draw(generator);
      }
    }
    conversation.text_seed = generator();
    if (level.rate > 0.0) {
      conversation.arrival_s = now;
      now += gap(generator);
    }
    plan.num_requests += static_cast<int32_t>(conversation.turns.size());
    plan.conversations.push_back(std::move(conversation));
  }
  return plan;
}

std::string made_up_words(uint64_t seed, int64_t count) {
  std::mt19937_64 generator(seed);
  std::string text;
  for (int64_t i = 0; i < count; ++i) {
    text += ' ';
    text += kWords[generator() % kWords.size()];
  }
  return text;
}

}  // namespace baleen::apps
