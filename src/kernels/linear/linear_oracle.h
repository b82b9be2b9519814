#pragma once
// Oracle of a linear layer for one row: y_o = sum_i q(x)_i * W[o, i]. With `quantised` the input is
// e4m3 in blocks of 128 (the weight comes dequantised); with `rounded` y is stored as bf16.
//
//   std::vector<double> y = kernels::linear_oracle(x, weight, {.quantised = true, .rounded =
//   true});

#include <cstddef>
#include <span>
#include <vector>

#include "numerics/bfloat16.h"
#include "numerics/block_scale.h"

namespace baleen::kernels {

struct LinearRounding {
  bool quantised = false;
  bool rounded = false;
};

inline std::vector<double> linear_oracle(std::span<const double> x,
                                         std::span<const double> weight,
                                         LinearRounding rounding) {
  std::vector<double> input(x.begin(), x.end());
  if (rounding.quantised) {
    numerics::simulate_s8(std::span<double>(input), 128);
  }
  std::vector<double> y(weight.size() / x.size());
  for (std::size_t o = 0; o < y.size(); ++o) {
    for (std::size_t i = 0; i < input.size(); ++i) {
      y[o] += input[i] * weight[o * input.size() + i];
    }
    y[o] = rounding.rounded ? numerics::round_to_bf16(y[o]) : y[o];
  }
  return y;
}

}  // namespace baleen::kernels
