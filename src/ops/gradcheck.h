#pragma once
// For tests: compares the gradient that autograd gives with central differences, in double on the
// CPU.
//
//   auto report = ops::gradcheck([&](const auto& in) { return f(in[0], in[1]); }, {x, w});
//   EXPECT_LT(report.worst, 1e-7) << report.where;

#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace baleen::ops {

struct GradcheckReport {
  double worst = 0.0;  // largest |analytic - numeric| / max(1, |numeric|) over all inputs
  std::string where;   // input and flat element of the worst one, with both values
};

using TensorFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

/// The outputs are weighted with fixed pseudo-random numbers and summed to one loss. Every element
/// of every input is moved by +-step.
GradcheckReport gradcheck(const TensorFunction& function,
                          const std::vector<at::Tensor>& inputs,
                          double step = 1e-6);

}  // namespace baleen::ops
