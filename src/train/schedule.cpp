#include "train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "base/error.h"

namespace baleen::train {

double learning_rate(const Schedule& schedule, int64_t step) {
  if (step < schedule.warmup_steps) {
    return schedule.peak * static_cast<double>(step + 1) /
           static_cast<double>(schedule.warmup_steps);
  }
  const int64_t begin =
      schedule.style == DecayStyle::kWsd
          ? std::max(schedule.warmup_steps, schedule.num_steps - schedule.decay_steps)
          : schedule.warmup_steps;
  const int64_t length = std::max<int64_t>(schedule.num_steps - begin, 1);
  const double progress =
      std::clamp(static_cast<double>(step - begin) / static_cast<double>(length), 0.0, 1.0);
  switch (schedule.style) {
    case DecayStyle::kConstant:
      return schedule.peak;
    case DecayStyle::kCosine:
      return schedule.min +
             (schedule.peak - schedule.min) * 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
    case DecayStyle::kLinear:
    case DecayStyle::kWsd:
      return schedule.peak + (schedule.min - schedule.peak) * progress;
  }
  return schedule.peak;
}

DecayStyle parse_decay_style(std::string_view name) {
  if (name == "constant") {
    return DecayStyle::kConstant;
  }
  if (name == "cosine") {
    return DecayStyle::kCosine;
  }
  if (name == "linear") {
    return DecayStyle::kLinear;
  }
  if (name == "wsd") {
    return DecayStyle::kWsd;
  }
  throw ConfigError("lr_decay_style: \"" + std::string(name) +
                    "\" is none of constant, cosine, linear, wsd");
}

}  // namespace baleen::train
