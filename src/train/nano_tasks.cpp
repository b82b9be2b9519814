#include "train/nano_tasks.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"
#include "train/counted_numbers.h"
#include "train/sort_task.h"

namespace baleen::train {
namespace {

constexpr int32_t kEndToken = 1;
constexpr uint32_t kTaskStream = 203;
constexpr uint32_t kTaskTeacherStream = 204;
constexpr int kPairs = 4;  // of recall

char digit_char(int digit) {
  return static_cast<char>('0' + digit);
}

NanoProblem draw_parity(CountedNumbers& numbers) {
  NanoProblem problem{.prompt = "*", .answer = {}};
  int sum = 0;
  for (int i = 0; i < kSortDigits; ++i) {
    const int digit = numbers.below(10);
    sum += digit;
    problem.prompt += digit_char(digit);
    problem.answer += digit_char(sum % 2);
  }
  problem.prompt += '=';
  return problem;
}

NanoProblem draw_addition(CountedNumbers& numbers) {
  const int a = numbers.below(100);
  const int b = numbers.below(100);
  return {fmt::format("-{:02}+{:02}=", a, b), fmt::format("{:03}", a + b)};
}

NanoProblem draw_recall(CountedNumbers& numbers) {
  std::array<int, 10> keys{};
  for (int i = 0; i < 10; ++i) {
    keys[static_cast<std::size_t>(i)] = i;
  }
  NanoProblem problem{.prompt = "s", .answer = {}};
  std::array<int, kPairs> values{};
  for (std::size_t i = 0; i < kPairs; ++i) {
    std::swap(keys[i], keys[i + static_cast<std::size_t>(numbers.below(10 - static_cast<int>(i)))]);
    values[i] = numbers.below(10);
    problem.prompt += digit_char(keys[i]);
    problem.prompt += digit_char(values[i]);
  }
  const auto asked = static_cast<std::size_t>(numbers.below(kPairs));
  problem.prompt += fmt::format("*{}=", keys[asked]);
  problem.answer += digit_char(values[asked]);
  return problem;
}

NanoProblem of_sort(const SortProblem& problem) {
  return {problem.prompt(), problem.answer()};
}

NanoProblem draw(const std::string& name, uint64_t seed, int64_t number, CountedNumbers& numbers) {
  if (name == "parity") {
    return draw_parity(numbers);
  }
  if (name == "add") {
    return draw_addition(numbers);
  }
  BALEEN_CHECK(name == "recall", "task {} seed {} number {}", name, seed, number);
  return draw_recall(numbers);
}

}  // namespace

void NanoTask::check_name(const char* option, std::string_view name) {
  for (const char* known : {"sort", "parity", "add", "recall"}) {
    if (name == known) {
      return;
    }
  }
  throw ConfigError(fmt::format("{}: \"{}\" is none of sort, parity, add, recall", option, name));
}

std::shared_ptr<const NanoTask> NanoTask::by_name(const std::string& name) {
  check_name("task", name);
  return std::make_shared<const NanoTask>(name);
}

NanoTask::NanoTask(std::string name) : name_(std::move(name)) {
  for (int64_t number = 0; number < kEvaluationProblems; ++number) {
    held_out_.insert(evaluation_problem(number).prompt);
  }
}

NanoProblem NanoTask::evaluation_problem(int64_t number) const {
  if (name_ == "sort") {
    return of_sort(SortTask::evaluation_problem(number));
  }
  CountedNumbers numbers(kEvaluationSeed, kTaskStream, number);
  return draw(name_, kEvaluationSeed, number, numbers);
}

NanoProblem NanoTask::training_problem(uint64_t seed, int64_t number) const {
  if (name_ == "sort") {
    static const SortTask kSort;
    return of_sort(kSort.training_problem(seed, number));
  }
  CountedNumbers numbers(seed, kTaskStream, number);
  NanoProblem problem;
  do {
    problem = draw(name_, seed, number, numbers);
  } while (held_out_.contains(problem.prompt));
  return problem;
}

std::string NanoTask::teacher_answer(const NanoProblem& problem, uint64_t seed, int64_t number) {
  std::string answer = problem.answer;
  CountedNumbers numbers(seed, kTaskTeacherStream, number);
  if (numbers.below(2) == 0) {
    return answer;
  }
  char& digit = answer[static_cast<std::size_t>(numbers.below(static_cast<int>(answer.size())))];
  digit = static_cast<char>('0' + (digit - '0' + 1 + numbers.below(9)) % 10);
  return answer;
}

Sample NanoTask::training_sample(uint64_t seed, int64_t number) const {
  if (name_ == "sort") {
    static const SortTask kSort;
    return kSort.training_sample(seed, number);
  }
  const NanoProblem problem = training_problem(seed, number);
  Sample sample;
  sample.number = number;
  sample.ids = sort_ids(problem.prompt);
  sample.weights.assign(sample.ids.size(), 0.0F);
  for (const int32_t id : sort_ids(teacher_answer(problem, seed, number))) {
    sample.ids.push_back(id);
  }
  sample.ids.push_back(kEndToken);
  sample.weights.resize(sample.ids.size(), 1.0F);
  return sample;
}

}  // namespace baleen::train
