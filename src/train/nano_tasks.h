#pragma once
// The built-in tasks of the nano model, over its 32-token vocabulary. Each has a prompt that ends
// in "=", an answer of digits, and a teacher that is wrong half of the time. All problems are pure
// functions of a seed and a number; those of the evaluation are never drawn for training.
//   sort    s530271=   012357   the digits in ascending order
//   parity  *530271=   101001   whether the sum of the digits so far is odd
//   add     -17+85=    102      two numbers below 100, three digits
//   recall  s4719320*3=  2      the digit behind the one that is asked for; four pairs
// Immutable; any thread.
//
//   const auto task = NanoTask::by_name("sort");
//   Sample sample = task->training_sample(seed, number);

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "train/packed_batch.h"

namespace baleen::train {

struct NanoProblem {
  std::string prompt;
  std::string answer;
};

class NanoTask {
 public:
  static constexpr int64_t kEvaluationProblems = 256;
  static constexpr uint64_t kEvaluationSeed = 999;

  /// Throws ConfigError naming `option` where there is no such task.
  static void check_name(const char* option, std::string_view name);
  static std::shared_ptr<const NanoTask> by_name(const std::string& name);
  explicit NanoTask(std::string name);

  const std::string& name() const { return name_; }
  /// Problem `number` of the stream of `seed`, none of the evaluation's.
  NanoProblem training_problem(uint64_t seed, int64_t number) const;
  NanoProblem evaluation_problem(int64_t number) const;
  /// Right with probability one half, else with one digit replaced by another.
  static std::string teacher_answer(const NanoProblem& problem, uint64_t seed, int64_t number);
  /// Problem `number` with the teacher's answer and the end token, which are trained.
  Sample training_sample(uint64_t seed, int64_t number) const;

 private:
  std::string name_;
  std::set<std::string> held_out_;  // prompts of the evaluation
};

}  // namespace baleen::train
