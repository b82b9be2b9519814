#pragma once
// Small models, samples and runs shared by the tests of this room.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <unistd.h>

#include "model/hash_fill.h"
#include "train/nano_model.h"
#include "train/trainer.h"

namespace baleen::train {

/// The toy of the golden values: every kind of layer, ratio 16 without overlap, an MTP block.
inline model::ModelParameters toy_parameters(at::ScalarType dtype = at::kDouble) {
  return model::make_hash_filled(model::golden_toy_config(), {}, at::TensorOptions(dtype));
}

/// Every part of a state moves: rate, both moments or momentum, router biases, the MTP block.
inline TrainerConfig saved_run_config(OptimizerKind kind) {
  TrainerConfig config;
  config.schedule = {
      .peak = 2e-3, .min = 1e-4, .warmup_steps = 2, .num_steps = 6, .style = DecayStyle::kCosine};
  config.optimizer.kind = kind;
  config.objective.mtp_weight = 0.2;
  config.bias_rate = 1e-3;
  return config;
}

/// Pseudo-random tokens; every token from the third on is a target, with uneven weights.
inline Sample some_sample(int64_t number, int64_t length, int64_t vocab) {
  Sample sample;
  sample.number = number;
  uint64_t state = 0x9E3779B97F4A7C15ULL * static_cast<uint64_t>(number + 1);
  for (int64_t t = 0; t < length; ++t) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    sample.ids.push_back(static_cast<int32_t>((state >> 33) % static_cast<uint64_t>(vocab)));
    sample.weights.push_back(t < 2 ? 0.0F : (t % 3 == 0 ? 0.5F : 1.0F));
  }
  return sample;
}

/// Lengths at the edges of the window (8) and of the groups (4 and 16).
inline std::vector<Sample> edge_samples(int64_t vocab) {
  std::vector<Sample> samples;
  for (const int64_t length : {3, 4, 5, 6, 9, 10, 16, 17, 18, 18, 33, 34}) {
    samples.push_back(some_sample(static_cast<int64_t>(samples.size()), length, vocab));
  }
  return samples;
}

inline Masters plain_masters(model::ModelParameters params,
                             const FreezeConfig& freeze = {},
                             WeightRounding rounding = WeightRounding::kNone) {
  const FreezeRules rules(freeze, params);
  return Masters(std::move(params), rules, rounding);
}

inline std::vector<at::Tensor> copied_values(const Masters& masters) {
  std::vector<at::Tensor> values;
  model::ModelParameters shown = masters.values();
  model::for_each_parameter(shown, [&](const model::ParameterInfo&, at::Tensor& value) {
    values.push_back(value.clone());
  });
  return values;
}

inline void for_values(
    const Masters& masters,
    const std::function<void(std::size_t, const std::string&, const at::Tensor&)>& visit) {
  std::size_t index = 0;
  model::ModelParameters shown = masters.values();
  model::for_each_parameter(shown, [&](const model::ParameterInfo& info, at::Tensor& value) {
    visit(index++, info.name, value);
  });
}

inline std::filesystem::path fresh_test_folder(const std::string& name) {
  const auto folder = std::filesystem::temp_directory_path() /
                      ("baleen_train_" + name + "_" + std::to_string(::getpid()));
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  return folder;
}

}  // namespace baleen::train
