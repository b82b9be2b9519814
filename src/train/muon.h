#pragma once
// One Muon update of a batch of matrices of equal shape. Momentum M = mu M + G, direction
// U = NS(mu M + G) (Nesterov), x = x (1 - lr wd) - lr scale sqrt(max(rows, cols)) U. Stateless; any
// thread.
//
//   muon_update(x.view({E, r, c}), gradient, momentum, numbers);

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace baleen::train {

/// The nearest orthogonal matrices, as far as ten Newton-Schulz steps go: eight fast ones, two that
/// settle. x [B, r, c] f32 or f64; each matrix is divided by its Frobenius norm first. `num_steps`
/// below ten stops early (for tests).
at::Tensor newton_schulz(const at::Tensor& x, int64_t num_steps = 10);

/// One Newton-Schulz polynomial, step `index` of the ten, of a singular value.
double newton_schulz_value(double singular_value, int64_t index);

struct MuonNumbers {
  double learning_rate = 0.0;
  double momentum = 0.95;
  double scale = 0.18;
  double weight_decay = 0.0;
  double gradient_scale = 1.0;
};

/// value, gradient, momentum [B, r, c]; value and momentum are written.
void muon_update(const at::Tensor& value,
                 const at::Tensor& gradient,
                 const at::Tensor& momentum,
                 const MuonNumbers& numbers);

}  // namespace baleen::train
