#include "ops/fixed_order.h"

#include <algorithm>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include "kernels/linear/linear_cpu.h"

namespace baleen::ops {
namespace {

constexpr int64_t kRowGrain = 8;                 // rows of a task
constexpr int64_t kTaskWork = int64_t{1} << 15;  // products below which a task is not worth it

/// Rows are split over threads, or outputs where there are few rows; either leaves every dot whole.
template <class T>
void in_parallel(const kernels::LinearCpuArgs<T>& all) {
  const auto part = [&](int64_t row, int64_t rows, int64_t output, int64_t outputs) {
    kernels::LinearCpuArgs<T> some = all;
    some.x += row * all.x_stride;
    some.weight += output * all.cols;
    some.y += row * all.y_stride + output;
    some.rows = rows;
    some.outputs = outputs;
    kernels::linear_cpu(some);
  };
  if (all.rows < 2 * kRowGrain) {
    const int64_t grain =
        std::max<int64_t>(8, kTaskWork / std::max<int64_t>(1, all.cols * all.rows));
    at::parallel_for(0, all.outputs, grain, [&](int64_t begin, int64_t end) {
      part(0, all.rows, begin, end - begin);
    });
    return;
  }
  at::parallel_for(0, all.rows, kRowGrain, [&](int64_t begin, int64_t end) {
    part(begin, end - begin, 0, all.outputs);
  });
}

}  // namespace

at::Tensor fixed_linear(const at::Tensor& x, const at::Tensor& weight) {
  const at::Tensor source = x.contiguous();
  const at::Tensor matrix = weight.contiguous();
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = matrix.size(0);
  at::Tensor y = at::empty(sizes, x.options());
  const int64_t cols = matrix.size(1);
  const int64_t outputs = matrix.size(0);
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "fixed_linear", [&] {
    in_parallel<scalar_t>({.x = source.const_data_ptr<scalar_t>(),
                           .weight = matrix.const_data_ptr<scalar_t>(),
                           .y = y.mutable_data_ptr<scalar_t>(),
                           .rows = outputs == 0 ? 0 : y.numel() / outputs,
                           .outputs = outputs,
                           .cols = cols,
                           .x_stride = cols,
                           .y_stride = outputs});
  });
  return y;
}

at::Tensor fixed_grouped_linear(const at::Tensor& x, const at::Tensor& weight) {
  const at::Tensor source = x.contiguous();
  const at::Tensor matrix = weight.contiguous();
  const int64_t rows = x.size(0);
  const int64_t groups = x.size(1);
  const int64_t cols = x.size(2);
  const int64_t outputs = matrix.size(1);
  at::Tensor y = at::empty({rows, groups, outputs}, x.options());
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "fixed_grouped_linear", [&] {
    for (int64_t g = 0; g < groups; ++g) {
      in_parallel<scalar_t>({.x = source.const_data_ptr<scalar_t>() + g * cols,
                             .weight = matrix.const_data_ptr<scalar_t>() + g * outputs * cols,
                             .y = y.mutable_data_ptr<scalar_t>() + g * outputs,
                             .rows = rows,
                             .outputs = outputs,
                             .cols = cols,
                             .x_stride = groups * cols,
                             .y_stride = groups * outputs});
    }
  });
  return y;
}

}  // namespace baleen::ops
