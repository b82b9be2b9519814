#include "ops/linear.h"

#include <ATen/ATen.h>

#include "base/check.h"
#include "ops/fake_quantize.h"
#include "ops/rounding.h"

namespace baleen::ops {
namespace {

constexpr int64_t kActivationBlock = 128;  // inputs that share a scale

}  // namespace

at::Tensor linear_input(const at::Tensor& x, LinearFormat format, const Numerics& numerics) {
  const bool quantised =
      format != LinearFormat::kPlain && numerics.linear_activation == LinearActivation::kFp8;
  return quantised ? quantize_fp8_block(x, kActivationBlock) : x;
}

at::Tensor linear_prepared(const at::Tensor& prepared,
                           const at::Tensor& weight,
                           const Numerics& numerics) {
  return store_activation(linear_unrounded(prepared, weight), numerics);
}

at::Tensor linear(const at::Tensor& x,
                  const at::Tensor& weight,
                  LinearFormat format,
                  const Numerics& numerics) {
  return linear_prepared(linear_input(x, format, numerics), weight, numerics);
}

at::Tensor linear_unrounded(const at::Tensor& x, const at::Tensor& weight) {
  BALEEN_CHECK(weight.dim() == 2 && x.size(-1) == weight.size(1),
               "input width {} does not fit a weight of {} x {}",
               x.size(-1),
               weight.size(0),
               weight.size(1));
  return at::linear(x, weight);
}

}  // namespace baleen::ops
