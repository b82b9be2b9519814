#pragma once
// Oracle of the total-order choice: the k best of the first `length` scores. Higher score first;
// ties go to the lower index; NaN ranks below -inf. Result in order of preference.
//
//   std::vector<int64_t> best = kernels::topk_oracle(scores, length, k);

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

namespace baleen::kernels {

inline std::vector<int64_t> topk_oracle(std::span<const double> scores,
                                        std::size_t length,
                                        std::size_t k) {
  std::vector<int64_t> order;
  for (std::size_t i = 0; i < length; ++i) {
    order.push_back(static_cast<int64_t>(i));
  }
  const auto better = [&](int64_t left, int64_t right) {
    const double a = scores[static_cast<std::size_t>(left)];
    const double b = scores[static_cast<std::size_t>(right)];
    if (std::isnan(a) || std::isnan(b)) {
      return std::isnan(b) && (!std::isnan(a) || left < right);
    }
    return a != b ? a > b : left < right;
  };
  std::sort(order.begin(), order.end(), better);
  order.resize(std::min(k, length));
  return order;
}

}  // namespace baleen::kernels
