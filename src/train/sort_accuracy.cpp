#include "train/sort_accuracy.h"

#include <algorithm>
#include <vector>

#include <ATen/ATen.h>

#include "ops/linear.h"
#include "train/packed_forward.h"
#include "train/sort_task.h"

namespace baleen::train {

double sort_accuracy(const model::ModelParameters& params, const ops::Numerics& numerics) {
  const at::NoGradGuard no_grad;
  std::vector<Sample> samples;
  for (int64_t number = 0; number < SortTask::kEvaluationProblems; ++number) {
    const SortProblem problem = SortTask::evaluation_problem(number);
    Sample& sample = samples.emplace_back();
    sample.number = number;
    sample.ids = sort_ids(problem.prompt());
    sample.weights.assign(sample.ids.size(), 0.0F);
    const std::vector<int32_t> answer = sort_ids(problem.answer());
    sample.ids.insert(sample.ids.end(), answer.begin(), answer.end());
    sample.ids.push_back(static_cast<int32_t>(params.config.eos_token_id));
    sample.weights.resize(sample.ids.size(), 1.0F);
  }
  LossDenominators denominators;
  denominators.weight = 1.0;
  denominators.mtp_weight = 1.0;
  const PackedBatch batch =
      pack(samples,
           denominators,
           {.device = params.embed.device(), .dtype = params.embed.scalar_type()});
  const model::RopeTables tables =
      model::make_rope_tables(params.config, batch.groups.back().tokens, params.embed, numerics);
  const PackedForward out =
      packed_forward(params, batch, {.numerics = numerics, .tables = &tables});
  const at::Tensor wrong = ops::linear_unrounded(out.hidden, params.head, numerics)
                               .argmax(-1)
                               .ne(batch.main.targets)
                               .to(at::kCPU)
                               .contiguous();
  std::vector<bool> right(samples.size(), true);
  for (std::size_t row = 0; row < batch.main.samples.size(); ++row) {
    if (wrong.const_data_ptr<bool>()[row]) {
      right[static_cast<std::size_t>(batch.main.samples[row])] = false;
    }
  }
  return static_cast<double>(std::count(right.begin(), right.end(), true)) /
         static_cast<double>(right.size());
}

}  // namespace baleen::train
