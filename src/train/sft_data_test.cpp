#include "train/sft_data.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "text/chat_renderer.h"
#include "train/data_order.h"
#include "train/sort_task.h"
#include "train/train_models_for_tests.h"

namespace baleen::train {
namespace {

namespace fs = std::filesystem;
using text::ChatMessage;
using text::Role;

const text::Tokenizer& tokenizer() {
  static const auto kTokenizer = text::Tokenizer::load("models/abacus/tokenizer.json");
  return *kTokenizer;
}

ChatMessage said(Role role, std::string content, std::string reasoning = {}) {
  ChatMessage message;
  message.role = role;
  message.content = std::move(content);
  message.reasoning_content = std::move(reasoning);
  return message;
}

/// The text of the tokens that are trained, each run between bars.
std::string trained_text(const EncodedSample& sample) {
  std::string text;
  std::vector<int32_t> run;
  const auto flush = [&] {
    if (!run.empty()) {
      text += "|" + tokenizer().decode(run);
      run.clear();
    }
  };
  for (std::size_t t = 0; t < sample.ids.size(); ++t) {
    if (sample.weights[t] == 1.0F) {
      run.push_back(sample.ids[t]);
    } else {
      flush();
    }
  }
  flush();
  return text;
}

EncodedSample chat(const std::vector<ChatMessage>& messages,
                   const ChatSampleOptions& options = {},
                   const std::vector<bool>& trained = {}) {
  auto sample = encode_chat(messages, trained, tokenizer(), options);
  EXPECT_TRUE(sample.ok()) << sample.status().message;
  return sample.ok() ? sample.value() : EncodedSample{};
}

const std::string kEnd(text::kEosText);

TEST(ChatSampleTest, IdsAreThoseOfTheRenderer) {
  const std::vector<ChatMessage> messages = {said(Role::kSystem, "Be terse."),
                                             said(Role::kUser, "2+2?"),
                                             said(Role::kAssistant, "4"),
                                             said(Role::kUser, "times 3?"),
                                             said(Role::kAssistant, "12")};
  const EncodedSample sample = chat(messages);
  const auto prompt = text::render_messages(messages, {});
  EXPECT_EQ(sample.ids, tokenizer().encode(prompt->pieces));
  EXPECT_EQ(trained_text(sample), "|4" + kEnd + "|12" + kEnd);
}

TEST(ChatSampleTest, RolesAndMessagesCanBeChosen) {
  const std::vector<ChatMessage> messages = {said(Role::kUser, "2+2?"),
                                             said(Role::kAssistant, "4"),
                                             said(Role::kUser, "3*3?"),
                                             said(Role::kAssistant, "9")};
  ChatSampleOptions options;
  EXPECT_EQ(trained_text(chat(messages, options, {true, false, true, true})), "|9" + kEnd);
  options.trained_roles = {Role::kUser};
  EXPECT_THAT(trained_text(chat(messages, options)),
              testing::AllOf(testing::HasSubstr("2+2?"),
                             testing::HasSubstr("3*3?"),
                             testing::Not(testing::HasSubstr("9"))));
  options = {};
  options.other_weight = 0.25F;
  const EncodedSample weighted = chat(messages, options);
  EXPECT_EQ(std::count(weighted.weights.begin(), weighted.weights.end(), 0.0F), 0);
  EXPECT_EQ(trained_text(weighted), "|4" + kEnd + "|9" + kEnd);
}

TEST(ChatSampleTest, ReasoningIsTrainedWhereServingWouldShowIt) {
  const std::vector<ChatMessage> messages = {said(Role::kUser, "2+2?"),
                                             said(Role::kAssistant, "4", "easy"),
                                             said(Role::kUser, "times 3?"),
                                             said(Role::kAssistant, "12", "4 and 3")};
  EXPECT_EQ(trained_text(chat(messages)), "|4 and 3</think>12" + kEnd);
  ChatSampleOptions options;
  options.drop_thinking = false;
  EXPECT_EQ(trained_text(chat(messages, options)),
            "|easy</think>4" + kEnd + "|4 and 3</think>12" + kEnd);
  options.thinking = ThinkingMode::kOff;
  EXPECT_EQ(trained_text(chat(messages, options)), "|4" + kEnd + "|12" + kEnd);
}

TEST(ChatSampleTest, ToolCallsAreTheAssistantsAndResultsAreNot) {
  const auto sample = encode_line(
      R"({"messages": [{"role": "user", "content": "Add 1 and 2."},)"
      R"({"role": "assistant", "content": "", "tool_calls": [{"id": "c", "type": "function",)"
      R"("function": {"name": "add", "arguments": "{\"a\": 1}"}}]},)"
      R"({"role": "tool", "tool_call_id": "c", "content": "37"},)"
      R"({"role": "assistant", "content": "It is 37."}],)"
      R"("tools": [{"type": "function", "function": {"name": "add"}}]})",
      tokenizer(),
      {});
  ASSERT_TRUE(sample.ok()) << sample.status().message;
  const std::string text = trained_text(sample.value());
  EXPECT_THAT(text, testing::HasSubstr("name=\"add\""));
  EXPECT_THAT(text, testing::EndsWith("|It is 37." + kEnd));
  EXPECT_EQ(text.find("37"), text.rfind("37"));  // the result itself is not trained
}

