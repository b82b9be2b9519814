#include "ops/sinkhorn_steps.h"

#include <utility>
#include <vector>

#include <ATen/ATen.h>

namespace baleen::ops {
namespace {

/// A matrix is a row of n * n numbers; multiplying it by a 0/1 matrix
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

History run_steps(const at::Tensor& logits, const LineSums& sums, const SinkhornShape& shape) {
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

}  // namespace

at::Tensor sinkhorn_steps(const at::Tensor& logits, const SinkhornShape& shape) {
  const LineSums sums(logits, shape.width, shape.eps);
  at::Tensor c = at::softmax(logits, -1).reshape({-1, shape.width * shape.width}) + shape.eps;
  for (int64_t step = 0; step < 2 * shape.iters - 1; ++step) {
    c = c / at::addmm(sums.eps, c, sums.of_step(step));
  }
  return c.view(logits.sizes());
}

at::Tensor sinkhorn_steps_backward(const at::Tensor& logits,
                                   const at::Tensor& dcomb,
                                   const SinkhornShape& shape) {
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

}  // namespace baleen::ops
