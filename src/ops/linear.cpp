#include "ops/linear.h"

#include <vector>

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>

#include "base/check.h"
#include "kernels/lanes.h"
#include "ops/fake_quantize.h"
#include "ops/fixed_order.h"
#include "ops/invariant.h"
#include "ops/needs_gradient.h"
#include "ops/rounding.h"

namespace baleen::ops {
namespace {

constexpr int64_t kActivationBlock = 128;  // inputs that share a scale
constexpr int64_t kRowwiseRows = 4;  // up to here products of one row beat a matrix product ...
constexpr int64_t kRowwiseWeight = 1 << 18;  // ... of weights that stay in the cache

bool fits_rowwise(const at::Tensor& x, const at::Tensor& weight) {
  return x.device().is_cpu() && x.numel() <= kRowwiseRows * x.size(-1) && weight.size(1) > 0 &&
         weight.numel() <= kRowwiseWeight && weight.is_contiguous() && !needs_gradient(x, weight);
}

/// The decode step of a small model, where a call into the matrix library costs more than its work.
at::Tensor rowwise_linear(const at::Tensor& x, const at::Tensor& weight) {
  const at::Tensor source = x.contiguous();
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = weight.size(0);
  at::Tensor y = at::empty(sizes, x.options());
  const int64_t cols = weight.size(1);
  const int64_t outputs = weight.size(0);
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "linear", [&] {
    for (int64_t row = 0; cols > 0 && row < source.numel() / cols; ++row) {
      kernels::multiply_rows(weight.const_data_ptr<scalar_t>(),
                             source.const_data_ptr<scalar_t>() + row * cols,
                             y.mutable_data_ptr<scalar_t>() + row * outputs,
                             outputs,
                             cols);
    }
  });
  return y;
}

}  // namespace

at::Tensor linear_input(const at::Tensor& x, LinearFormat format, const Numerics& numerics) {
  const bool quantised =
      format != LinearFormat::kPlain && numerics.linear_activation == LinearActivation::kFp8;
  return quantised ? quantize_fp8_block(x, kActivationBlock) : x;
}

at::Tensor linear_prepared(const at::Tensor& prepared,
                           const at::Tensor& weight,
                           const Numerics& numerics) {
  return store_activation(linear_unrounded(prepared, weight, numerics), numerics);
}

at::Tensor linear(const at::Tensor& x,
                  const at::Tensor& weight,
                  LinearFormat format,
                  const Numerics& numerics) {
  return linear_prepared(linear_input(x, format, numerics), weight, numerics);
}

at::Tensor linear_unrounded(const at::Tensor& x,
                            const at::Tensor& weight,
                            const Numerics& numerics) {
  BALEEN_CHECK(weight.dim() == 2 && x.size(-1) == weight.size(1),
               "input width {} does not fit a weight of {} x {}",
               x.size(-1),
               weight.size(0),
               weight.size(1));
  if (numerics.invariant()) {
    return invariant_value(
        x,
        needs_gradient(x, weight),
        [&] { return at::linear(x, weight); },
        [&] { return fixed_linear(x, weight); });
  }
  return fits_rowwise(x, weight) ? rowwise_linear(x, weight) : at::linear(x, weight);
}

}  // namespace baleen::ops
