#pragma once
// What a supervised run starts from: parameters and numerics, samples by draw. Used by sft_run.cpp.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "train/masters.h"
#include "train/sft_config.h"
#include "train/trainer.h"

namespace baleen::train {

struct RunSources {
  model::ModelParameters params;
  WeightRounding rounding = WeightRounding::kNone;
  ops::Numerics numerics;
  std::function<Sample(int64_t draw)> sample;
  int64_t num_samples = 0;  // 0: without end
  int64_t num_bad_lines = 0;
  std::vector<std::string> notes;  // for the log: what was read, which lines were left out
  RunSettings settings;  // what a resumed run must have in common, data and shape included
};

/// Throws Error naming option, file or line.
RunSources open_sources(const SftConfig& config);

TrainerConfig trainer_config(const SftConfig& config, const ops::Numerics& numerics);

FreezeConfig freeze_config(const SftConfig& config);

}  // namespace baleen::train
