#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include "base/check.h"
#include "kernels/sinkhorn/sinkhorn_cpu.h"
#include "ops/hyper_connection.h"
#include "ops/needs_gradient.h"

namespace baleen::ops {
namespace {

constexpr int64_t kGrain = 256;  // matrices per task

kernels::SinkhornShape shape_of(const at::Tensor& logits, double eps, int64_t iters) {
  const int64_t n = logits.size(-1);
  return {.count = logits.numel() / (n * n), .width = n, .iters = iters, .eps = eps};
}

at::Tensor forward_cpu(const at::Tensor& logits, const kernels::SinkhornShape& shape) {
  const at::Tensor input = logits.contiguous();
  at::Tensor comb = at::empty_like(input);
  AT_DISPATCH_FLOATING_TYPES(input.scalar_type(), "sinkhorn", [&] {
    const auto* from = input.const_data_ptr<scalar_t>();
    auto* to = comb.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, shape.count, kGrain, [&](int64_t begin, int64_t end) {
      kernels::SinkhornShape part = shape;
      part.count = end - begin;
      const int64_t offset = begin * shape.width * shape.width;
      kernels::sinkhorn_cpu(from + offset, to + offset, part);
    });
  });
  return comb;
}

at::Tensor backward_cpu(const at::Tensor& logits,
                        const at::Tensor& dcomb,
                        const kernels::SinkhornShape& shape) {
  const at::Tensor input = logits.contiguous();
  const at::Tensor gradient = dcomb.contiguous();
  at::Tensor dlogits = at::empty_like(input);
  AT_DISPATCH_FLOATING_TYPES(input.scalar_type(), "sinkhorn_backward", [&] {
    const auto* from = input.const_data_ptr<scalar_t>();
    const auto* incoming = gradient.const_data_ptr<scalar_t>();
    auto* to = dlogits.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, shape.count, kGrain, [&](int64_t begin, int64_t end) {
      kernels::SinkhornShape part = shape;
      part.count = end - begin;
      const int64_t offset = begin * shape.width * shape.width;
      kernels::sinkhorn_backward_cpu(from + offset, incoming + offset, to + offset, part);
    });
  });
  return dlogits;
}

/// The form for other devices. A matrix is a row of n * n numbers; multiplying it by a 0/1 matrix
/// puts the sum of its line at every place of the line, so that one step is two launches.
struct LineSums {
  at::Tensor rows, columns;  // [n * n, n * n]
  at::Tensor eps;            // [1]

  LineSums(const at::Tensor& like, int64_t n, double eps_value) {
    const at::Tensor unit = at::eye(n, like.options().requires_grad(false));
    rows = unit.view({n, 1, n, 1}).expand({n, n, n, n}).reshape({n * n, n * n});
    columns = unit.view({1, n, 1, n}).expand({n, n, n, n}).reshape({n * n, n * n});
    eps = at::full({1}, eps_value, like.options().requires_grad(false));
  }
  const at::Tensor& of_step(int64_t step) const { return step % 2 == 0 ? columns : rows; }
};

struct History {
  at::Tensor softmax;
  std::vector<at::Tensor> outputs, divisors;  // of every normalisation step
};

History run_steps(const at::Tensor& logits,
                  const LineSums& sums,
                  const kernels::SinkhornShape& shape) {
  History history;
  const int64_t n = shape.width;
  history.softmax = at::softmax(logits, -1).view({-1, n * n});
  at::Tensor c = history.softmax + shape.eps;
  for (int64_t step = 0; step < 2 * shape.iters - 1; ++step) {
    history.divisors.push_back(at::addmm(sums.eps, c, sums.of_step(step)));
    c = c / history.divisors.back();
    history.outputs.push_back(c);
  }
  return history;
}

at::Tensor forward_any(const at::Tensor& logits, const kernels::SinkhornShape& shape) {
  const LineSums sums(logits, shape.width, shape.eps);
  at::Tensor c = at::softmax(logits, -1).reshape({-1, shape.width * shape.width}) + shape.eps;
  for (int64_t step = 0; step < 2 * shape.iters - 1; ++step) {
    c = c / at::addmm(sums.eps, c, sums.of_step(step));
  }
  return c.view(logits.sizes());
}

at::Tensor backward_any(const at::Tensor& logits,
                        const at::Tensor& dcomb,
                        const kernels::SinkhornShape& shape) {
  const int64_t n = shape.width;
  const LineSums sums(logits, n, shape.eps);
  const History history = run_steps(logits, sums, shape);
  at::Tensor gradient = dcomb.reshape({-1, n * n});
  for (int64_t step = 2 * shape.iters - 2; step >= 0; --step) {
    const auto at_step = static_cast<std::size_t>(step);
    gradient = at::addmm(gradient,
                         gradient * history.outputs[at_step],
                         sums.of_step(step),
                         /*beta=*/1,
                         /*alpha=*/-1) /
               history.divisors[at_step];
  }
  return at::_softmax_backward_data(gradient.view(logits.sizes()),
                                    history.softmax.view(logits.sizes()),
                                    -1,
                                    logits.scalar_type());
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
    return logits.device().is_cpu() ? forward_cpu(logits, shape) : forward_any(logits, shape);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    const at::Tensor logits = ctx->get_saved_variables()[0];
    const auto shape =
        shape_of(logits, ctx->saved_data["eps"].toDouble(), ctx->saved_data["iters"].toInt());
    return {logits.device().is_cpu() ? backward_cpu(logits, grads[0], shape)
                                     : backward_any(logits, grads[0], shape),
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
  return logits.device().is_cpu() ? forward_cpu(logits, shape) : forward_any(logits, shape);
}

}  // namespace baleen::ops
