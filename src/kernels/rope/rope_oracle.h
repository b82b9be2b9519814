#pragma once
// Oracle of the rotary embedding: pair i of the last 2 * frequencies.size() elements of a row turns
// by position * f_i. All in double.
//
//   kernels::rope_oracle(row, frequencies, position, /*inverse=*/false);

#include <cmath>
#include <cstdint>
#include <span>

namespace baleen::kernels {

inline void rope_oracle(std::span<double> row,
                        std::span<const double> frequencies,
                        int64_t position,
                        bool inverse) {
  const std::size_t begin = row.size() - 2 * frequencies.size();
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const double angle = (inverse ? -1.0 : 1.0) * static_cast<double>(position) * frequencies[i];
    const double a = row[begin + 2 * i];
    const double b = row[begin + 2 * i + 1];
    row[begin + 2 * i] = a * std::cos(angle) - b * std::sin(angle);
    row[begin + 2 * i + 1] = a * std::sin(angle) + b * std::cos(angle);
  }
}

}  // namespace baleen::kernels
