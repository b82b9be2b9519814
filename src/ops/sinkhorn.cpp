#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include "base/check.h"
#include "kernels/sinkhorn/sinkhorn_cpu.h"
#include "ops/hyper_connection.h"
#include "ops/needs_gradient.h"
#include "ops/sinkhorn_steps.h"

namespace baleen::ops {
namespace {

constexpr int64_t kGrain = 256;  // matrices per task

SinkhornShape shape_of(const at::Tensor& logits, double eps, int64_t iters) {
  const int64_t n = logits.size(-1);
  return {.count = logits.numel() / (n * n), .width = n, .iters = iters, .eps = eps};
}

at::Tensor forward_cpu(const at::Tensor& logits, const SinkhornShape& shape) {
  const at::Tensor input = logits.contiguous();
  at::Tensor comb = at::empty_like(input);
  AT_DISPATCH_FLOATING_TYPES(input.scalar_type(), "sinkhorn", [&] {
    const auto* from = input.const_data_ptr<scalar_t>();
    auto* to = comb.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, shape.count, kGrain, [&](int64_t begin, int64_t end) {
      SinkhornShape part = shape;
      part.count = end - begin;
      const int64_t offset = begin * shape.width * shape.width;
      kernels::sinkhorn_cpu(from + offset, to + offset, part);
    });
  });
  return comb;
}

at::Tensor backward_cpu(const at::Tensor& logits,
                        const at::Tensor& dcomb,
                        const SinkhornShape& shape) {
  const at::Tensor input = logits.contiguous();
  const at::Tensor gradient = dcomb.contiguous();
  at::Tensor dlogits = at::empty_like(input);
  AT_DISPATCH_FLOATING_TYPES(input.scalar_type(), "sinkhorn_backward", [&] {
    const auto* from = input.const_data_ptr<scalar_t>();
    const auto* incoming = gradient.const_data_ptr<scalar_t>();
    auto* to = dlogits.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, shape.count, kGrain, [&](int64_t begin, int64_t end) {
      SinkhornShape part = shape;
      part.count = end - begin;
      const int64_t offset = begin * shape.width * shape.width;
      kernels::sinkhorn_backward_cpu(from + offset, incoming + offset, to + offset, part);
    });
  });
  return dlogits;
}

class Sinkhorn : public torch::autograd::Function<Sinkhorn> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx,
                            const at::Tensor& logits,
                            double eps,
                            int64_t iters) {
    ctx->save_for_backward({logits});
    ctx->saved_data["eps"] = eps;
    ctx->saved_data["iters"] = iters;
    const auto shape = shape_of(logits, eps, iters);
    return logits.device().is_cpu() ? forward_cpu(logits, shape) : sinkhorn_steps(logits, shape);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    const at::Tensor logits = ctx->get_saved_variables()[0];
    const auto shape =
        shape_of(logits, ctx->saved_data["eps"].toDouble(), ctx->saved_data["iters"].toInt());
    return {logits.device().is_cpu() ? backward_cpu(logits, grads[0], shape)
                                     : sinkhorn_steps_backward(logits, grads[0], shape),
            at::Tensor(),
            at::Tensor()};
  }
};

}  // namespace

at::Tensor sinkhorn(const at::Tensor& logits, double hc_eps, int64_t iters) {
  BALEEN_CHECK(logits.dim() >= 2 && logits.size(-1) == logits.size(-2) && iters >= 1,
               "matrices of {} x {}, {} iterations",
               logits.size(-2),
               logits.size(-1),
               iters);
  if (needs_gradient(logits)) {
    return Sinkhorn::apply(logits, hc_eps, iters);
  }
  const auto shape = shape_of(logits, hc_eps, iters);
  return logits.device().is_cpu() ? forward_cpu(logits, shape) : sinkhorn_steps(logits, shape);
}

}  // namespace baleen::ops
