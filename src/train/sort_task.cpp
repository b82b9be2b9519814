#include "train/sort_task.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/check.h"
#include "train/counted_numbers.h"

namespace baleen::train {
namespace {

constexpr int32_t kEnd = 1;
constexpr int32_t kFirstDigit = 8;
constexpr std::string_view kSigns = "s=+-*";  // ids 3 to 7
constexpr int32_t kFirstSign = 3;
constexpr uint32_t kProblemStream = 201;
constexpr uint32_t kTeacherStream = 202;

SortProblem draw_problem(CountedNumbers& numbers) {
  SortProblem problem;
  for (int& digit : problem.digits) {
    digit = numbers.below(10);
  }
  return problem;
}

std::string digits_text(const std::array<int, kSortDigits>& digits) {
  std::string text;
  for (const int digit : digits) {
    text += static_cast<char>('0' + digit);
  }
  return text;
}

}  // namespace

std::string SortProblem::prompt() const {
  return "s" + digits_text(digits) + "=";
}

std::string SortProblem::answer() const {
  std::array<int, kSortDigits> sorted = digits;
  std::sort(sorted.begin(), sorted.end());
  return digits_text(sorted);
}

int64_t SortProblem::key() const {
  int64_t key = 0;
  for (const int digit : digits) {
    key = key * 10 + digit;
  }
  return key;
}

std::vector<int32_t> sort_ids(std::string_view text) {
  std::vector<int32_t> ids;
  for (const char c : text) {
    if (c >= '0' && c <= '9') {
      ids.push_back(kFirstDigit + (c - '0'));
      continue;
    }
    const std::size_t sign = kSigns.find(c);
    BALEEN_CHECK(sign != std::string_view::npos, "no token for '{}'", c);
    ids.push_back(kFirstSign + static_cast<int32_t>(sign));
  }
  return ids;
}

std::string sort_text(std::span<const int32_t> ids) {
  std::string text;
  for (const int32_t id : ids) {
    if (id >= kFirstDigit && id < kFirstDigit + 10) {
      text += static_cast<char>('0' + (id - kFirstDigit));
    } else if (id >= kFirstSign && id < kFirstDigit) {
      text += kSigns[static_cast<std::size_t>(id - kFirstSign)];
    } else {
      text += id == 0      ? "<bos>"
              : id == kEnd ? "<eos>"
              : id == 2    ? "<pad>"
                           : fmt::format("<{}>", id);
    }
  }
  return text;
}

SortTask::SortTask() {
  for (int64_t number = 0; number < kEvaluationProblems; ++number) {
    held_out_.insert(evaluation_problem(number).key());
  }
}

SortProblem SortTask::training_problem(uint64_t seed, int64_t number) const {
  CountedNumbers numbers(seed, kProblemStream, number);
  SortProblem problem;
  do {
    problem = draw_problem(numbers);
  } while (held_out_.contains(problem.key()));
  return problem;
}

SortProblem SortTask::evaluation_problem(int64_t number) {
  CountedNumbers numbers(kEvaluationSeed, kProblemStream, number);
  return draw_problem(numbers);
}

std::string SortTask::teacher_answer(const SortProblem& problem, uint64_t seed, int64_t number) {
  std::string answer = problem.answer();
  CountedNumbers numbers(seed, kTeacherStream, number);
  if (numbers.below(2) == 0) {
    return answer;
  }
  char& digit = answer[static_cast<std::size_t>(numbers.below(kSortDigits))];
  digit = static_cast<char>('0' + (digit - '0' + 1 + numbers.below(9)) % 10);
  return answer;
}

Sample SortTask::training_sample(uint64_t seed, int64_t number) const {
  const SortProblem problem = training_problem(seed, number);
  Sample sample;
  sample.number = number;
  sample.ids = sort_ids(problem.prompt());
  sample.weights.assign(sample.ids.size(), 0.0F);
  for (const int32_t id : sort_ids(teacher_answer(problem, seed, number))) {
    sample.ids.push_back(id);
  }
  sample.ids.push_back(kEnd);
  sample.weights.resize(sample.ids.size(), 1.0F);
  return sample;
}

bool SortTask::answers(const SortProblem& problem, std::span<const int32_t> ids) {
  std::vector<int32_t> expected = sort_ids(problem.answer());
  expected.push_back(kEnd);
  return std::equal(ids.begin(), ids.end(), expected.begin(), expected.end());
}

}  // namespace baleen::train
