#include "text/tokenizer.h"

#include <cstddef>
#include <fstream>
#include <iterator>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "text/pre_tokenizer.h"

namespace baleen::text {
namespace {

constexpr const char* kTinyFile = "src/text/testdata/tiny_tokenizer.json";

std::string tiny_json() {
  std::ifstream stream(kTinyFile, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

/// The tiny vocabulary with one place of its file changed.
std::string changed(const std::string& from, const std::string& to) {
  std::string json = tiny_json();
  const size_t place = json.find(from);
  EXPECT_NE(place, std::string::npos) << from;
  return json.replace(place, from.size(), to);
}

void expect_refused(const std::string& json, const std::vector<std::string>& mentions) {
  try {
    Tokenizer::parse(json, "some/tokenizer.json");
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("some/tokenizer.json"));
    for (const std::string& mention : mentions) {
      EXPECT_THAT(error.what(), testing::HasSubstr(mention));
    }
  }
}

class TinyTokenizerTest : public testing::Test {
 protected:
  std::shared_ptr<const Tokenizer> tokenizer_ = Tokenizer::load(kTinyFile);
  std::vector<int32_t> ids_of(std::initializer_list<const char*> tokens) const {
    std::vector<int32_t> ids;
    for (const char* token : tokens) {
      ids.push_back(tokenizer_->find(token).value_or(-100));
    }
    return ids;
  }
};

TEST_F(TinyTokenizerTest, MergesByRankInsideWords) {
  EXPECT_EQ(tokenizer_->encode("hello the"), ids_of({"hello", " the"}));
  EXPECT_EQ(tokenizer_->encode("hell"), ids_of({"hell"}));
  EXPECT_EQ(tokenizer_->encode("你好"), ids_of({"你", "好"}));
  EXPECT_TRUE(tokenizer_->encode("").empty());
}

TEST_F(TinyTokenizerTest, FindsAddedTokensAnywhereInRawText) {
  EXPECT_EQ(tokenizer_->encode("a<think>b</think>"), ids_of({"a", "<think>", "b", "</think>"}));
  EXPECT_EQ(tokenizer_->encode("<<｜User｜>"), ids_of({"<", "<｜User｜>"}));
  EXPECT_EQ(tokenizer_->encode("<think"), ids_of({"<", "t", "h", "in", "k"}));
}

TEST_F(TinyTokenizerTest, ScansOnlyEngineMadePieces) {
  const std::vector<PromptPiece> pieces = {
      {"<｜User｜>", true}, {"<think>", false}, {"<think>", true}};
  std::vector<int32_t> expected = ids_of({"<｜User｜>", "<", "t", "h", "in", "k", ">", "<think>"});
  EXPECT_EQ(tokenizer_->encode(pieces), expected);
  EXPECT_EQ(tokenizer_->decode(expected), "<｜User｜><think><think>");
}

TEST_F(TinyTokenizerTest, BordersOfPiecesDoNotShowInIds) {
  const std::vector<PromptPiece> pieces = {{"he", false}, {"llo t", true}, {"he", false}};
  EXPECT_EQ(tokenizer_->encode(pieces), tokenizer_->encode("hello the"));
  // A caller's text cannot become a control token together with the engine's.
  const std::vector<PromptPiece> split = {{"<thi", false}, {"nk>", true}};
  EXPECT_THAT(tokenizer_->encode(split), testing::Not(testing::Contains(ids_of({"<think>"})[0])));
}

TEST_F(TinyTokenizerTest, KeepsBytesThatAreNotUtf8) {
  const std::string text = "a\xFF\xE4\xBD hello\xF0\x9F";
  std::string bytes;
  for (const int32_t id : tokenizer_->encode(text)) {
    bytes += tokenizer_->token_bytes(id);
  }
  EXPECT_EQ(bytes, text);
  EXPECT_EQ(tokenizer_->decode(tokenizer_->encode(text)), "a\uFFFD\uFFFD hello\uFFFD");
}

TEST_F(TinyTokenizerTest, KnowsItsTokens) {
  EXPECT_EQ(tokenizer_->bos_id(), 0);
  EXPECT_EQ(tokenizer_->eos_id(), 1);
  EXPECT_EQ(tokenizer_->vocab_size(), 297);
  EXPECT_TRUE(tokenizer_->is_special(1));
  EXPECT_FALSE(tokenizer_->is_special(*tokenizer_->find("<think>")));
  EXPECT_TRUE(tokenizer_->is_added(*tokenizer_->find("<think>")));
  EXPECT_FALSE(tokenizer_->is_added(*tokenizer_->find("hello")));
  EXPECT_FALSE(tokenizer_->is_known(297));
  EXPECT_FALSE(tokenizer_->is_known(-1));
  EXPECT_EQ(tokenizer_->token_bytes(297), "");
  EXPECT_EQ(tokenizer_->find("hellox"), std::nullopt);
  const std::vector<int32_t> ids = {1, 300, *tokenizer_->find("hello")};
  EXPECT_EQ(tokenizer_->decode(ids, true), "hello");
  EXPECT_EQ(tokenizer_->decode(ids), std::string(kEosText) + "hello");
}

TEST_F(TinyTokenizerTest, NamesAMissingToken) {
  EXPECT_EQ(tokenizer_->require("<think>", "profile v4"), *tokenizer_->find("<think>"));
  try {
    (void)tokenizer_->require("<｜deepseek_image｜>", "the vision profile");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("<｜deepseek_image｜>"));
    EXPECT_THAT(error.what(), testing::HasSubstr("the vision profile"));
  }
}

/// BPE by the book. In the tiny vocabulary the id of a merged token grows with the rank of its
/// rule, and two tokens whose texts join to a third one are always the pair of a rule.
std::vector<int32_t> merge_by_the_book(const Tokenizer& tokenizer, const std::string& word) {
  std::vector<int32_t> ids;
  for (const char c : word) {
    ids.push_back(tokenizer.find(std::string(1, c)).value());
  }
  while (true) {
    std::optional<int32_t> best;
    size_t place = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto joined = tokenizer.find(std::string(tokenizer.token_bytes(ids[i])) +
                                         std::string(tokenizer.token_bytes(ids[i + 1])));
      if (joined && (!best || *joined < *best)) {
        best = joined;
        place = i;
      }
    }
    if (!best) {
      return ids;
    }
    ids[place] = *best;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(place) + 1);
  }
}

