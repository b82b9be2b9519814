// Prompts in the chat format: the task abacus, and files.
#include "rl/prompt_source.h"

#include <filesystem>
#include <fstream>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "rl/held_out_pairs.h"
#include "text/chat_renderer.h"

namespace baleen::rl {
namespace {

using testing::HasSubstr;

ChatPromptWriter abacus_writer(PromptThinking thinking) {
  static const auto tokenizer = text::Tokenizer::load("models/abacus/tokenizer.json");
  return {.tokenizer = tokenizer.get(), .thinking = thinking};
}

struct Numbers {
  int a = 0;
  int b = 0;
};

/// The two numbers of a question.
Numbers numbers_in(const std::string& text) {
  std::vector<int> found;
  for (std::size_t i = 0; i < text.size();) {
    if (text[i] < '0' || text[i] > '9') {
      ++i;
      continue;
    }
    std::size_t used = 0;
    found.push_back(std::stoi(text.substr(i), &used));
    i += used;
  }
  return {found.at(0), found.at(1)};
}

TEST(AbacusPromptsTest, QuestionsHaveTheirAnswersAndUnseenPairsStayUnseen) {
  const auto source = abacus_prompts(abacus_writer(PromptThinking::kAlternate), 7);
  int below_zero = 0;
  std::set<std::string> texts;
  for (int64_t number = 0; number < 400; ++number) {
    for (const bool unseen : {false, true}) {
      if (unseen && number >= source->num_evaluation_prompts()) {
        continue;
      }
      const Prompt prompt = unseen ? source->evaluation_prompt(number) : source->prompt(number);
      const Numbers numbers = numbers_in(prompt.text);
      EXPECT_EQ(held_out(numbers.a, numbers.b), unseen) << prompt.text;
      const int result = std::stoi(prompt.label);
      EXPECT_TRUE(result == numbers.a + numbers.b || result == numbers.a - numbers.b)
          << prompt.text << " " << prompt.label;
      below_zero += !unseen && result < 0 ? 1 : 0;
      texts.insert(prompt.text);
    }
  }
  EXPECT_EQ(below_zero, 200);
  EXPECT_GT(texts.size(), 600U);
  EXPECT_EQ(source->prompt(5).ids, source->prompt(5).ids);
  const auto other = abacus_prompts(abacus_writer(PromptThinking::kAlternate), 8);
  EXPECT_NE(source->prompt(5).text, other->prompt(5).text);
}

TEST(AbacusPromptsTest, EveryOtherQuestionIsInThinkingMode) {
  const ChatPromptWriter writer = abacus_writer(PromptThinking::kAlternate);
  const auto source = abacus_prompts(writer, 7);
  for (int64_t number = 0; number < 4; ++number) {
    const Prompt prompt = source->prompt(number);
    text::ChatMessage message;
    message.content = prompt.text;
    text::RenderOptions options;
    options.thinking = number % 2 != 0;
    const auto rendered = text::render_messages(std::span(&message, 1), options);
    ASSERT_TRUE(rendered.ok());
    EXPECT_EQ(rendered->starts_in_reasoning, options.thinking);
    EXPECT_EQ(prompt.ids, writer.tokenizer->encode(rendered->pieces));
  }
}

TEST(FilePromptsTest, ChatPromptsAreSaidByAUserOrListsOfMessages) {
  const ChatPromptWriter writer = abacus_writer(PromptThinking::kOff);
  const auto path = std::filesystem::path(testing::TempDir()) / "chat_prompts.jsonl";
  std::ofstream(path) << R"({"input": "2+3=", "label": "5"})"
                      << "\n"
                      << R"({"input": [{"role": "system", "content": "Be terse."},)"
                      << R"( {"role": "user", "content": "2+4="}], "label": 6})"
                      << "\n";
  PromptFileOptions options;
  options.label_key = "label";
  options.chat = writer;
  const auto source = file_prompts({path.string()}, {}, *writer.tokenizer, options);
  EXPECT_EQ(source->prompt(0).ids, writer.ids("2+3=", 0));
  std::vector<text::ChatMessage> messages(2);
  messages[0].role = text::Role::kSystem;
  messages[0].content = "Be terse.";
  messages[1].content = "2+4=";
  EXPECT_EQ(source->prompt(1).ids, writer.ids(messages, 1));
  EXPECT_EQ(source->prompt(1).text, "2+4=");
  EXPECT_EQ(source->prompt(1).label, "6");

  std::ofstream(path) << R"({"input": [{"role": "king", "content": "2"}], "label": "5"})"
                      << "\n";
  try {
    file_prompts({path.string()}, {}, *writer.tokenizer, options);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("chat_prompts.jsonl:1: \"input\": every message needs"));
  }
}

}  // namespace
}  // namespace baleen::rl
