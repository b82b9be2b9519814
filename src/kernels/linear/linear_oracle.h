#pragma once
// Oracle of a linear layer for one row: y_o = sum_i q(x)_i * W[o, i]. With `quantised` the input is
// e4m3 in blocks of 128 (the weight comes dequantised); with `rounded` y is stored as bf16. Codes
// and scales become values by dequantised_row.
//
//   std::vector<double> y = kernels::linear_oracle(x, weight, {.quantised = true, .rounded =
//   true});
//   std::vector<double> x = kernels::dequantised_row(codes, scales);   // one scale per 128 codes

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "numerics/bfloat16.h"
#include "numerics/block_scale.h"
#include "numerics/float8.h"

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

/// e4m3 codes times their UE8M0 scales, one per 128 codes.
inline std::vector<double> dequantised_row(std::span<const uint8_t> codes,
                                           std::span<const uint8_t> scales) {
  std::vector<double> values(codes.size());
  for (std::size_t i = 0; i < codes.size(); ++i) {
    values[i] = static_cast<double>(numerics::e4m3_to_float(codes[i])) *
                static_cast<double>(numerics::ue8m0_to_float(scales[i / 128]));
  }
  return values;
}

}  // namespace baleen::kernels
