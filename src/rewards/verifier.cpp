#include "rewards/verifier.h"

#include <cmath>

#include <fmt/format.h>

#include "base/error.h"

namespace baleen::rewards {

Result<std::vector<Score>> Verifier::verify_group(std::span<const RewardInput> inputs,
                                                  const CallLimits& limits) const {
  std::vector<Score> scores;
  scores.reserve(inputs.size());
  for (const RewardInput& input : inputs) {
    Result<Score> score = verify(input, limits);
    if (!score.ok()) {
      return score.status();
    }
    scores.push_back(std::move(score).value());
  }
  return scores;
}

std::vector<KnownCase> boxed_sum_cases() {
  KnownCase right;
  right.input.prompt = "2+2=";
  right.input.response = "\\boxed{4}";
  right.input.label = "4";
  KnownCase wrong = right;
  wrong.input.response = "\\boxed{5}";
  return {right, wrong};
}

void self_test(const Verifier& verifier, std::chrono::milliseconds timeout) {
  for (const KnownCase& known : verifier.known_cases()) {
    const CallLimits limits{std::chrono::steady_clock::now() + timeout};
    const Result<Score> score = verifier.verify(known.input, limits);
    if (!score.ok()) {
      throw ConfigError(fmt::format("reward self-test: {} fails on response \"{}\": {}",
                                    verifier.name(),
                                    known.input.response,
                                    score.status().message));
    }
    const bool right =
        known.expected ? score->score == *known.expected : std::isfinite(score->score);
    if (!right) {
      throw ConfigError(
          fmt::format("reward self-test: {} gives {} to response \"{}\" with label \"{}\", not {}",
                      verifier.name(),
                      score->score,
                      known.input.response,
                      known.input.label,
                      known.expected ? fmt::format("{}", *known.expected) : "a finite score"));
    }
  }
}

}  // namespace baleen::rewards
