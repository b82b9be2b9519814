#include "train/adamw.h"

#include <cmath>

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>

#include "base/check.h"

namespace baleen::train {
namespace {

/// The numbers of one step in the type of the state.
template <class Number>
struct AdamwFactors {
  Number scale, beta1, rest1, beta2, rest2, correction1, correction2, epsilon, keep, rate;

  explicit AdamwFactors(const AdamwNumbers& numbers)
      : scale(static_cast<Number>(numbers.gradient_scale)),
        beta1(static_cast<Number>(numbers.beta1)),
        rest1(static_cast<Number>(1.0 - numbers.beta1)),
        beta2(static_cast<Number>(numbers.beta2)),
        rest2(static_cast<Number>(1.0 - numbers.beta2)),
        correction1(
            static_cast<Number>(1.0 - std::pow(numbers.beta1, static_cast<double>(numbers.step)))),
        correction2(
            static_cast<Number>(1.0 - std::pow(numbers.beta2, static_cast<double>(numbers.step)))),
        epsilon(static_cast<Number>(numbers.epsilon)),
        keep(static_cast<Number>(1.0 - numbers.learning_rate * numbers.weight_decay)),
        rate(static_cast<Number>(numbers.learning_rate)) {}
};

template <class Number>
void update_loop(Number* x,
                 const Number* gradient,
                 Number* m,
                 Number* v,
                 int64_t count,
                 const AdamwFactors<Number>& f) {
  for (int64_t i = 0; i < count; ++i) {
    const Number g = gradient[i] * f.scale;
    m[i] = m[i] * f.beta1 + g * f.rest1;
    v[i] = v[i] * f.beta2 + g * g * f.rest2;
    const Number step = (m[i] / f.correction1) / (std::sqrt(v[i] / f.correction2) + f.epsilon);
    x[i] = x[i] * f.keep - step * f.rate;
  }
}

void check(const AdamwTensors& t) {
  BALEEN_CHECK(t.value.is_contiguous() && t.gradient.is_contiguous() && t.m.is_contiguous() &&
                   t.v.is_contiguous() && t.gradient.numel() == t.value.numel() &&
                   t.m.numel() == t.value.numel() && t.v.numel() == t.value.numel(),
               "{} values, {} gradients",
               t.value.numel(),
               t.gradient.numel());
}

}  // namespace

void adamw_update(const AdamwTensors& tensors, const AdamwNumbers& numbers) {
  check(tensors);
  if (!tensors.value.device().is_cpu()) {
    adamw_update_by_tensors(tensors, numbers);
    return;
  }
  AT_DISPATCH_FLOATING_TYPES(tensors.value.scalar_type(), "adamw_update", [&] {
    update_loop(tensors.value.mutable_data_ptr<scalar_t>(),
                tensors.gradient.const_data_ptr<scalar_t>(),
                tensors.m.mutable_data_ptr<scalar_t>(),
                tensors.v.mutable_data_ptr<scalar_t>(),
                tensors.value.numel(),
                AdamwFactors<scalar_t>(numbers));
  });
}

void adamw_update_by_tensors(const AdamwTensors& tensors, const AdamwNumbers& numbers) {
  check(tensors);
  const at::NoGradGuard no_grad;
  AT_DISPATCH_FLOATING_TYPES(tensors.value.scalar_type(), "adamw_update", [&] {
    const AdamwFactors<scalar_t> f(numbers);
    const auto shape = tensors.value.sizes();
    const at::Tensor g = tensors.gradient.view(shape) * f.scale;
    tensors.m.mul_(f.beta1).add_((g * f.rest1).view(tensors.m.sizes()));
    tensors.v.mul_(f.beta2).add_((g * g * f.rest2).view(tensors.v.sizes()));
    const at::Tensor step =
        (tensors.m / f.correction1) / ((tensors.v / f.correction2).sqrt() + f.epsilon);
    tensors.value.mul_(f.keep).sub_((step * f.rate).view(shape));
  });
}

}  // namespace baleen::train
