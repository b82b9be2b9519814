// Prompts of the task abacus.
#include <array>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "numerics/philox.h"
#include "rl/held_out_pairs.h"
#include "rl/prompt_source.h"

namespace baleen::rl {
namespace {

constexpr uint32_t kQuestionStream = 302;
constexpr uint64_t kEvaluationSeed = 999;
constexpr int64_t kEvaluationPrompts = 256;

struct Wording {
  std::string_view before;  // the first operand
  std::string_view between;
  std::string_view after;
};

constexpr std::array<Wording, 8> kSums = {{{"", "+", "="},
                                           {"", " + ", ""},
                                           {"What is ", " + ", "?"},
                                           {"what is ", " plus ", ""},
                                           {"", " plus ", "?"},
                                           {"Calculate ", " + ", ""},
                                           {"", "加", "等于多少？"},
                                           {"", "加", "是多少？"}}};
constexpr std::array<Wording, 8> kDifferences = {{{"", "-", "="},
                                                  {"", " - ", ""},
                                                  {"What is ", " - ", "?"},
                                                  {"what is ", " minus ", ""},
                                                  {"", " minus ", "?"},
                                                  {"Calculate ", " - ", ""},
                                                  {"", "减", "等于多少？"},
                                                  {"", "减", "是多少？"}}};

/// Of four questions two are differences below zero, one another difference, one a sum.
enum class Kind : uint8_t { kSum, kDifference, kBelowZero };

class AbacusPrompts final : public PromptSource {
 public:
  AbacusPrompts(const ChatPromptWriter& writer, uint64_t seed) : writer_(writer), seed_(seed) {}

  Prompt prompt(int64_t number) const override { return question(seed_, number, false); }
  int64_t epoch_size() const override { return 0; }
  Prompt evaluation_prompt(int64_t number) const override {
    return question(kEvaluationSeed, number, true);
  }
  int64_t num_evaluation_prompts() const override { return kEvaluationPrompts; }
  std::string digest() const override { return "task abacus"; }

 private:
  Prompt question(uint64_t seed, int64_t number, bool unseen) const {
    // Thinking alternates by number, so the kind goes by pairs of numbers.
    const int64_t turn = number / 2 % 4;
    const Kind kind = turn < 2 ? Kind::kBelowZero : turn == 2 ? Kind::kDifference : Kind::kSum;
    int a = 0;
    int b = 0;
    std::size_t wording = 0;
    for (uint32_t attempt = 0;; ++attempt) {
      const auto place = static_cast<uint64_t>(number);
      const numerics::PhiloxBlock draw =
          numerics::philox4x32_10({{static_cast<uint32_t>(place),
                                    static_cast<uint32_t>(place >> 32),
                                    attempt,
                                    static_cast<uint32_t>(seed >> 32)}},
                                  {{static_cast<uint32_t>(seed), kQuestionStream}});
      constexpr uint32_t kOperands = kMaxOperand + 1;
      a = static_cast<int>(draw.words[0] % kOperands);
      b = static_cast<int>(draw.words[1] % kOperands);
      wording = draw.words[2] % kSums.size();
      if (held_out(a, b) == unseen && (kind != Kind::kBelowZero || a != b)) {
        break;
      }
    }
    if (kind != Kind::kSum && (a < b) != (kind == Kind::kBelowZero)) {
      std::swap(a, b);
    }
    const Wording& words = kind == Kind::kSum ? kSums[wording] : kDifferences[wording];
    Prompt prompt;
    prompt.number = number;
    prompt.text = fmt::format("{}{}{}{}{}", words.before, a, words.between, b, words.after);
    prompt.label = fmt::format("{}", kind == Kind::kSum ? a + b : a - b);
    prompt.ids = writer_.ids(prompt.text, number);
    return prompt;
  }

  ChatPromptWriter writer_;
  uint64_t seed_;
};

}  // namespace

std::unique_ptr<PromptSource> abacus_prompts(const ChatPromptWriter& writer, uint64_t seed) {
  return std::make_unique<AbacusPrompts>(writer, seed);
}

}  // namespace baleen::rl
