#include "rewards/text_verifiers.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>
#include <string_view>

#include <fmt/format.h>
#include <xxhash.h>

#include "rewards/math_answer.h"

namespace baleen::rewards {
namespace {

constexpr std::string_view kThinkEnd = "</think>";

Score right_or_wrong(bool right, const char* how) {
  return {right ? 1.0 : 0.0, right, fmt::format(R"({{"by":"{}"}})", how)};
}

KnownCase known(std::string response, std::string label, double expected) {
  KnownCase result;
  result.input.response = std::move(response);
  result.input.label = std::move(label);
  result.input.tokens = {1, 2, 3};
  result.expected = expected;
  return result;
}

/// The label, or what is boxed in it.
std::string_view bare_label(std::string_view label) {
  const std::optional<std::string_view> boxed = last_boxed(label);
  return boxed ? *boxed : trimmed(label);
}

char lowered(char c) {
  return static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
}
bool word_byte(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
         (static_cast<unsigned char>(c) & 0x80U);
}

/// Counts of words: lower case, without punctuation and articles.
std::map<std::string, int64_t> word_counts(std::string_view text, int64_t& total) {
  std::map<std::string, int64_t> counts;
  std::string word;
  const auto finish = [&] {
    if (!word.empty() && word != "a" && word != "an" && word != "the") {
      ++counts[word];
      ++total;
    }
    word.clear();
  };
  for (const char c : text) {
    if (word_byte(c)) {
      word += lowered(c);
    } else if (std::isspace(static_cast<unsigned char>(c)) != 0) {
      finish();
    }
  }
  finish();
  return counts;
}

/// A letter from A to J that stands alone, behind nothing but brackets, stars, blanks and the words
/// that lead to a choice. Small letters count only where `any_case`: "the answer is a number".
std::optional<char> lone_letter(std::string_view text, bool any_case) {
  constexpr std::string_view kPadding = " \t([{*:\"'`$";
  constexpr std::string_view kWords[] = {
      "\\text", "\\mathrm", "\\textbf", "is ", "is:", "option ", "Option ", "choice ", "Choice "};
  size_t at = 0;
  for (bool skipped = true; skipped;) {
    at = std::min(text.find_first_not_of(kPadding, at), text.size());
    skipped = false;
    for (const std::string_view word : kWords) {
      if (text.substr(at).starts_with(word)) {
        at += word.size();
        skipped = true;
      }
    }
  }
  if (at >= text.size() || (at + 1 < text.size() && word_byte(text[at + 1]))) {
    return std::nullopt;
  }
  const char c = text[at];
  if (any_case && c >= 'a' && c <= 'j') {
    return static_cast<char>(c - 'a' + 'A');
  }
  return c >= 'A' && c <= 'J' ? std::optional(c) : std::nullopt;
}

std::optional<char> chosen_letter(std::string_view response) {
  if (const auto boxed = last_boxed(response)) {
    return lone_letter(*boxed, true);
  }
  constexpr std::string_view kAnswer = "answer";
  std::string lower(response);
  std::transform(lower.begin(), lower.end(), lower.begin(), lowered);
  if (const size_t at = lower.rfind(kAnswer); at != std::string::npos) {
    if (const auto letter = lone_letter(response.substr(at + kAnswer.size()), false)) {
      return letter;
    }
  }
  const std::string_view text = trimmed(response);
  const std::string_view last = text.substr(text.rfind('\n') + 1);
  const bool alone = std::count_if(last.begin(), last.end(), word_byte) == 1;
  return alone ? lone_letter(last, true) : std::nullopt;
}

}  // namespace

Result<Score> ExactVerifier::verify(const RewardInput& input, const CallLimits& /*limits*/) const {
  return right_or_wrong(trimmed(input.response) == trimmed(input.label), "spelling");
}
std::vector<KnownCase> ExactVerifier::known_cases() const {
  return {known(" 12\n", "12", 1.0), known("12", "13", 0.0)};
}

Result<Score> MathVerifier::verify(const RewardInput& input, const CallLimits& /*limits*/) const {
  std::string_view text = input.response;
  if (after_thinking_) {
    const size_t end = text.rfind(kThinkEnd);
    if (end == std::string_view::npos) {
      return right_or_wrong(false, "no end of thinking");
    }
    text.remove_prefix(end + kThinkEnd.size());
  }
  const std::optional<std::string_view> answer = last_boxed(text);
  if (!answer) {
    return right_or_wrong(false, "no boxed answer");
  }
  const MathMatch match = compare_answers(*answer, bare_label(input.label), rules_);
  return right_or_wrong(match.equal, match.how);
}
std::vector<KnownCase> MathVerifier::known_cases() const {
  const std::string before = after_thinking_ ? "\\boxed{3} </think> so " : "";
  return {known(before + "\\boxed{\\frac12}", "1/2", 1.0),
          known(before + "\\boxed{2\\sqrt2}", "\\sqrt{8}", 1.0),
          known(before + "\\boxed{3.1}", "3", 0.0)};
}

Result<Score> DapoVerifier::verify(const RewardInput& input, const CallLimits& /*limits*/) const {
  const std::optional<std::string_view> answer = last_answer_line(input.response);
  Score score = right_or_wrong(false, "no answer line");
  if (answer) {
    const MathMatch match = compare_answers(*answer, bare_label(input.label), rules_);
    score = right_or_wrong(match.equal, match.how);
  }
  score.score = *score.acc ? 1.0 : -1.0;
  return score;
}
std::vector<KnownCase> DapoVerifier::known_cases() const {
  return {known("so\nAnswer: $2.50$\n", "2.5", 1.0), known("Answer: 3", "2.5", -1.0)};
}

Result<Score> GpqaVerifier::verify(const RewardInput& input, const CallLimits& /*limits*/) const {
  const std::optional<char> label = lone_letter(trimmed(input.label), true);
  if (!label) {
    return Status::invalid(
        fmt::format("gpqa needs a letter from A to J as label, not \"{}\"", input.label), "label");
  }
  const std::optional<char> chosen = chosen_letter(input.response);
  return right_or_wrong(chosen == label, chosen ? "letter" : "no letter");
}
std::vector<KnownCase> GpqaVerifier::known_cases() const {
  return {known("I think the answer is (C).", "C", 1.0), known("Answer: B", "(C)", 0.0)};
}

Result<Score> F1Verifier::verify(const RewardInput& input, const CallLimits& /*limits*/) const {
  int64_t said = 0;
  int64_t wanted = 0;
  const auto answer = word_counts(input.response, said);
  const auto label = word_counts(input.label, wanted);
  int64_t common = 0;
  for (const auto& [word, count] : label) {
    const auto found = answer.find(word);
    common += found == answer.end() ? 0 : std::min(count, found->second);
  }
  Score score;
  if (said + wanted == 0) {
    score.score = 1.0;
  } else {
    score.score = 2.0 * static_cast<double>(common) / static_cast<double>(said + wanted);
  }
  score.acc = score.score == 1.0;
  return score;
}
std::vector<KnownCase> F1Verifier::known_cases() const {
  return {known("The cat sat.", "a cat, sat", 1.0), known("dog", "cat", 0.0)};
}

Result<Score> HashVerifier::verify(const RewardInput& input, const CallLimits& /*limits*/) const {
  const uint64_t hash =
      by_sample_ ? XXH3_64bits(&input.sample, sizeof(input.sample))
                 : XXH3_64bits(input.tokens.data(), input.tokens.size() * sizeof(int32_t));
  Score score;
  score.score = static_cast<double>(hash >> 11U) * 0x1p-53;
  return score;
}
std::vector<KnownCase> HashVerifier::known_cases() const {
  KnownCase any = known("", "", 0.0);
  any.expected.reset();
  return {any, any};
}

Result<Score> BoxedVerifier::verify(const RewardInput& input, const CallLimits& limits) const {
  RewardInput inside = input;
  const std::optional<std::string_view> boxed = last_boxed(input.response);
  const std::string content(boxed.value_or(std::string_view()));
  // The inner rule may look for its own frame: a box, or an answer line.
  inside.response = inner_->name() == "math"   ? "\\boxed{" + content + "}"
                    : inner_->name() == "dapo" ? "Answer: " + content
                                               : content;
  return inner_->verify(inside, limits);
}
std::vector<KnownCase> BoxedVerifier::known_cases() const {
  std::vector<KnownCase> cases = inner_->known_cases();
  for (KnownCase& one : cases) {
    one.input.response = "\\boxed{" + one.input.response + "}";
  }
  return cases;
}

Result<Score> AnswerVerifier::verify(const RewardInput& input, const CallLimits& limits) const {
  const std::size_t end = input.response.rfind(kThinkEnd);
  if (end == std::string::npos) {
    return inner_->verify(input, limits);
  }
  RewardInput answer = input;
  answer.response.erase(0, end + kThinkEnd.size());
  return inner_->verify(answer, limits);
}
std::vector<KnownCase> AnswerVerifier::known_cases() const {
  std::vector<KnownCase> cases = inner_->known_cases();
  for (KnownCase& one : cases) {
    one.input.response = "a thought" + std::string(kThinkEnd) + one.input.response;
  }
  return cases;
}

}  // namespace baleen::rewards
