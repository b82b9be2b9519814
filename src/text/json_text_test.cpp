#include "text/json_text.h"

#include <bit>
#include <cmath>
#include <cstdlib>
#include <random>

#include <gtest/gtest.h>

namespace baleen::text {
namespace {

std::string rendered(const std::string& json) {
  const auto value = parse_json(json);
  return value ? json_text(*value) : "not JSON";
}

TEST(JsonTextTest, NumbersKeepTheirDigitsOrTheirShortestForm) {
  EXPECT_EQ(rendered("12345678901234567890"), "12345678901234567890");
  EXPECT_EQ(rendered("-123456789012345678901234567890"), "-123456789012345678901234567890");
  EXPECT_EQ(rendered("-0"), "0");
  EXPECT_EQ(rendered("18446744073709551615"), "18446744073709551615");
  EXPECT_EQ(rendered("1.50"), "1.5");
  EXPECT_EQ(rendered("1.0"), "1.0");
  EXPECT_EQ(rendered("1e5"), "100000.0");
  EXPECT_EQ(rendered("1e16"), "1e+16");
  EXPECT_EQ(rendered("1E15"), "1000000000000000.0");
  EXPECT_EQ(rendered("9007199254740993.0"), "9007199254740992.0");
  EXPECT_EQ(rendered("1e-5"), "1e-05");
  EXPECT_EQ(rendered("0.0001"), "0.0001");
  EXPECT_EQ(rendered("0.00012345"), "0.00012345");
  EXPECT_EQ(rendered("12345.678e2"), "1234567.8");
  EXPECT_EQ(rendered("-0.0"), "-0.0");
  EXPECT_EQ(rendered("1.5e300"), "1.5e+300");
  EXPECT_EQ(rendered("5e-324"), "5e-324");
  EXPECT_EQ(rendered("1e-400"), "0.0");
  EXPECT_EQ(rendered("1e400"), "Infinity");
  EXPECT_EQ(rendered("-1e400"), "-Infinity");
  EXPECT_EQ(rendered("0.1"), "0.1");
  EXPECT_EQ(rendered("123456789012345680.0"), "1.2345678901234568e+17");
  EXPECT_EQ(json_float_text(std::nan("")), "NaN");
}

TEST(JsonTextTest, FloatsSurviveTheRoundTrip) {
  std::mt19937_64 random(5);
  for (int i = 0; i < 20000; ++i) {
    const double value = std::bit_cast<double>(random());
    if (std::isfinite(value)) {
      ASSERT_EQ(std::strtod(json_float_text(value).c_str(), nullptr), value);
      ASSERT_EQ(rendered(json_float_text(value)), json_float_text(value));
    }
  }
}

TEST(JsonTextTest, StringsEscapeTheLeast) {
  EXPECT_EQ(rendered(R"("a\u00e9\/\u007f\u4f60")"), "\"aé/\x7f你\"");
  EXPECT_EQ(rendered(R"("\"\\\n\r\t\b\f\u0001\u001f")"), R"("\"\\\n\r\t\b\f\u0001\u001f")");
  EXPECT_EQ(rendered(R"("\ud83d\ude42")"), "\"🙂\"");
  EXPECT_EQ(json_string("a\"\n"), R"("a\"\n")");
}

TEST(JsonTextTest, SeparatorsAndOrder) {
  EXPECT_EQ(rendered("{\"b\":[1,true,null,{}],\"a\":{\"x\":[]}}"),
            R"({"b": [1, true, null, {}], "a": {"x": []}})");
  EXPECT_EQ(rendered(" [ 1 , 2 ] \n"), "[1, 2]");
  EXPECT_EQ(rendered(R"({"a": 1, "b": 2, "a": [3]})"), R"({"a": [3], "b": 2})");
  EXPECT_EQ(rendered(R"({"": false})"), R"({"": false})");
}

TEST(JsonTextTest, RefusesWhatIsNotJson) {
  for (const std::string text : {"",
                                 " ",
                                 "{",
                                 "[1,]",
                                 "{\"a\" 1}",
                                 "nul",
                                 "NaN",
                                 "1 2",
                                 "01",
                                 "+1",
                                 "'a'",
                                 "\"a\nb\"",
                                 "\"\\ud83d\"",
                                 "// x\n1",
                                 "\"a",
                                 "1."}) {
    std::string error;
    EXPECT_FALSE(parse_json(text, &error)) << text;
    EXPECT_FALSE(error.empty()) << text;
  }
  const std::string deep(400, '[');
  EXPECT_TRUE(parse_json(deep + std::string(400, ']')));
  EXPECT_FALSE(parse_json(std::string(600, '[') + std::string(600, ']')));
}

TEST(JsonTextTest, FindsMembers) {
  const auto value = parse_json(R"({"a": {"b": "c"}})");
  EXPECT_EQ(value->find("a")->find("b")->text, "c");
  EXPECT_EQ(value->find("b"), nullptr);
  EXPECT_EQ(value->find("a")->find("b")->find("c"), nullptr);
}

}  // namespace
}  // namespace baleen::text
