// The table of mathematical verification, hostile answers within their bounds, and properties.

#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "rewards/exact_number.h"
#include "rewards/make_verifier.h"
#include "rewards/math_answer.h"
#include "rewards/math_equality.h"
#include "rewards/math_form.h"

namespace baleen::rewards {
namespace {

double scored(const std::string& type,
              const std::string& response,
              const std::string& label,
              bool strict = true) {
  VerifierConfig config;
  config.rm_type = type;
  config.strict_fraction = strict;
  RewardInput input;
  input.response = response;
  input.label = label;
  const Result<Score> score = make_verifier(config)->verify(input, {});
  return score.ok() ? score->score : -100.0;
}

double boxed(const std::string& answer, const std::string& label, bool strict = true) {
  return scored("math", "so it is $\\boxed{" + answer + "}$.", label, strict);
}

struct MathCase {
  const char* answer;
  const char* label;
  double score;
};

TEST(MathVerifierTest, GivesTheListedScores) {
  const MathCase cases[] = {{"\\frac12", "1/2", 1},
                            {"0.5", "\\frac{1}{2}", 1},
                            {"\\frac{2}{4}", "\\frac{1}{2}", 0},
                            {"1,000", "1000", 1},
                            {"(1,2)", "(1, 2)", 1},
                            {"(2,1)", "(1,2)", 0},
                            {"\\{2,1\\}", "\\{1,2\\}", 1},
                            {"3.0", "3", 1},
                            {"3.1", "3", 0},
                            {"x=5", "5", 1},
                            {"\\sqrt{8}", "2\\sqrt2", 1},
                            {"2\\pi", "6.283", 0},
                            {"50\\%", "50", 1}};
  for (const MathCase& one : cases) {
    EXPECT_EQ(boxed(one.answer, one.label), one.score) << one.answer << " for " << one.label;
  }
  EXPECT_EQ(boxed("\\frac{2}{4}", "\\frac{1}{2}", false), 1.0);
  EXPECT_EQ(scored("math", "\\boxed{1} no, \\boxed{2}", "2"), 1.0);
  EXPECT_EQ(scored("math", "\\boxed{1} no, \\boxed{2}", "1"), 0.0);
  EXPECT_EQ(scored("math", "\\boxed{\\frac{1}{2}", "\\frac{1}{2}"), 0.0);  // braces left open
  EXPECT_EQ(scored("math", "it is 5", "5"), 0.0);
  EXPECT_EQ(scored("math", "\\fbox{5}", "\\boxed{5}"), 1.0);
  EXPECT_EQ(scored("math", "$\\boxed 5$ apples", "5"), 1.0);
  EXPECT_EQ(scored("dapo", "Answer: 2.5", "2.5"), 1.0);
  EXPECT_EQ(scored("dapo", "Answer: 5/2", "2.5"), 1.0);
  EXPECT_EQ(scored("dapo", "Answer: two and a half", "2.5"), -1.0);
}

TEST(MathVerifierTest, ReadsManySpellings) {
  const MathCase cases[] = {{"\\dfrac{3}{4}", "\\frac34", 1},
                            {"1\\frac{1}{2}", "1.5", 1},
                            {"-\\frac{1}{2}", "\\frac{-1}{2}", 1},
                            {".25", "0.25", 1},
                            {"1.5\\times10^{3}", "1500", 1},
                            {"1e3", "1000", 1},
                            {"\\$18", "18", 1},
                            {"18\\text{ dollars}", "18", 1},
                            {"18 \\mbox{ cm}.", "18", 1},
                            {"12\\text{ cm}^2", "12", 1},
                            {"12\\,\\text{m}^{3}.", "12", 1},
                            {"12\\text{ cm}+1", "12", 0},
                            {"\\text{east}", "east", 1},
                            {"\\text{east}", "west", 0},
                            {"90^\\circ", "90", 1},
                            {"90^{\\circ}", "90", 1},
                            {"90\xC2\xB0", "90", 1},
                            {"\\left(1,\\frac12\\right)", "(1,0.5)", 1},
                            {"[0,1)", "[0,1)", 1},
                            {"[0,1)", "[0,1]", 0},
                            {"(0,1]", "(0, 1]", 1},
                            {"\\{1,2,3\\}", "\\{1,2\\}", 0},
                            {"\\{1,1\\}", "\\{1,2\\}", 0},
                            {"(100,200)", "(100, 200)", 1},
                            {"(100,200)", "100200", 0},
                            {"1,234,567", "1234567", 1},
                            {"12,34", "1234", 0},
                            {"x+1", "1+x", 1},
                            {"(x+1)^2", "x^2+2x+1", 1},
                            {"(x+1)^2", "x^2+2x+2", 0},
                            {"\\frac{x^2-1}{x-1}", "x+1", 1},
                            {"\\frac{1}{\\sqrt{2}}", "\\frac{\\sqrt{2}}{2}", 1},
                            {"\\sqrt[3]{8}", "2", 1},
                            {"3\\pi", "\\pi\\cdot3", 1},
                            {"e^{i}", "e^i", 1},
                            {"i^2", "-1", 1},
                            {"x^{-1}", "\\frac{1}{x}", 1},
                            {"x^{\\frac{1}{2}}", "\\sqrt{x}", 1},
                            {"\\pi r^2", "r^2\\pi", 1},
                            {"2\\pi i", "2i\\pi", 1},
                            {"2 \\pi  x + 1", "1+2\\pi x", 1},
                            {"\\pi\\text{r}", "\\pi r", 0},  // a unit at the end
                            {"\\theta\\cdot x", "\\theta x", 1},
                            {"2xy", "2yx", 1},
                            {"2^x", "x^2", 0},
                            {"\\theta+1", "1+\\theta", 1},
                            {"a+b+c", "c+b+a", 0},  // more than two letters: refused
                            {"a+b+c", "a+b+c", 1},  // equal as written
                            {"2^{10}", "1024", 0},  // an exponent of two digits: refused
                            {"", "0", 0},
                            {"0", "-0", 1},
                            {"007", "7", 1},
                            {"y=2x+1", "2x+1", 1},
                            {"1/0", "1/0", 1},
                            {"1/0", "2/0", 0}};
  for (const MathCase& one : cases) {
    EXPECT_EQ(boxed(one.answer, one.label), one.score) << one.answer << " for " << one.label;
  }
}

TEST(MathVerifierTest, OrderOfOperationsIsTheUsualOne) {
  EXPECT_EQ(boxed("-x^2", "-(x^2)"), 1.0);
  EXPECT_EQ(boxed("-x^2", "(-x)^2"), 0.0);
  EXPECT_EQ(boxed("1-x-y", "1-(x+y)"), 1.0);
  EXPECT_EQ(boxed("1/x/y", "1/(xy)"), 1.0);
  EXPECT_EQ(boxed("2-3x", "(2-3)x"), 0.0);
}

TEST(MathVerifierTest, LabelsOfAnyKindAreComparedNotCrashedOn) {
  for (const char* label : {"",         "{",     "}",   "\\",  "\\frac",      "\\frac{", "\\sqrt[",
                            "(",        ")",     ",",   "(,)", "\\{",         "\\}",     "\\{\\}",
                            "^",        "x^",    "=",   "1e",  "1e999999999", "\\text{", "\xFF\xFE",
                            "\\boxed{", "1/2/3", "--1", "+",   "\\left",      "5^{2"}) {
    for (const char* type : {"math", "dapo", "boxed_math", "boxed_dapo", "f1", "exact"}) {
      EXPECT_GE(scored(type, "Answer: \\boxed{4}", label), -1.0) << type << " " << label;
      EXPECT_GE(scored(type, std::string("Answer: \\boxed{") + label + "}", "4"), -1.0);
    }
  }
}

// None of these may take more than linear time to read or the step budget to compare: the sizes are
// such that anything worse would not end.
TEST(MathVerifierTest, HostileAnswersAreRefused) {
  const std::string megabyte(1 << 20, '{');
  EXPECT_EQ(scored("math", megabyte, "1"), 0.0);
  EXPECT_EQ(scored("math", "\\boxed" + megabyte, "1"), 0.0);
  EXPECT_LT(compare_answers("9^{9^{9}}", "1", {}).steps, 100);
  EXPECT_EQ(boxed("9^{9^{9}}", "1"), 0.0);
  std::string boxes;
  for (int i = 0; i < 200'000; ++i) {
    boxes += "\\boxed{";
  }
  EXPECT_EQ(scored("math", boxes, "1"), 0.0);
  EXPECT_EQ(scored("math", "\\boxed{" + std::string(1 << 20, '1') + "}", "1"), 0.0);
  // As long as an answer that is looked into may be, of everything that nests or repeats.
  for (const char* piece : {"(",
                            "\\frac{1}{",
                            "\\sqrt{",
                            "\\text{",
                            "x+",
                            "-",
                            "1,",
                            "{",
                            "((1,",
                            "\\frac",
                            "9^",
                            "\\{1,",
                            "1,000,",
                            "x(",
                            "\\sqrt"}) {
    std::string answer;
    while (answer.size() + std::string(piece).size() < 4000) {
      answer += piece;
    }
    for (const char closing : {'}', ')'}) {
      const std::string closed = answer + std::string(50, closing);
      EXPECT_LT(compare_answers(closed, closed + "1", {}).steps, 1'100'000) << piece;
    }
  }
  // A set whose items all have to be held against each other.
  std::string set = "\\{0";
  std::string other = "\\{0";
  for (int i = 1; i < 256; ++i) {
    set += fmt::format(",x+{}", i);
    other += fmt::format(",{}+x", 256 - i);
  }
  EXPECT_LT(compare_answers(set + "\\}", other + "\\}", {}).steps, 1'100'000);
}

TEST(MathFormTest, ExactNumbersAreExact) {
  const auto same = [](const std::string& a, const std::string& b) {
    StepBudget budget;
    const auto x = parse_number(math_form(a, budget));
    const auto y = parse_number(math_form(b, budget));
    return x && y && same_number(*x, *y);
  };
  EXPECT_TRUE(same("0.1", "1/10"));
  EXPECT_TRUE(same("123456789012345678901234567890", "123456789012345678901234567890.0"));
  EXPECT_FALSE(same("123456789012345678901234567890", "123456789012345678901234567891"));
  EXPECT_TRUE(same("1e-5", "0.00001"));
  EXPECT_FALSE(same("0.33333333333333333333", "1/3"));
  EXPECT_TRUE(same("-1\\frac12", "-1.5"));
  EXPECT_FALSE(parse_number("1e401"));
  EXPECT_FALSE(parse_number("\\frac{1}{0}"));
  EXPECT_FALSE(parse_number("1.2.3"));
}

TEST(MathAnswerTest, FindsTheLastBox) {
  EXPECT_EQ(last_boxed("a \\boxed{b{c}} d"), "b{c}");
  EXPECT_EQ(last_boxed("\\boxed{1} \\fbox{2}"), "2");
  EXPECT_EQ(last_boxed("\\boxed { 3 }"), "3");
  EXPECT_FALSE(last_boxed("\\boxedness{4}"));
  EXPECT_FALSE(last_boxed("\\boxed"));
  EXPECT_FALSE(last_boxed(""));
  EXPECT_EQ(last_answer_line("Answer: 1\nANSWER:  2 \nrest"), "2");
  EXPECT_FALSE(last_answer_line("Answer: 1" + std::string(400, ' ')));
}

/// A random polynomial text and the same with its terms in another order and spelling.
RC_GTEST_PROP(MathPropertyTest, EqualPolynomialsAreEqualAndOthersAreNot, ()) {
  const auto coefficients = *rc::gen::container<std::vector<int>>(4, rc::gen::inRange(-9, 10));
  const auto term = [](int c, size_t power, bool x_first) {
    const std::string number = fmt::format("({})", c);
    const std::string x = power == 0 ? "1" : power == 1 ? "x" : fmt::format("x^{}", power);
    return x_first ? x + "\\cdot" + number : number + x;
  };
  std::string straight = "0";
  std::string reversed = "0";
  std::string other = "1";
  for (size_t k = 0; k < coefficients.size(); ++k) {
    straight += " + " + term(coefficients[k], k, false);
    other += " + " + term(coefficients[k], k, true);
    reversed +=
        " + " + term(coefficients[coefficients.size() - 1 - k], coefficients.size() - 1 - k, true);
  }
  RC_ASSERT(compare_answers(straight, reversed, {}).equal);
  RC_ASSERT(!compare_answers(straight, other, {}).equal);
}

RC_GTEST_PROP(MathPropertyTest, AnythingIsAnsweredWithoutACrash, ()) {
  static const char* const kPieces[] = {"\\frac", "{",    "}", "\\sqrt", "[",   "]",      "(",
                                        ")",      ",",    "1", "2.5",    "x",   "^",      "-",
                                        "/",      "*",    "=", "\\{",    "\\}", "\\text", "$",
                                        " ",      "\\pi", "e", "%",      ".",   "\\left", "0"};
  const auto draw = [] {
    std::string text;
    for (const int i : *rc::gen::container<std::vector<int>>(rc::gen::inRange(0, 28))) {
      text += kPieces[i];
    }
    return text;
  };
  const std::string answer = draw();
  const std::string label = draw();
  compare_answers(answer, label, {});
  StepBudget budget;
  const std::string form = math_form(answer, budget);
  RC_ASSERT(compare_answers(answer, answer, {}).equal == !form.empty());
}

}  // namespace
}  // namespace baleen::rewards
