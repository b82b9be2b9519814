#pragma once
// Oracle of the grouped output projection of one token: group g multiplies its slice of x with rows
// g * O ... of wo_a. x [G * K], wo_a [G * O, K] -> [G * O].
//
//   std::vector<double> v = kernels::grouped_projection_oracle(x, wo_a, groups, {});

#include <cstddef>
#include <span>
#include <vector>

#include "kernels/linear/linear_oracle.h"

namespace baleen::kernels {

inline std::vector<double> grouped_projection_oracle(std::span<const double> x,
                                                     std::span<const double> wo_a,
                                                     std::size_t groups,
                                                     LinearRounding rounding) {
  std::vector<double> v;
  for (std::size_t g = 0; g < groups; ++g) {
    const std::size_t width = x.size() / groups;
    const std::size_t matrix = wo_a.size() / groups;
    const std::vector<double> part =
        linear_oracle(x.subspan(g * width, width), wo_a.subspan(g * matrix, matrix), rounding);
    v.insert(v.end(), part.begin(), part.end());
  }
  return v;
}

}  // namespace baleen::kernels
