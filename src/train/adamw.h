#pragma once
// One AdamW update. Formula, per element, step s from 1:
//   m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
//   x = x (1 - lr wd) - lr (m / (1 - b1^s)) / (sqrt(v / (1 - b2^s)) + eps)
// Both forms round after each operation; roots are as the library has them. Stateless; any thread.
//
//   adamw_update({.value = x, .gradient = g, .m = m, .v = v}, numbers);

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace baleen::train {

struct AdamwTensors {
  at::Tensor value;     // f32 or f64, contiguous; written
  at::Tensor gradient;  // likewise, all four of one shape
  at::Tensor m;         // written
  at::Tensor v;         // written
};

struct AdamwNumbers {
  double learning_rate = 0.0;
  double beta1 = 0.9;
  double beta2 = 0.98;
  double epsilon = 1e-8;
  double weight_decay = 0.0;
  double gradient_scale = 1.0;
  int64_t step = 1;
};

/// A loop on the CPU, the tensor form elsewhere.
void adamw_update(const AdamwTensors& tensors, const AdamwNumbers& numbers);
void adamw_update_by_tensors(const AdamwTensors& tensors, const AdamwNumbers& numbers);

}  // namespace baleen::train
