#include "abacus/dialogue.h"

#include <cstdlib>
#include <fstream>
#include <regex>
#include <string>

#include <gtest/gtest.h>

#include "abacus/batch.h"
#include "rl/held_out_pairs.h"
#include "text/chat_renderer.h"

namespace baleen::abacus {
namespace {

using rl::held_out;
using rl::kMaxOperand;
using rl::kStepOperands;

int64_t count_bytes(std::string_view text) {
  return static_cast<int64_t>(text.size());
}

const Phrases& phrases() {
  static const Phrases kPhrases = read_phrases("tools/abacus/phrases.json");
  return kPhrases;
}

std::string whole_text(const Dialogue& dialogue) {
  std::string text;
  for (const Piece& piece : dialogue.pieces) {
    text += piece.text;
  }
  return text;
}

Dialogue dialogue_of(uint64_t row, const DialogueShape& shape) {
  Draws draws(7, Draws::kDialogues, row);
  return make_dialogue(phrases(), shape, count_bytes, draws);
}

TEST(AbacusWorkedStepTest, CarriesBorrowsAndLeavesOutTensOfSmallNumbers) {
  EXPECT_EQ(worked_step(37, 58, '+'), "37+58: 7+8=15, 3+5+1=9.");
  EXPECT_EQ(worked_step(23, 14, '+'), "23+14: 3+4=7, 2+1=3.");
  EXPECT_EQ(worked_step(7, 8, '+'), "7+8: 7+8=15.");
  EXPECT_EQ(worked_step(99, 99, '+'), "99+99: 9+9=18, 9+9+1=19.");
  EXPECT_EQ(worked_step(42, 17, '-'), "42-17: 12-7=5, 4-1-1=2.");
  EXPECT_EQ(worked_step(37, 12, '-'), "37-12: 7-2=5, 3-1=2.");
  EXPECT_EQ(worked_step(10, 9, '-'), "10-9: 10-9=1, 1-0-1=0.");
}

TEST(AbacusHeldOutTest, IsSymmetricSparesWorkedStepsAndEqualsTheCommittedList) {
  std::string list = "low,high\n";
  int64_t count = 0;
  for (int a = 0; a <= kMaxOperand; ++a) {
    for (int b = a; b <= kMaxOperand; ++b) {
      EXPECT_EQ(held_out(a, b), held_out(b, a));
      if (held_out(a, b)) {
        EXPECT_GE(b, kStepOperands);
        list += std::to_string(a) + "," + std::to_string(b) + "\n";
        ++count;
      }
    }
  }
  // Each pair gives a sum, its swap and a difference: well above 1,000 unseen questions.
  EXPECT_GT(count, 400);
  std::ifstream file("models/abacus/held_out.csv");
  EXPECT_EQ(list, std::string(std::istreambuf_iterator<char>(file), {}));
}

TEST(AbacusDialogueTest, AnswersAreRightAndPairsAreOfTheirKind) {
  // Questions in the plainest wordings can be read back; the others take the same path.
  const std::regex plain(R"(<｜User｜>(\d+) ?([-+]) ?(\d+) ?=?<｜Assistant｜>)");
  for (const Pairs pairs : {Pairs::kTraining, Pairs::kHeldOut}) {
    int64_t checked = 0;
    for (uint64_t row = 0; row < 400; ++row) {
      const Dialogue dialogue = dialogue_of(row, {.max_tokens = 3000, .pairs = pairs});
      for (std::size_t i = 0; i + 1 < dialogue.pieces.size(); i += 2) {
        std::smatch found;
        if (!std::regex_search(dialogue.pieces[i].text, found, plain)) {
          continue;
        }
        const int a = std::stoi(found[1]);
        const int b = std::stoi(found[3]);
        EXPECT_EQ(held_out(a, b), pairs == Pairs::kHeldOut) << a << " " << b;
        const int result = found[2] == "+" ? a + b : a - b;
        EXPECT_GE(result, 0);
        EXPECT_TRUE(
            dialogue.pieces[i + 1].text.ends_with(std::to_string(result) + "<｜end▁of▁sentence｜>"))
            << dialogue.pieces[i + 1].text;
        ++checked;
      }
    }
    EXPECT_GT(checked, 1000);
  }
}

TEST(AbacusDialogueTest, SharesOfDifferencesBelowZeroAndOfNearNumbersAreKept) {
  const std::regex plain(R"(<｜User｜>(\d+) ?([-+]) ?(\d+) ?=?<｜Assistant｜>)");
  int64_t differences = 0;
  int64_t below = 0;
  int64_t near = 0;
  int64_t questions = 0;
  for (uint64_t row = 0; row < 600; ++row) {
    const Dialogue dialogue =
        dialogue_of(row, {.max_tokens = 2000, .below_zero_share = 0.5, .near_share = 0.4});
    for (std::size_t i = 0; i + 1 < dialogue.pieces.size(); i += 2) {
      std::smatch found;
      const Piece& asked = dialogue.pieces[i];
      if (asked.topic != Topic::kQuestion || !std::regex_search(asked.text, found, plain)) {
        continue;
      }
      const int a = std::stoi(found[1]);
      const int b = std::stoi(found[3]);
      EXPECT_FALSE(held_out(a, b));
      const bool difference = found[2] == "-";
      const int result = difference ? a - b : a + b;
      EXPECT_TRUE(
          dialogue.pieces[i + 1].text.ends_with(std::to_string(result) + "<｜end▁of▁sentence｜>"))
          << dialogue.pieces[i + 1].text;
      ++questions;
      near += std::abs(a - b) <= 3 ? 1 : 0;
      differences += difference ? 1 : 0;
      below += difference && result < 0 ? 1 : 0;
    }
  }
  EXPECT_GT(questions, 1000);
  // Half of the differences; four tenths of the questions and, of the rest, some seven in a
  // hundred.
  EXPECT_NEAR(static_cast<double>(below) / static_cast<double>(differences), 0.5, 0.06);
  EXPECT_NEAR(static_cast<double>(near) / static_cast<double>(questions), 0.45, 0.06);
  EXPECT_EQ(worked_step(3, 58, '-'), "3-58: 58-3: 8-3=5, 5-0=5.");
}

TEST(AbacusDialogueTest, TextEqualsTheChatRenderer) {
  int64_t with_effort = 0;
  for (uint64_t row = 0; row < 600; ++row) {
    const Dialogue dialogue = dialogue_of(row, {.max_tokens = 3000});
    std::vector<text::ChatMessage> messages;
    for (const Message& message : dialogue.messages) {
      text::ChatMessage& sent = messages.emplace_back();
      sent.role = *text::parse_role(message.role);
      sent.content = message.content;
      sent.reasoning_content = message.reasoning;
    }
    text::RenderOptions options;
    options.thinking = dialogue.thinking;
    if (dialogue.effort_max) {
      options.effort.level = text::EffortLevel::kMax;
      ++with_effort;
    }
    const Result<text::RenderedPrompt> prompt = text::render_messages(messages, options);
    ASSERT_TRUE(prompt.ok());
    EXPECT_EQ(prompt->text(), whole_text(dialogue));
  }
  EXPECT_GT(with_effort, 0);
}

TEST(AbacusDialogueTest, IsAFunctionOfTheRow) {
  const DialogueShape shape{.max_tokens = 2000};
  EXPECT_EQ(whole_text(dialogue_of(5, shape)), whole_text(dialogue_of(5, shape)));
  EXPECT_NE(whole_text(dialogue_of(5, shape)), whole_text(dialogue_of(6, shape)));
}

TEST(AbacusBatchTest, RowsFitAndTheStreamEqualsDirectEncoding) {
  const auto tokenizer = text::Tokenizer::load("models/abacus/tokenizer.json");
  const RowEncoder encoder(phrases(), tokenizer);
  const std::vector<BatchShape> shapes = {{3, 64, 0.5}, {2, 384, 0.5}};
  constexpr int64_t kFirstStep = 5;
  BatchStream stream(encoder, 11, shapes, kFirstStep, 3);
  for (int64_t step = kFirstStep; step < kFirstStep + 6; ++step) {
    const Batch batch = stream.next();
    const BatchShape& shape = shapes[static_cast<std::size_t>(step % 2)];
    ASSERT_EQ(batch.tokens, shape.tokens);
    const Batch direct =
        encoder.encode_batch(11, static_cast<uint64_t>(step) << 16, shape, Pairs::kTraining);
    EXPECT_EQ(batch.ids, direct.ids);
    EXPECT_EQ(batch.kinds, direct.kinds);
    for (int64_t row = 0; row < batch.rows; ++row) {
      EXPECT_EQ(batch.ids[static_cast<std::size_t>(row * batch.tokens)], tokenizer->bos_id());
    }
  }
}

TEST(AbacusBatchTest, PiecesEncodeLikeTheWholeText) {
  const auto tokenizer = text::Tokenizer::load("models/abacus/tokenizer.json");
  const RowEncoder encoder(phrases(), tokenizer);
  const Batch batch = encoder.encode_batch(3, 0, {40, 600, 0.5}, Pairs::kTraining);
  for (int64_t row = 0; row < batch.rows; ++row) {
    std::vector<int32_t> ids;
    for (int64_t t = 0; t < batch.tokens; ++t) {
      const auto at = static_cast<std::size_t>(row * batch.tokens + t);
      if (batch.kinds[at] != static_cast<uint8_t>(TokenKind::kPad)) {
        ids.push_back(static_cast<int32_t>(batch.ids[at]));
      }
    }
    EXPECT_EQ(tokenizer->encode(tokenizer->decode(ids)), ids);
  }
}

TEST(AbacusTokenizerTest, DigitsNeverMergeAndControlTokensAreThere) {
  const auto tokenizer = text::Tokenizer::load("models/abacus/tokenizer.json");
  EXPECT_EQ(tokenizer->bos_id(), 0);
  EXPECT_EQ(tokenizer->eos_id(), 1);
  EXPECT_EQ(tokenizer->vocab_size(), 512);
  EXPECT_EQ(tokenizer->encode("1234567890").size(), 10U);
  EXPECT_EQ(tokenizer->encode("37加58等于多少？").size(), 7U);
  for (const char* token : {"<｜▁pad▁｜>",
                            "<｜User｜>",
                            "<｜Assistant｜>",
                            "<|EOT|>",
                            "<think>",
                            "</think>",
                            "｜DSML｜",
                            "<｜latest_reminder｜>",
                            "<｜action｜>",
                            "<｜query｜>",
                            "<｜authority｜>",
                            "<｜domain｜>",
                            "<｜title｜>",
                            "<dsml:",
                            "</dsml:",
                            "<｜extracted_url｜>",
                            "<｜read_url｜>"}) {
    EXPECT_TRUE(tokenizer->is_added(tokenizer->require(token, "the test"))) << token;
  }
}

}  // namespace
}  // namespace baleen::abacus
