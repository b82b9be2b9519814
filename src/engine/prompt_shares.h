#pragma once
// How the prompts under way divide a step's tokens: all alike, and what one cannot use goes to the
// others, so that a short prompt ends soon beside a giant one. Pure; keeps its lists between steps.
//
//   PromptShares shares;
//   std::span<const int32_t> tokens = shares.divide(wants, budget);

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace baleen::engine {

class PromptShares {
 public:
  /// `wants`: most tokens that each prompt can use, >= 0. Everyone gets a token while there are
  /// any; earlier ones get the odd ones. Valid until the next call.
  std::span<const int32_t> divide(std::span<const int32_t> wants, int32_t budget) {
    shares_.assign(wants.size(), 0);
    order_.resize(wants.size());
    std::iota(order_.begin(), order_.end(), size_t{0});
    // The least demanding first: what they leave is divided among the rest. Of equal ones the last
    // first, so that rounding up favours the first.
    std::sort(order_.begin(), order_.end(), [&](size_t a, size_t b) {
      return wants[a] != wants[b] ? wants[a] < wants[b] : a > b;
    });
    auto num_left = static_cast<int32_t>(order_.size());
    for (const size_t i : order_) {
      shares_[i] = std::min(wants[i], std::max(budget, 0) / num_left);
      budget -= shares_[i];
      --num_left;
    }
    return shares_;
  }

 private:
  std::vector<int32_t> shares_;
  std::vector<size_t> order_;
};

}  // namespace baleen::engine
