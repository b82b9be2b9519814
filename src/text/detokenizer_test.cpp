#include "text/detokenizer.h"

#include <fstream>
#include <iterator>
#include <random>

#include <boost/json.hpp>
#include <gtest/gtest.h>

#include "text/utf8.h"

namespace baleen::text {
namespace {

std::string from_hex(std::string_view hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  }
  return bytes;
}

TEST(DetokenizerTest, CharactersThatSpanTokens) {
  std::ifstream stream("tests/cases/H12_utf8_split_across_tokens.json");
  ASSERT_TRUE(stream) << "the case file is missing";
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  const boost::json::value file = boost::json::parse(text);
  const auto& subcases = file.at("subcases").as_array();
  EXPECT_EQ(subcases.size(), 5U);
  for (const boost::json::value& subcase : subcases) {
    SCOPED_TRACE(subcase.at("name").as_string().c_str());
    Detokenizer detokenizer;
    std::string joined;
    const auto& tokens = subcase.at("token_bytes_hex").as_array();
    const auto& steps = subcase.at("expected_emitted_per_step").as_array();
    ASSERT_EQ(tokens.size(), steps.size());
    for (size_t i = 0; i < tokens.size(); ++i) {
      std::string out;
      detokenizer.push(from_hex(tokens[i].as_string()), out);
      EXPECT_EQ(out, std::string_view(steps[i].as_string())) << "step " << i;
      joined += out;
    }
    std::string tail;
    detokenizer.flush(tail);
    EXPECT_EQ(tail, std::string_view(subcase.at("expected_flush_at_end").as_string()));
    EXPECT_EQ(joined + tail, std::string_view(subcase.at("joined").as_string()));
  }
}

TEST(DetokenizerTest, EveryCutGivesTheLossyText) {
  // Bytes chosen so that beginnings, continuations and impossible bytes all meet.
  constexpr unsigned char kBytes[] = {
      'a', 0x80, 0xA0, 0xBF, 0xC1, 0xC3, 0xE0, 0xE6, 0xED, 0xF0, 0xF4, 0xF5, 0x90, 0x8F, 0x9F};
  std::mt19937 random(1);
  for (int round = 0; round < 20000; ++round) {
    std::string bytes;
    for (int i = 0; i < 8; ++i) {
      bytes += static_cast<char>(kBytes[random() % std::size(kBytes)]);
    }
    std::string out;
    Detokenizer detokenizer;
    for (size_t i = 0; i < bytes.size();) {
      const size_t num_bytes = 1 + random() % 3;
      detokenizer.push(std::string_view(bytes).substr(i, num_bytes), out);
      i += num_bytes;
    }
    detokenizer.flush(out);
    ASSERT_EQ(out, utf8_lossy(bytes));
  }
}

TEST(Utf8Test, KnowsEveryCharacterAndItsNeighbours) {
  EXPECT_EQ(utf8_lossy("\xC0\x80"), "\uFFFD\uFFFD");            // overlong
  EXPECT_EQ(utf8_lossy("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");  // surrogate
  EXPECT_EQ(utf8_lossy("\xF4\x90\x80\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(utf8_lossy("\xE6\x95x"), "\uFFFDx");  // one for a broken-off run
  EXPECT_EQ(utf8_lossy("\xEF\xBF\xBF\xF4\x8F\xBF\xBF"), "\xEF\xBF\xBF\xF4\x8F\xBF\xBF");
}

}  // namespace
}  // namespace baleen::text
