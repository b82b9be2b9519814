#include "rl/study_model.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "train/nano_model.h"
#include "train/sort_task.h"
#include "train/trainer.h"

namespace baleen::rl {
namespace {

constexpr int64_t kSayEvery = 20;

model::ModelParameters values_copied_from(const train::Masters& masters) {
  const at::NoGradGuard no_grad;
  model::ModelParameters copy = masters.values();
  model::for_each_parameter(
      copy, [](const model::ParameterInfo&, at::Tensor& value) { value = value.detach().clone(); });
  return copy;
}

}  // namespace

std::vector<train::Sample> teaching_texts(const TeachConfig& config, int64_t first, int64_t count) {
  const train::SortTask task;
  std::vector<train::Sample> texts;
  for (int64_t i = first; i < first + count; ++i) {
    if (config.length == 0) {
      texts.push_back(task.training_sample(config.seed, i));
      texts.back().number = i;
      continue;
    }
    train::Sample text;
    text.number = i;
    for (int64_t problem = 0; static_cast<int64_t>(text.ids.size()) < config.length; ++problem) {
      const int64_t number = i * config.length + problem;
      const train::SortProblem asked = task.training_problem(config.seed, number);
      const std::vector<int32_t> ids = train::sort_ids(
          asked.prompt() + train::SortTask::teacher_answer(asked, config.seed, number));
      text.ids.insert(text.ids.end(), ids.begin(), ids.end());
    }
    text.ids.resize(static_cast<std::size_t>(config.length));
    text.weights.assign(text.ids.size(), 1.0F);
    texts.push_back(std::move(text));
  }
  return texts;
}

TaughtModel taught_nano(const TeachConfig& config,
                        const std::function<void(const std::string&)>& say) {
  model::ModelParameters fresh = train::fresh_nano(train::nano_config(), config.seed, at::kFloat);
  const train::FreezeRules rules({.indexer = true}, fresh);
  train::TrainerConfig trained;
  trained.optimizer.weight_decay = 0.0;
  trained.schedule.peak = 1e-3;
  trained.schedule.warmup_steps = 20;
  train::Trainer trainer(train::Masters(std::move(fresh), rules, train::WeightRounding::kNone),
                         trained);
  TaughtModel out;
  for (int64_t step = 0; step < config.steps; ++step) {
    if (step == std::max<int64_t>(0, config.steps - config.older_by)) {
      out.older = values_copied_from(trainer.masters());
    }
    const train::StepReport report =
        trainer.step(teaching_texts(config, step * config.texts, config.texts));
    out.loss = report.loss;
    if (say && (step % kSayEvery == 0 || step + 1 == config.steps)) {
      say(fmt::format("teaching {}/{} | loss {:.4f}", step + 1, config.steps, report.loss));
    }
  }
  out.params = values_copied_from(trainer.masters());
  return out;
}

}  // namespace baleen::rl
