#pragma once
// A bound on the work of one verification, in elementary operations, so that no answer can hold a
// worker. Owned by the call; one thread.
//
//   StepBudget budget;
//   if (!budget.spend(text.size())) return refused;

#include <cstdint>

namespace baleen::rewards {

class StepBudget {
 public:
  explicit StepBudget(int64_t steps = 1'000'000) : steps_(steps), left_(steps) {}
  /// False once more was spent than there is; stays false.
  bool spend(int64_t steps = 1) {
    if (left_ >= 0) {
      left_ -= steps;
    }
    return left_ >= 0;
  }
  bool spent() const { return left_ < 0; }
  int64_t used() const { return steps_ - left_; }

 private:
  int64_t steps_;
  int64_t left_;
};

}  // namespace baleen::rewards
