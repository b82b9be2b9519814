// Regular expressions: against std::regex on random patterns, refusals, and linear time.

#include "rewards/linear_regex.h"

#include <regex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace baleen::rewards {
namespace {

bool matches(std::string_view pattern, std::string_view text) {
  StepBudget budget(100'000'000);
  const Result<LinearRegex> regex = LinearRegex::compile(pattern);
  EXPECT_TRUE(regex.ok()) << pattern;
  return regex.ok() && regex->search(text, budget).value();
}

TEST(LinearRegexTest, KnowsTheUsualSyntax) {
  EXPECT_TRUE(matches("b+", "abbc"));
  EXPECT_FALSE(matches("^b", "ab"));
  EXPECT_TRUE(matches("^(ab|cd)*$", "abcdab"));
  EXPECT_FALSE(matches("^(ab|cd)*$", "abc"));
  EXPECT_TRUE(matches("^a{2,3}$", "aaa"));
  EXPECT_FALSE(matches("^a{2,3}$", "aaaa"));
  EXPECT_TRUE(matches("^a{2,}$", "aaaaa"));
  EXPECT_TRUE(matches("^[^a-c]+$", "xyz"));
  EXPECT_TRUE(matches("^[]a]+$", "]a"));
  EXPECT_TRUE(matches("^[\\d-]+$", "1-2"));
  EXPECT_TRUE(matches("^\\w+\\s\\S+$", "ab_1 ?!"));
  EXPECT_TRUE(matches("(?i)^HELLO$", "hello"));
  EXPECT_TRUE(matches("(?i)^[a-f]+$", "DEAD"));
  EXPECT_FALSE(matches("^.$", "\n"));
  EXPECT_TRUE(matches("(?s)^.$", "\n"));
  EXPECT_TRUE(matches("(?m)^b$", "a\nb\nc"));
  EXPECT_TRUE(matches("\\bcat\\b", "a cat."));
  EXPECT_FALSE(matches("\\bcat\\b", "concat"));
  EXPECT_TRUE(matches("^.$", "\xC3\xA9"));  // one code point
  EXPECT_TRUE(matches("^[\xC3\xA0-\xC3\xBC]$", "\xC3\xA9"));
  EXPECT_TRUE(matches("", "anything"));
  EXPECT_TRUE(matches("^$", ""));
  EXPECT_TRUE(matches("(?:a|)b", "b"));
  EXPECT_TRUE(matches("a*?b", "aab"));
  EXPECT_TRUE(matches("^\\{\\}\\.\\\\$", "{}.\\"));
  EXPECT_TRUE(matches("(a*)*b", "aab"));
}

TEST(LinearRegexTest, RefusesWhatItCannotDoInLinearTime) {
  using testing::HasSubstr;
  const std::pair<const char*, const char*> cases[] = {{"(a)\\1", "back-references"},
                                                       {"(?=a)", "look-around"},
                                                       {"(?<n>a)", "look-around"},
                                                       {"(", "( without )"},
                                                       {")", ") without ("},
                                                       {"[a", "[ without ]"},
                                                       {"*a", "nothing to repeat"},
                                                       {"a{3,2}", "malformed"},
                                                       {"a{2000}", "above 1000"},
                                                       {"[b-a]", "backwards"},
                                                       {"\\", "at the end"},
                                                       {"((a{999}){999}){999}", "too large"},
                                                       {"\\q", "unknown escape"}};
  for (const auto& [pattern, reason] : cases) {
    const Result<LinearRegex> regex = LinearRegex::compile(pattern);
    ASSERT_FALSE(regex.ok()) << pattern;
    EXPECT_THAT(regex.status().message, HasSubstr(reason)) << pattern;
  }
  EXPECT_FALSE(LinearRegex::compile(std::string(100'000, '(')).ok());
}

TEST(LinearRegexTest, TimeIsLinearWhereBacktrackingIsNot) {
  const std::string text(5'000, 'a');
  for (const char* pattern : {"^(a+)+$", "^(a|a)*b", "^(a*)*b", "(.*)*x"}) {
    const Result<LinearRegex> regex = LinearRegex::compile(pattern);
    ASSERT_TRUE(regex.ok());
    StepBudget budget(40 * 5'000);
    EXPECT_TRUE(regex->search(text, budget).has_value()) << pattern;
  }
  StepBudget small(1'000);
  EXPECT_FALSE(LinearRegex::compile("(.*)*x")->search(text, small).has_value());
}

RC_GTEST_PROP(LinearRegexPropertyTest, AgreesWithTheStandardLibrary, ()) {
  static const char* const kPieces[] = {"a",
                                        "b",
                                        "[ab]",
                                        "[^a]",
                                        ".",
                                        "(a|b)",
                                        "(ab)*",
                                        "a+",
                                        "b?",
                                        "a{2}",
                                        "(a|)",
                                        "^",
                                        "$",
                                        "b*",
                                        "(b+a)?"};
  std::string pattern;
  for (const int i : *rc::gen::container<std::vector<int>>(5, rc::gen::inRange(0, 15))) {
    pattern += kPieces[i];
  }
  std::string text;
  for (const int i : *rc::gen::container<std::vector<int>>(7, rc::gen::inRange(0, 3))) {
    text += "abc"[i];
  }
  RC_ASSERT(matches(pattern, text) == std::regex_search(text, std::regex(pattern)));
}

}  // namespace
}  // namespace baleen::rewards
