#pragma once
// Oracle of the mixture of experts for one token with W4A8 rounding points. Input: the e4m3
// activations as values. Products are exact (double). Rounding points, in order: gate and up to
// bf16; silu(min(g, limit)) * clamp(u) * route weight to bf16; that row to e4m3 per 128 with
// power-of-two scales; the expert's output to bf16 (`per_expert`); the sum over slots, ascending
// expert id and the shared expert last, to bf16 (`per_expert`; else the caller rounds after summing
// the ranks).
//
//   std::vector<double> h = expert_hidden_oracle(x, e.w1, e.w3, weight, limit);
//   std::vector<double> y = expert_step_oracle(x, slots, true);

#include <cstddef>
#include <span>
#include <vector>

#include "kernels/experts/experts_oracle.h"

namespace baleen::kernels {

/// Dequantised matrices: w1, w3 [width, hidden], w2 [hidden, width].
struct ExpertValues {
  std::vector<double> w1;
  std::vector<double> w3;
  std::vector<double> w2;
};

struct ExpertSlot {
  const ExpertValues* expert = nullptr;
  double weight = 1.0;
  double limit = 0.0;
};

inline std::vector<double> expert_hidden_oracle(std::span<const double> x,
                                                std::span<const double> w1,
                                                std::span<const double> w3,
                                                double weight,
                                                double limit) {
  std::vector<double> gate = linear_oracle(x, w1, {.quantised = false, .rounded = true});
  const std::vector<double> up = linear_oracle(x, w3, {.quantised = false, .rounded = true});
  for (std::size_t i = 0; i < gate.size(); ++i) {
    gate[i] = numerics::round_to_bf16(swiglu_oracle(gate[i], up[i], limit) * weight);
  }
  return gate;
}

inline std::vector<double> expert_step_oracle(std::span<const double> x,
                                              std::span<const ExpertSlot> slots,
                                              bool per_expert) {
  std::vector<double> y(x.size(), 0.0);
  for (const ExpertSlot& slot : slots) {
    const std::vector<double> hidden =
        expert_hidden_oracle(x, slot.expert->w1, slot.expert->w3, slot.weight, slot.limit);
    const std::vector<double> one =
        linear_oracle(hidden, slot.expert->w2, {.quantised = true, .rounded = per_expert});
    for (std::size_t i = 0; i < y.size(); ++i) {
      y[i] += one[i];
    }
  }
  for (double& value : y) {
    value = per_expert ? numerics::round_to_bf16(value) : value;
  }
  return y;
}

}  // namespace baleen::kernels
