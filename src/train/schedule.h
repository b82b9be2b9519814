#pragma once
// Learning rate as a pure function of the step, so that a resumed run needs no state for it.
//
//   const Schedule schedule{.peak = 1e-3, .warmup_steps = 20};
//   double rate = learning_rate(schedule, step);   // step 0 is the first

#include <cstdint>
#include <string_view>

namespace baleen::train {

enum class DecayStyle : uint8_t {
  kConstant,
  kCosine,  // half a cosine from the end of the warm-up to num_steps
  kLinear,
  kWsd,  // constant, then linear over the last decay_steps
};

struct Schedule {
  double peak = 1e-6;
  double min = 0.0;          // where the decay ends
  int64_t warmup_steps = 0;  // linear: step s < warmup_steps has peak * (s + 1) / warmup_steps
  int64_t num_steps = 0;     // of the run; steps beyond it keep the last rate
  int64_t decay_steps = 0;   // of kWsd
  DecayStyle style = DecayStyle::kConstant;
};

double learning_rate(const Schedule& schedule, int64_t step);

/// constant, cosine, linear or wsd. Throws ConfigError naming any other name.
DecayStyle parse_decay_style(std::string_view name);

}  // namespace baleen::train
