#pragma once
// The training recipe as a pure function of the step: learning rate, loss weights, batch shapes,
// and when the numbers of the served model (quantised weights and activations) come in.
//
//   const Recipe recipe{.num_steps = 2400};
//   recipe.learning_rate(step), recipe.quantized(step)

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <vector>

#include "abacus/batch.h"

namespace baleen::abacus {

struct Recipe {
  int64_t num_steps = 2400;
  int64_t warmup_steps = 100;
  double peak_learning_rate = 2e-3;
  double final_share = 0.01;   // of the peak, at the end of the cosine
  double plain_share = 0.5;    // of the steps; the rest trains the quantised model
  double late_mtp_from = 0.6;  // from this share of the steps on, the lower MTP weight
  double early_mtp_weight = 0.3;
  double late_mtp_weight = 0.1;
  double prompt_weight = 0.03;  // of tokens that the user says, as targets
  double index_weight = 0.1;
  double balance_weight = 1e-3;
  double bias_rate = 1e-3;  // step of the router biases
  double weight_decay = 0.05;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-10;
  double clip_norm = 1.0;
  int64_t tokens_per_step = 43008;
  double below_zero_share = 0.0;  // of the questions for a difference

  double progress(int64_t step) const {
    return static_cast<double>(step) / static_cast<double>(num_steps);
  }
  double learning_rate(int64_t step) const {
    const double warm = std::min(
        1.0,
        static_cast<double>(step + 1) / static_cast<double>(std::max<int64_t>(warmup_steps, 1)));
    const double cosine = 0.5 * (1.0 + std::cos(std::numbers::pi * progress(step)));
    return peak_learning_rate * warm * (final_share + (1.0 - final_share) * cosine);
  }
  bool quantized(int64_t step) const { return progress(step) >= plain_share; }
  double mtp_weight(int64_t step) const {
    return progress(step) < late_mtp_from ? early_mtp_weight : late_mtp_weight;
  }

  /// One cycle of batch forms: single questions, conversations of 300 tokens and more, and long
  /// ones, with about the same number of tokens each.
  std::vector<BatchShape> shapes() const {
    const auto form = [this](int64_t tokens, double thinking_share) {
      return BatchShape{
          std::max<int64_t>(tokens_per_step / tokens, 1), tokens, thinking_share, below_zero_share};
    };
    const BatchShape single = form(64, 0.6);
    const BatchShape conversation = form(384, 0.35);
    const BatchShape long_conversation = form(768, 0.35);
    return {single,
            conversation,
            single,
            conversation,
            single,
            conversation,
            single,
            long_conversation};
  }
};

}  // namespace baleen::abacus
