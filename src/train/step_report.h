#pragma once
// What one optimizer step did. Plain data, no Torch.

#include <cstdint>

namespace baleen::train {

struct StepReport {
  int64_t step = 0;  // 0 for the first
  double loss = 0.0;
  double mtp_loss = 0.0;
  double balance = 0.0;
  double index_loss = 0.0;
  double gradient_norm = 0.0;  // before clipping
  double learning_rate = 0.0;
  bool skipped = false;       // the gradient was not finite
  int64_t skipped_steps = 0;  // of the run so far
  int64_t tokens = 0;         // fed
  int64_t targets = 0;        // tokens with a weight
  int64_t samples = 0;
  int64_t micro_batches = 0;
};

}  // namespace baleen::train
