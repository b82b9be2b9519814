#include "rl/policy_pass.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "train/packed_forward.h"

namespace baleen::rl {

train::Sample train_sample(const RolloutSample& sample, std::span<const uint8_t> mask) {
  train::Sample out;
  out.number = sample.index;
  out.ids = sample.ids;
  out.weights.assign(static_cast<std::size_t>(sample.prompt_tokens), 0.0F);
  for (const uint8_t trained : mask) {
    out.weights.push_back(trained != 0 ? 1.0F : 0.0F);
  }
  return out;
}

TargetPlace place_of(const train::PackedBatch& batch, std::size_t row) {
  return {batch.samples[static_cast<std::size_t>(batch.main.samples[row])].number,
          batch.main.positions[row] + 1};
}

PassOptions pass_options(train::Trainer& trainer,
                         const std::vector<std::vector<train::Sample>>& parts,
                         double temperature,
                         const train::ChoiceReplay* replay) {
  int64_t longest = 1;
  for (const std::vector<train::Sample>& part : parts) {
    for (const train::Sample& sample : part) {
      longest = std::max(longest, sample.fed_tokens());
    }
  }
  return {trainer.config(),
          trainer.tables(longest + trainer.config().pad_multiple),
          temperature,
          replay != nullptr && replay->parts().any() ? replay : nullptr};
}

PackedStep packed_step(const PassOptions& options,
                       const model::ModelParameters& params,
                       std::span<const train::Sample> samples) {
  const train::TrainerConfig& config = options.config;
  const train::LossDenominators ones{.weight = 1.0, .mtp_weight = 1.0};
  PackedStep step;
  step.batch = train::pack(samples,
                           ones,
                           {.device = params.embed.device(),
                            .dtype = params.embed.scalar_type(),
                            .pad_multiple = config.pad_multiple});
  model::ChoicesByLayer given;
  if (options.replay != nullptr) {
    given = options.replay->given(step.batch);
  }
  const train::PackedForward out =
      train::packed_forward(params,
                            step.batch,
                            {.numerics = config.objective.numerics,
                             .tables = &options.rope,
                             .given = options.replay == nullptr ? nullptr : &given});
  step.values = train::row_logprobs(out.hidden,
                                    params.head,
                                    step.batch.main.targets,
                                    {.numerics = config.objective.numerics,
                                     .chunk_rows = config.objective.chunk_rows,
                                     .temperature = options.temperature,
                                     .entropy = true});
  return step;
}

}  // namespace baleen::rl