TEST_F(TinyTokenizerTest, WordsOfEveryLengthMergeByTheBook) {
  std::mt19937 random(7);
  for (size_t length = 1; length <= 80; ++length) {  // a heap takes over after 24 bytes
    for (int round = 0; round < 30; ++round) {
      std::string word;
      while (word.size() < length) {
        word += "helontrd"[random() % 8];
      }
      ASSERT_EQ(tokenizer_->encode(word), merge_by_the_book(*tokenizer_, word)) << word;
    }
  }
}

TEST_F(TinyTokenizerTest, LongRunsTakeNoQuadraticTime) {
  constexpr size_t kRun = 500'000;
  EXPECT_EQ(tokenizer_->encode(std::string(kRun, 'l')).size(), kRun / 2);
  // The last space goes with the letter.
  EXPECT_EQ(tokenizer_->encode(std::string(kRun + 1, ' ') + "x").size(), kRun / 2 + 2);
  EXPECT_EQ(tokenizer_->encode(std::string(kRun, '\n')).size(), kRun / 2);
  EXPECT_EQ(tokenizer_->encode(std::string(kRun, '!')).size(), kRun);
  EXPECT_EQ(tokenizer_->encode(std::string(kRun, '<')).size(), kRun);
}

TEST(TokenizerFileTest, AcceptsMergesAsPairs) {
  const auto tokenizer = Tokenizer::parse(changed("\"h e\"", "[\"h\", \"e\"]"), "x");
  EXPECT_EQ(tokenizer->encode("he").size(), 1U);
}

