#include "train/muon.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>

#include "base/check.h"

namespace baleen::train {
namespace {

constexpr int64_t kFastSteps = 8;
constexpr double kNormFloor = 1e-7;

struct Polynomial {
  double a, b, c;
};

Polynomial polynomial(int64_t index) {
  return index < kFastSteps ? Polynomial{3.4445, -4.7750, 2.0315} : Polynomial{2.0, -1.5, 0.5};
}

}  // namespace

double newton_schulz_value(double singular_value, int64_t index) {
  const Polynomial p = polynomial(index);
  const double square = singular_value * singular_value;
  return singular_value * (p.a + square * (p.b + square * p.c));
}

at::Tensor newton_schulz(const at::Tensor& x, int64_t num_steps) {
  BALEEN_CHECK(x.dim() == 3, "a batch of matrices has three dims, not {}", x.dim());
  const at::NoGradGuard no_grad;
  const bool tall = x.size(1) > x.size(2);
  const at::Tensor norm = x.square().sum(at::IntArrayRef({1, 2}), /*keepdim=*/true).sqrt();
  at::Tensor y = x / (norm + kNormFloor);
  if (tall) {
    y = y.transpose(1, 2);
  }
  for (int64_t index = 0; index < num_steps; ++index) {
    const Polynomial p = polynomial(index);
    const at::Tensor gram = at::bmm(y, y.transpose(1, 2));
    const at::Tensor mixed = gram * p.b + at::bmm(gram, gram) * p.c;
    y = y * p.a + at::bmm(mixed, y);
  }
  return tall ? y.transpose(1, 2) : y;
}

void muon_update(const at::Tensor& value,
                 const at::Tensor& gradient,
                 const at::Tensor& momentum,
                 const MuonNumbers& numbers) {
  const at::NoGradGuard no_grad;
  const at::Tensor g = gradient * numbers.gradient_scale;
  momentum.mul_(numbers.momentum).add_(g);
  const at::Tensor direction = newton_schulz(momentum * numbers.momentum + g);
  const double size =
      numbers.scale * std::sqrt(static_cast<double>(std::max(value.size(1), value.size(2))));
  value.mul_(1.0 - numbers.learning_rate * numbers.weight_decay)
      .sub_(direction * (numbers.learning_rate * size));
}

}  // namespace baleen::train
