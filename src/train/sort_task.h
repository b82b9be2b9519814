#pragma once
// The task of the nano job: "s530271=" is to be answered with the digits in ascending order,
// "012357", and the end token. The teacher whose answers are copied is wrong half of the time. All
// problems are pure functions of a seed and a number; the problems of the evaluation are never
// drawn for training. Stateless but for the list of those; any thread.
//
//   SortTask task;
//   Sample sample = task.training_sample(seed, draw);
//   bool right = SortTask::answers(problem, generated_ids);

#include <array>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "train/packed_batch.h"

namespace baleen::train {

inline constexpr int kSortDigits = 6;

struct SortProblem {
  std::array<int, kSortDigits> digits{};

  std::string prompt() const;  // "s530271="
  std::string answer() const;  // "012357"
  int64_t key() const;         // the digits as one number
};

/// Token ids of the 32-token vocabulary: 0 begin, 1 end, 2 padding, 3 's', 4 '=', 5 '+', 6 '-',
/// 7 '*', 8 to 17 the digits, the rest reserved. Characters that have none are a programmer error.
std::vector<int32_t> sort_ids(std::string_view text);
/// The text of ids; control and reserved tokens in angle brackets.
std::string sort_text(std::span<const int32_t> ids);

class SortTask {
 public:
  static constexpr int64_t kEvaluationProblems = 256;
  static constexpr uint64_t kEvaluationSeed = 999;

  SortTask();

  /// Problem `number` of the stream of `seed`, none of the evaluation's.
  SortProblem training_problem(uint64_t seed, int64_t number) const;
  static SortProblem evaluation_problem(int64_t number);

  /// What the teacher says: right with probability one half, else with one digit replaced.
  static std::string teacher_answer(const SortProblem& problem, uint64_t seed, int64_t number);

  /// Problem `number` with the teacher's answer and the end token; these seven are trained.
  Sample training_sample(uint64_t seed, int64_t number) const;

  /// The verifier: the ids are the answer and the end token, nothing else.
  static bool answers(const SortProblem& problem, std::span<const int32_t> ids);

 private:
  std::set<int64_t> held_out_;  // keys of the evaluation
};

}  // namespace baleen::train