TEST(SftDataTest, CompletionsAreTrainedWithTheirEnd) {
  const auto sample =
      encode_line(R"({"prompt": "2+2=", "completion": "4"})", tokenizer(), {}).value();
  EXPECT_EQ(sample.ids.front(), tokenizer().bos_id());
  EXPECT_EQ(trained_text(sample), "|4" + kEnd);
}

TEST(SftDataTest, EveryBadLineIsNamed) {
  const std::map<std::string, std::string> lines = {
      {"{", "not JSON"},
      {"[1]", "must be an object"},
      {R"({"text": "a"})", "unknown key \"text\""},
      {R"({"prompt": "a"})", "neither messages nor a completion"},
      {R"({"prompt": "a", "completion": 3})", "completion must be a string"},
      {R"({"messages": []})", "at least one message"},
      {R"({"messages": [{"role": "bot", "content": "a"}]})",
       "messages[0].role: \"bot\" is no role"},
      {R"({"messages": [{"role": "user", "content": "a", "mood": 1}]})",
       "messages[0]: unknown key"},
      {R"({"messages": [{"role": "user", "content": "a"}]})", "no token is trained"},
      {R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b",)"
       R"("tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]}]})",
       "messages[1].tool_calls[0].function.arguments"}};
  for (const auto& [line, reason] : lines) {
    const auto sample = encode_line(line, tokenizer(), {});
    ASSERT_FALSE(sample.ok()) << line;
    EXPECT_THAT(sample.status().message, testing::HasSubstr(reason)) << line;
  }
}

TEST(SftDataTest, BadLinesAreCountedAndLimited) {
  const fs::path folder = fresh_test_folder("data");
  const fs::path file = folder / "a.jsonl";
  std::ofstream(file) << R"({"prompt": "1+1=", "completion": "2"})" << "\n\nnonsense\n"
                      << R"({"prompt": "1+2=", "completion": "3"})" << "\n"
                      << R"({"prompt": "1+3=", "completion": ")" << std::string(300, '7')
                      << "\"}\n";
  SftDataOptions options;
  options.max_length = 100;
  try {
    SftData::read({file}, tokenizer(), options);
    ADD_FAILURE();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("2 of 4 lines cannot be used"));
    EXPECT_THAT(error.what(), testing::HasSubstr("a.jsonl:3: not JSON"));
  }
  options.max_bad_lines = 2;
  const SftData data = SftData::read({file}, tokenizer(), options);
  EXPECT_EQ(data.size(), 2);
  EXPECT_EQ(data.num_bad_lines(), 2);
  EXPECT_THAT(data.named_bad_lines().at(1).text(), testing::HasSubstr("a.jsonl:5: "));
  EXPECT_THAT(data.named_bad_lines().at(1).text(), testing::HasSubstr("max_length is 100"));
  EXPECT_EQ(data.sample(1, 7).number, 7);
  const SftData again = SftData::read({file}, tokenizer(), options);
  EXPECT_EQ(again.digest(), data.digest());
  EXPECT_THROW(SftData::read({folder / "none.jsonl"}, tokenizer(), options), SystemError);
  fs::remove_all(folder);
}

