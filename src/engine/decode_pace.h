#pragma once
// How many prompt tokens a step may carry so that decoding sequences get their next token within a
// wished interval. Learns what a step costs from the steps themselves: a base, and so much per
// prompt token; the cost per token grows along a giant prompt, and the limit follows it down. Owned
// by the engine, used on its thread.
//
//   DecodePace pace(0.05);                        // seconds
//   pace.observe(seconds_of_step, prompt_tokens);
//   scheduler.limit_prefill_beside_decode(pace.limit());

#include <algorithm>
#include <cstdint>
#include <limits>

namespace baleen::engine {

class DecodePace {
 public:
  static constexpr int32_t kNoLimit = std::numeric_limits<int32_t>::max();
  /// A step never carries fewer prompt tokens than this: prompts must end too.
  static constexpr int32_t kLeast = 16;

  /// `interval_s` 0: no limit. `first_limit`: before anything is known.
  DecodePace(double interval_s, int32_t first_limit)
      : interval_s_(interval_s), first_limit_(first_limit) {}

  void observe(double step_s, int32_t num_prompt_tokens) {
    if (num_prompt_tokens == 0) {
      base_s_ = base_s_ < 0 ? step_s : base_s_ + kRate * (step_s - base_s_);
      return;
    }
    const double base = std::max(base_s_, 0.0);
    const double per_token = std::max(step_s - base, 0.0) / num_prompt_tokens;
    // Up at once, down slowly: a limit too high costs others their interval.
    per_token_s_ =
        per_token > per_token_s_ ? per_token : per_token_s_ + kRate * (per_token - per_token_s_);
  }

  int32_t limit() const {
    if (interval_s_ <= 0.0) {
      return kNoLimit;
    }
    if (per_token_s_ <= 0.0) {
      return std::max(first_limit_, kLeast);
    }
    const double tokens = (interval_s_ - std::max(base_s_, 0.0)) / per_token_s_;
    return static_cast<int32_t>(std::clamp(tokens, double{kLeast}, 1e9));
  }

 private:
  static constexpr double kRate = 0.2;
  double interval_s_;
  int32_t first_limit_;
  double base_s_ = -1.0;
  double per_token_s_ = 0.0;
};

}  // namespace baleen::engine
