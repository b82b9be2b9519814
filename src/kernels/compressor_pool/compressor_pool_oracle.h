#pragma once
// Oracle of compressor pooling, from the whole sequence: entry w of a ratio-r layer. u, z are
// [num_tokens, c * d] (z with the position bias), c = 2 with overlap.
//
//   std::vector<double> e = kernels::compressor_entry_oracle(u, z, d, 4, /*overlap=*/true, w);

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <vector>

namespace baleen::kernels {

inline std::vector<double> compressor_entry_oracle(std::span<const double> u,
                                                   std::span<const double> z,
                                                   std::size_t d,
                                                   std::size_t ratio,
                                                   bool overlap,
                                                   std::size_t w) {
  const std::size_t row = overlap ? 2 * d : d;
  std::vector<double> entry(d);
  for (std::size_t i = 0; i < d; ++i) {
    std::vector<std::size_t> slots;  // positions in u and z that take part
    if (overlap && w > 0) {
      for (std::size_t p = ratio * (w - 1); p < ratio * w; ++p) {
        slots.push_back(p * row + i);  // carry half of the group before
      }
    }
    for (std::size_t p = ratio * w; p < ratio * (w + 1); ++p) {
      slots.push_back(p * row + (overlap ? d : 0) + i);  // own half
    }
    double maximum = -std::numeric_limits<double>::infinity();
    for (const std::size_t slot : slots) {
      maximum = std::max(maximum, z[slot]);
    }
    double sum = 0.0;
    double weighted = 0.0;
    for (const std::size_t slot : slots) {
      const double weight = std::exp(z[slot] - maximum);
      sum += weight;
      weighted += weight * u[slot];
    }
    entry[i] = weighted / sum;
  }
  return entry;
}

}  // namespace baleen::kernels
