// All 8,792 reference answers of GSM8K (the numbers behind ####; training set, then test set; MIT,
// tests/golden/gsm8k_LICENSE) through the mathematical verifier: right is 1, one digit off is 0.

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "rewards/make_verifier.h"

namespace baleen::rewards {
namespace {

class Gsm8kTest : public testing::Test {
 protected:
  void SetUp() override {
    std::ifstream file("tests/golden/gsm8k_answers.txt");
    for (std::string line; std::getline(file, line);) {
      answers_.push_back(line);
    }
    ASSERT_EQ(answers_.size(), 8792U);
  }

  double score(const std::string& answer, const std::string& label) const {
    RewardInput input;
    input.response = "So the total is\n\\[\\boxed{" + answer + "}\\]";
    input.label = label;
    const Result<Score> result = verifier_->verify(input, {});
    return result.ok() ? result->score : -1.0;
  }

  std::vector<std::string> answers_;
  std::shared_ptr<const Verifier> verifier_ = make_verifier({.rm_type = "math"});
};

TEST_F(Gsm8kTest, EveryReferenceAnswerScoresOne) {
  int64_t right = 0;
  for (const std::string& answer : answers_) {
    std::string plain = answer;
    plain.erase(std::remove(plain.begin(), plain.end(), ','), plain.end());
    const bool all = score(answer, answer) == 1.0 && score(plain, answer) == 1.0 &&
                     score(answer, plain) == 1.0 && score("\\$" + answer + ".00", answer) == 1.0;
    EXPECT_TRUE(all) << answer;
    right += all ? 1 : 0;
  }
  EXPECT_EQ(right, 8792);
}

TEST_F(Gsm8kTest, ACopyWithOneDigitChangedScoresZero) {
  int64_t copies = 0;
  for (const std::string& answer : answers_) {
    for (size_t i = 0; i < answer.size(); ++i) {
      if (answer[i] < '0' || answer[i] > '9') {
        continue;
      }
      std::string changed = answer;
      changed[i] = static_cast<char>('0' + (answer[i] - '0' + 1 + static_cast<int>(i % 9)) % 10);
      EXPECT_EQ(score(changed, answer), 0.0) << changed << " for " << answer;
      ++copies;
    }
  }
  EXPECT_GT(copies, 8792);
}

}  // namespace
}  // namespace baleen::rewards