TEST(DataOrderTest, EveryEpochIsAPermutationOfItsOwn) {
  for (const int64_t count : {1, 2, 3, 7, 64, 100, 1000}) {
    std::vector<std::vector<int64_t>> epochs;
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      std::vector<int64_t> order;
      std::set<int64_t> seen;
      for (int64_t i = 0; i < count; ++i) {
        order.push_back(drawn_sample(5, count, epoch * count + i));
        seen.insert(order.back());
      }
      EXPECT_EQ(static_cast<int64_t>(seen.size()), count);
      EXPECT_EQ(*seen.begin(), 0);
      EXPECT_EQ(*seen.rbegin(), count - 1);
      epochs.push_back(order);
    }
    if (count >= 64) {
      EXPECT_NE(epochs[0], epochs[1]);
      std::vector<int64_t> other;
      for (int64_t i = 0; i < count; ++i) {
        other.push_back(drawn_sample(6, count, i));
      }
      EXPECT_NE(other, epochs[0]);
      // A place keeps its sample about as often as chance has it.
      int64_t kept = 0;
      for (std::size_t i = 0; i < other.size(); ++i) {
        kept += epochs[0][i] == static_cast<int64_t>(i) ? 1 : 0;
      }
      EXPECT_LE(kept, 8);
    }
  }
}

TEST(SortTaskTest, ProblemsAreSortedAndTheEvaluationIsHeldOut) {
  const SortProblem problem{{5, 3, 0, 2, 7, 1}};
  EXPECT_EQ(problem.prompt(), "s530271=");
  EXPECT_EQ(problem.answer(), "012357");
  EXPECT_EQ(sort_text(sort_ids("s530271=+-*")), "s530271=+-*");
  EXPECT_EQ(sort_ids("s0=9"), (std::vector<int32_t>{3, 8, 4, 17}));
  std::vector<int32_t> answer = sort_ids("012357");
  EXPECT_FALSE(SortTask::answers(problem, answer));
  answer.push_back(1);
  EXPECT_TRUE(SortTask::answers(problem, answer));
  answer[2] = 12;
  EXPECT_FALSE(SortTask::answers(problem, answer));

  const SortTask task;
  std::set<int64_t> held_out;
  for (int64_t i = 0; i < SortTask::kEvaluationProblems; ++i) {
    held_out.insert(SortTask::evaluation_problem(i).key());
  }
  EXPECT_GT(held_out.size(), 250U);
  int64_t right = 0;
  int64_t one_off = 0;
  for (int64_t i = 0; i < 4000; ++i) {
    const SortProblem drawn = task.training_problem(1, i);
    EXPECT_FALSE(held_out.contains(drawn.key()));
    const std::string said = SortTask::teacher_answer(drawn, 1, i);
    int64_t different = 0;
    for (std::size_t k = 0; k < said.size(); ++k) {
      different += said[k] == drawn.answer()[k] ? 0 : 1;
    }
    right += different == 0 ? 1 : 0;
    one_off += different == 1 ? 1 : 0;
  }
  EXPECT_EQ(right + one_off, 4000);
  EXPECT_NEAR(static_cast<double>(right) / 4000.0, 0.5, 0.04);
  const Sample sample = task.training_sample(1, 17);
  EXPECT_EQ(sample.ids.size(), 15U);
  EXPECT_EQ(std::count(sample.weights.begin(), sample.weights.end(), 1.0F), 7);
  EXPECT_EQ(sample.ids.back(), 1);
}

}  // namespace
}  // namespace baleen::train
