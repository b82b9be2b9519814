#pragma once
// A forward of the trainer over answers: packing, the choices of the rollout where they are
// replayed, log-probabilities and entropies of the response tokens. For policy_update.cpp and what
// measures beside it. Pure; any thread.
//
//   PassOptions options = pass_options(trainer, parts, temperature, &replay);
//   PackedStep step = packed_step(options, leaves, parts[0]);

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "rl/rollout_sample.h"
#include "train/choice_replay.h"
#include "train/packed_batch.h"
#include "train/row_logprobs.h"
#include "train/trainer.h"

namespace baleen::rl {

/// The answer as the trainer feeds it: every trained token is a target.
train::Sample train_sample(const RolloutSample& sample, std::span<const uint8_t> mask);

struct PackedStep {
  train::PackedBatch batch;
  train::RowLogprobs values;  // of batch.main.targets
};

/// Where target `row` of the batch lies: its sample's number and the response token.
struct TargetPlace {
  int64_t number = 0;
  int64_t position = 0;  // of the target token in its sample
};
TargetPlace place_of(const train::PackedBatch& batch, std::size_t row);

/// What all parts of a pass share.
struct PassOptions {
  const train::TrainerConfig& config;
  const model::RopeTables& rope;
  double temperature = 1.0;
  const train::ChoiceReplay* replay = nullptr;  // choices of the rollout that are taken again
};
PassOptions pass_options(train::Trainer& trainer,
                         const std::vector<std::vector<train::Sample>>& parts,
                         double temperature,
                         const train::ChoiceReplay* replay);

PackedStep packed_step(const PassOptions& options,
                       const model::ModelParameters& params,
                       std::span<const train::Sample> samples);

}  // namespace baleen::rl
