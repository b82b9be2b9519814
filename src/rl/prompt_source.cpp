#include "rl/prompt_source.h"

#include <fmt/format.h>

#include "train/nano_tasks.h"
#include "train/sort_task.h"

namespace baleen::rl {
namespace {

Prompt prompt_of(const train::NanoProblem& problem, int64_t number) {
  Prompt prompt;
  prompt.number = number;
  prompt.ids = train::sort_ids(problem.prompt);
  prompt.text = problem.prompt;
  prompt.label = problem.answer;
  return prompt;
}

/// The stream of the warm-up lies under the run's seed; the prompts of the rollouts are other ones.
constexpr uint64_t kRolloutStream = 0x524C;

class TaskPrompts final : public PromptSource {
 public:
  TaskPrompts(const std::string& task, uint64_t seed)
      : task_(train::NanoTask::by_name(task)), seed_(seed ^ (kRolloutStream << 32)) {}

  Prompt prompt(int64_t number) const override {
    return prompt_of(task_->training_problem(seed_, number), number);
  }
  int64_t epoch_size() const override { return 0; }
  Prompt evaluation_prompt(int64_t number) const override {
    return prompt_of(task_->evaluation_problem(number), number);
  }
  int64_t num_evaluation_prompts() const override { return train::NanoTask::kEvaluationProblems; }
  std::string digest() const override { return fmt::format("task {}", task_->name()); }

 private:
  std::shared_ptr<const train::NanoTask> task_;  // the task's own type
  uint64_t seed_;
};

}  // namespace

std::unique_ptr<PromptSource> task_prompts(const std::string& task, uint64_t seed) {
  return std::make_unique<TaskPrompts>(task, seed);
}

}  // namespace baleen::rl