TEST(TokenizerFileTest, RefusesWhatItDoesNotImplement) {
  expect_refused("{", {"not JSON"});
  expect_refused("[]", {"must be an object"});
  expect_refused(changed("\"normalizer\": null", "\"normalizer\": {\"type\": \"NFC\"}"),
                 {"normalizer"});
  expect_refused(changed("\"truncation\": null", "\"truncation\": {}"), {"truncation"});
  expect_refused(
      changed("\"post_processor\": null", "\"post_processor\": {\"type\": \"TemplateProcessing\"}"),
      {"post_processor"});
  expect_refused(changed("\"post_processor\"", "\"postprocessor\""), {"postprocessor"});
  expect_refused(changed("\"type\": \"Split\"", "\"type\": \"Digits\""),
                 {"pretokenizers[0].type", "Digits"});
  expect_refused(changed("\"Isolated\"", "\"Removed\""), {"pretokenizers[0].behavior", "Removed"});
  expect_refused(changed("\"invert\": false", "\"invert\": true"), {"pretokenizers[0].invert"});
  expect_refused(changed("\"Regex\"", "\"String\""), {"pretokenizers[0].pattern.String"});
  expect_refused(changed("\\\\p{N}{1,3}", "\\\\p{N}{0,3}"), {"empty string"});
  expect_refused(changed("\\\\p{N}{1,3}", "(\\\\p{N}"), {"cannot be compiled"});
  expect_refused(changed("\\\\p{N}{1,3}", "[\\\\S]"), {"inside a class"});
  expect_refused(changed("\"add_prefix_space\": false", "\"add_prefix_space\": true"),
                 {"pretokenizers[3].add_prefix_space"});
  expect_refused(changed("\"use_regex\": false", "\"use_regex\": true"),
                 {"pretokenizers[3].use_regex"});
  expect_refused(changed("\"type\": \"BPE\"", "\"type\": \"Unigram\""), {"model.type", "Unigram"});
  expect_refused(changed("\"byte_fallback\": false", "\"byte_fallback\": true"),
                 {"model.byte_fallback"});
  expect_refused(changed("\"dropout\": null", "\"dropout\": 0.1"), {"model.dropout"});
  expect_refused(changed("\"lstrip\": false", "\"lstrip\": true"), {"added_tokens[0].lstrip"});
}

TEST(TokenizerFileTest, ChecksItsLayout) {
  expect_refused(changed("\"Ā\": 191", "\"zz\": 191"), {"byte 0x00", "Ā"});
  expect_refused(changed("\"h e\"", "\"h ee\""), {"model.merges[1]", "'ee'"});
  expect_refused(changed("\"h e\"", "\"h q\""), {"model.merges[1]", "'hq'"});
  expect_refused(changed("\"h e\"", "\"he\""), {"model.merges[1]"});
  expect_refused(changed("\"he\": 260", "\"he\": 262"), {"id 262", "two tokens"});
  expect_refused(changed("\"he\": 260", "\"he\": -1"), {"model.vocab['he']"});
  expect_refused(changed("\"he\": 260", "\"he\": 260, \"漢\": 400"), {"model.vocab['漢']"});
  expect_refused(changed("\"content\": \"<think>\"", "\"content\": \"</think>\""),
                 {"</think>", "twice"});
  expect_refused(changed("\"id\": 1,", "\"id\": 900,"), {"900", "model.vocab"});
}

TEST(TokenizerFileTest, NamesAMissingFile) {
  EXPECT_THROW(Tokenizer::load("no/such/tokenizer.json"), ConfigError);
}

TEST(PreTokenizerTest, WhiteSpaceIsSpelledOut) {
  EXPECT_THAT(spell_out_white_space(R"(\s+(?!\S))"), testing::StartsWith(R"([\x{9}-\x{d})"));
  EXPECT_THAT(spell_out_white_space(R"([\sa])"), testing::EndsWith(R"(\x{3000}a])"));
  EXPECT_EQ(spell_out_white_space(R"([\S])"), "");
  EXPECT_EQ(spell_out_white_space(R"([\]\\]s)"), R"([\]\\]s)");
  const PreTokenizer chain({R"(\s+)"}, "x");
  std::vector<std::string> pieces;
  // U+180E is no white space, U+2009 and U+0085 are.
  chain.split("a\u180Eb\u2009\u0085c", [&](std::string_view piece) { pieces.emplace_back(piece); });
  EXPECT_THAT(pieces, testing::ElementsAre("a\u180Eb", "\u2009\u0085", "c"));
}

}  // namespace
}  // namespace baleen::text
