#include "ops/gradcheck.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/check.h"

namespace baleen::ops {
namespace {

/// Weights that differ for every element and output, so that errors cannot cancel.
at::Tensor weighted_sum(const std::vector<at::Tensor>& outputs) {
  at::Tensor sum;
  double phase = 0.3;
  for (const at::Tensor& output : outputs) {
    const at::Tensor weights =
        at::arange(output.numel(), at::kDouble).mul(1.7).add(phase).cos().view(output.sizes());
    const at::Tensor part = (output * weights).sum();
    sum = sum.defined() ? sum + part : part;
    phase += 0.9;
  }
  return sum;
}

}  // namespace

GradcheckReport gradcheck(const TensorFunction& function,
                          const std::vector<at::Tensor>& inputs,
                          double step) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& input : inputs) {
    BALEEN_CHECK(input.scalar_type() == at::kDouble && input.device().is_cpu(),
                 "gradients are checked in double on the CPU");
    leaves.push_back(input.detach().clone(at::MemoryFormat::Contiguous).requires_grad_(true));
  }
  const auto analytic = torch::autograd::grad({weighted_sum(function(leaves))},
                                              leaves,
                                              /*grad_outputs=*/{},
                                              /*retain_graph=*/false,
                                              /*create_graph=*/false,
                                              /*allow_unused=*/true);
  GradcheckReport report;
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    const at::Tensor gradient =
        analytic[i].defined() ? analytic[i].contiguous() : at::zeros_like(leaves[i]);
    auto* element = leaves[i].mutable_data_ptr<double>();
    for (int64_t k = 0; k < leaves[i].numel(); ++k) {
      const double value = element[k];
      element[k] = value + step;
      const double above = weighted_sum(function(leaves)).item<double>();
      element[k] = value - step;
      const double below = weighted_sum(function(leaves)).item<double>();
      element[k] = value;
      const double numeric = (above - below) / (2.0 * step);
      const double found = gradient.const_data_ptr<double>()[k];
      const double error = std::abs(found - numeric) / std::max(1.0, std::abs(numeric));
      if (!(error <= report.worst)) {
        report = {error,
                  "input " + std::to_string(i) + " element " + std::to_string(k) + ": " +
                      std::to_string(found) + " against " + std::to_string(numeric)};
      }
    }
  }
  return report;
}

}  // namespace baleen::ops
