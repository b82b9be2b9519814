#pragma once
// Oracle of the draft layer's entry: the normed row in double, and its codes after one rounding to
// bf16.
//
//   NormCodesOracle row = norm_codes_oracle(x, weight, 1e-6);
//   double y = row.normed[i], coded = row.coded[i];

#include <span>
#include <vector>

#include "kernels/rms_norm/rms_norm_oracle.h"
#include "numerics/bfloat16.h"
#include "numerics/block_scale.h"
#include "numerics/float8.h"

namespace baleen::kernels {

struct NormCodesOracle {
  std::vector<double> normed;  // not rounded
  std::vector<double> coded;   // e4m3 code times scale of bf16(normed)
  std::vector<float> scales;   // one per 128
};

inline NormCodesOracle norm_codes_oracle(std::span<const double> x,
                                         std::span<const double> weight,
                                         double eps) {
  constexpr std::size_t kBlock = 128;
  NormCodesOracle out{.normed = rms_norm_oracle(x, weight, eps), .coded = {}, .scales = {}};
  for (std::size_t begin = 0; begin < x.size(); begin += kBlock) {
    float largest = 0.0F;
    std::vector<float> rounded;
    for (std::size_t i = begin; i < begin + kBlock; ++i) {
      rounded.push_back(numerics::round_to_bf16(static_cast<float>(out.normed[i])));
      largest = std::max(largest, std::abs(rounded.back()));
    }
    out.scales.push_back(numerics::q8_scale(largest));
    for (const float value : rounded) {
      out.coded.push_back(
          double{numerics::e4m3_to_float(numerics::e4m3_from_float(value / out.scales.back()))} *
          out.scales.back());
    }
  }
  return out;
}

}  // namespace baleen::kernels
