// Built-in verifiers besides mathematics, the factory, and the self-test.

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "rewards/make_verifier.h"

namespace baleen::rewards {
namespace {

double score_of(const VerifierConfig& config,
                const std::string& response,
                const std::string& label,
                std::vector<int32_t> tokens = {}) {
  RewardInput input;
  input.response = response;
  input.label = label;
  input.tokens = std::move(tokens);
  const Result<Score> score = make_verifier(config)->verify(input, {});
  return score.ok() ? score->score : std::nan("");
}
VerifierConfig of_type(const std::string& type) {
  VerifierConfig config;
  config.rm_type = type;
  return config;
}

TEST(VerifierTest, ExactComparesTheWholeTrimmedResponse) {
  EXPECT_EQ(score_of(of_type("exact"), " 42 \n", "42"), 1.0);
  EXPECT_EQ(score_of(of_type("exact"), "42.", "42"), 0.0);
  EXPECT_EQ(score_of(of_type("boxed_exact"), "it is \\boxed{42}.", "42"), 1.0);
  EXPECT_EQ(score_of(of_type("boxed_exact"), "42", "42"), 0.0);
}

TEST(VerifierTest, AnswerReadsBehindTheThoughtWhereThereIsOne) {
  const VerifierConfig answer = of_type("answer_exact");
  EXPECT_EQ(score_of(answer, "95", "95"), 1.0);
  EXPECT_EQ(score_of(answer, "7+8=15, 3+5+1=9.</think>95", "95"), 1.0);
  EXPECT_EQ(score_of(answer, "95</think>96", "95"), 0.0);
  EXPECT_EQ(score_of(answer, "95</think>", "95"), 0.0);
  EXPECT_EQ(score_of(answer, "96</think>95</think> 95", "95"), 1.0);
  EXPECT_EQ(score_of(of_type("answer_math"), "hm</think>\\boxed{95}", "95"), 1.0);
}

TEST(VerifierTest, DeepscalerReadsBehindTheThoughtAlone) {
  EXPECT_EQ(score_of(of_type("deepscaler"), "\\boxed{5}", "5"), 0.0);
  EXPECT_EQ(score_of(of_type("deepscaler"), "\\boxed{5}</think> hm", "5"), 0.0);
  EXPECT_EQ(score_of(of_type("deepscaler"), "\\boxed{4}</think> \\boxed{5}", "5"), 1.0);
}

TEST(VerifierTest, DapoReadsTheLastAnswerLineNearTheEnd) {
  EXPECT_EQ(score_of(of_type("dapo"), "Answer: 4\nAnswer: \\frac{10}{2}\n", "5"), 1.0);
  EXPECT_EQ(score_of(of_type("dapo"), "Answer: 5" + std::string(300, '.'), "5"), -1.0);
  EXPECT_EQ(score_of(of_type("boxed_dapo"), "\\boxed{5}", "5"), 1.0);
  EXPECT_EQ(score_of(of_type("boxed_dapo"), "Answer: 5", "5"), -1.0);
}

TEST(VerifierTest, GpqaFindsTheChosenLetter) {
  const VerifierConfig gpqa = of_type("gpqa");
  for (const char* response : {"The answer is (C).",
                               "**Answer: C**",
                               "so \\boxed{C}",
                               "\\boxed{\\text{C}}",
                               "A is wrong, the correct answer is option C because",
                               "long thought\n(C)",
                               "Answer: \"C\""}) {
    EXPECT_EQ(score_of(gpqa, response, "C"), 1.0) << response;
    EXPECT_EQ(score_of(gpqa, response, "(B)"), 0.0) << response;
  }
  EXPECT_EQ(score_of(gpqa, "the answer is a number", "A"), 0.0);
  EXPECT_EQ(score_of(gpqa, "Cats", "C"), 0.0);
  EXPECT_EQ(score_of(gpqa, "", "C"), 0.0);
  EXPECT_TRUE(std::isnan(score_of(gpqa, "C", "42")));
}

TEST(VerifierTest, F1CountsWords) {
  const VerifierConfig f1 = of_type("f1");
  EXPECT_EQ(score_of(f1, "The cat, sat!", "cat sat"), 1.0);
  EXPECT_NEAR(score_of(f1, "cat dog", "cat cat"), 0.5, 1e-12);
  EXPECT_NEAR(score_of(f1, "one two three", "two"), 0.5, 1e-12);
  EXPECT_EQ(score_of(f1, "", "word"), 0.0);
  EXPECT_EQ(score_of(f1, "the", "a"), 1.0);  // nothing but articles on both sides
}

TEST(VerifierTest, HashesAreFunctionsOfWhatTheyName) {
  const VerifierConfig by_tokens = of_type("deterministic_random");
  const double one = score_of(by_tokens, "x", "", {1, 2, 3});
  EXPECT_EQ(one, score_of(by_tokens, "other text", "", {1, 2, 3}));
  EXPECT_NE(one, score_of(by_tokens, "x", "", {1, 2, 4}));
  double sum = 0.0;
  for (int32_t i = 0; i < 1000; ++i) {
    const double score = score_of(by_tokens, "", "", {i});
    EXPECT_GE(score, 0.0);
    EXPECT_LT(score, 1.0);
    sum += score;
  }
  EXPECT_NEAR(sum / 1000.0, 0.5, 0.05);
  EXPECT_EQ(score_of(of_type("random"), "x", "", {1}), score_of(of_type("random"), "x", "", {2}));
}

TEST(VerifierTest, RegexAndSchemaComeFromTheRunOrTheLabel) {
  VerifierConfig regex = of_type("regex");
  EXPECT_EQ(score_of(regex, "say <answer>12</answer>", "<answer>\\d+</answer>$"), 1.0);
  EXPECT_TRUE(std::isnan(score_of(regex, "x", "(")));
  regex.rm_pattern = "^\\d+$";
  EXPECT_EQ(score_of(regex, "12", "ignored"), 1.0);
  EXPECT_EQ(score_of(regex, "12a", "ignored"), 0.0);
  regex.rm_pattern = "(";
  EXPECT_THROW(make_verifier(regex), ConfigError);
  VerifierConfig schema = of_type("json_schema");
  schema.rm_schema = R"({"type":"object","required":["a"]})";
  EXPECT_EQ(score_of(schema, " {\"a\": 1}\n", ""), 1.0);
  EXPECT_EQ(score_of(schema, "{}", ""), 0.0);
  EXPECT_EQ(score_of(schema, "no JSON", ""), 0.0);
  schema.rm_schema = R"({"typo":"object"})";
  EXPECT_THROW(make_verifier(schema), ConfigError);
}

TEST(VerifierTest, UnknownTypesAreAnsweredWithTheKnownOnes) {
  try {
    make_verifier(of_type("mathh"));
    FAIL() << "an unknown rm_type was accepted";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("mathh"));
    EXPECT_THAT(error.what(), testing::HasSubstr("deterministic_random"));
  }
  EXPECT_THROW(make_verifier(of_type("boxed_deepscaler")), ConfigError);
  EXPECT_THROW(make_verifier(of_type("external")), ConfigError);
  EXPECT_THROW(make_verifier(of_type("remote_rm")), ConfigError);
}

TEST(VerifierTest, EveryBuiltInPassesItsSelfTest) {
  for (const std::string& name : verifier_names()) {
    if (name == "external" || name == "remote_rm") {
      continue;  // need a program, a service: user_verifiers_test
    }
    for (const char* prefix : {"", "boxed_"}) {
      if (name == "deepscaler" && *prefix != '\0') {
        continue;
      }
      const auto verifier = make_verifier(of_type(prefix + name));
      EXPECT_GE(verifier->known_cases().size(), 2U) << name;
      EXPECT_NO_THROW(self_test(*verifier, std::chrono::seconds(10))) << prefix << name;
    }
  }
}

/// A verifier that scores everything alike, as a broken library call would make it.
class AlwaysZero final : public Verifier {
 public:
  std::string name() const override { return "always_zero"; }
  Result<Score> verify(const RewardInput& /*input*/, const CallLimits& /*limits*/) const override {
    return Score{0.0, false, {}};
  }
  std::vector<KnownCase> known_cases() const override {
    return make_verifier(of_type("math"))->known_cases();
  }
};

TEST(VerifierTest, SelfTestFindsAVerifierThatScoresEverythingZero) {
  EXPECT_THROW(self_test(AlwaysZero(), std::chrono::seconds(1)), ConfigError);
}

}  // namespace
}  // namespace baleen::rewards
