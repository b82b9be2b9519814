#pragma once
// For tests: seeded tensors and the comparison of a tensor with what an oracle gave.
//
//   at::Tensor x = seeded({2, 3, 16}, 7, at::kFloat);
//   EXPECT_LT(relative_error(y, expected), 1e-12);

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include <ATen/ATen.h>

namespace baleen::ops {

/// Uniform in [-1, 1), a function of seed and element; the same numbers in every dtype's range.
inline at::Tensor seeded(at::IntArrayRef sizes, uint64_t seed, at::ScalarType dtype = at::kDouble) {
  at::Tensor x = at::empty(sizes, at::kDouble);
  auto* out = x.mutable_data_ptr<double>();
  uint64_t state = seed * 0x9E3779B97F4A7C15ULL + 1;
  for (int64_t i = 0; i < x.numel(); ++i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    out[i] = static_cast<double>(state >> 40) * 0x1p-23 - 1.0;  // 24 bits: exact in float
  }
  return x.to(dtype);
}

/// All elements in row-major order.
inline std::vector<double> values_of(const at::Tensor& x) {
  const at::Tensor flat = x.detach().to(at::kDouble).contiguous();
  return {flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel()};
}

inline std::span<const double> part(const std::vector<double>& values,
                                    int64_t begin,
                                    int64_t count) {
  return std::span(values).subspan(static_cast<std::size_t>(begin),
                                   static_cast<std::size_t>(count));
}

/// L2 norm of the difference over the L2 norm of `expected`; infinity when the sizes differ.
inline double relative_error(const at::Tensor& found, const std::vector<double>& expected) {
  const std::vector<double> values = values_of(found);
  if (values.size() != expected.size()) {
    return INFINITY;
  }
  double difference = 0.0;
  double norm = 0.0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    difference += (values[i] - expected[i]) * (values[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  return difference == 0.0 ? 0.0 : std::sqrt(difference / norm);
}

/// Bounds of relative_error for a formula whose sums have up to `terms` terms: each of the
/// roundings on the longest path, about terms + 16, adds at most one unit of 2^-24 (float) or 2^-53
/// (double) relative to the size of what is summed; a factor 8 covers cancellation in sums of mixed
/// sign.
inline double error_bound(at::ScalarType dtype, int64_t terms) {
  return static_cast<double>(terms + 16) * 8.0 * (dtype == at::kDouble ? 0x1p-53 : 0x1p-24);
}

}  // namespace baleen::ops
