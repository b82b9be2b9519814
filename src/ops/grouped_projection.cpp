#include "ops/grouped_projection.h"

#include <vector>

#include <ATen/ATen.h>

#include "base/check.h"
#include "ops/fixed_order.h"
#include "ops/invariant.h"
#include "ops/linear.h"
#include "ops/needs_gradient.h"
#include "ops/rounding.h"

namespace baleen::ops {

at::Tensor grouped_projection(const at::Tensor& x,
                              const at::Tensor& wo_a,
                              int64_t groups,
                              const Numerics& numerics) {
  const int64_t group_width = wo_a.size(1);
  const int64_t latent = wo_a.size(0) / groups;
  const int64_t width = groups * group_width;
  // The trailing dims that make up the heads: one ([..., nh * D]) or two ([..., nh, D]).
  const int64_t trailing = x.size(-1) == width ? 1 : 2;
  BALEEN_CHECK(wo_a.size(0) == groups * latent && x.dim() >= trailing &&
                   (trailing == 1 || x.size(-1) * x.size(-2) == width),
               "{} groups of {} do not fit an input whose last dim is {}",
               groups,
               group_width,
               x.size(-1));
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.resize(sizes.size() - static_cast<std::size_t>(trailing));
  sizes.push_back(groups * latent);
  at::Tensor input = x.reshape({-1, groups, group_width});
  const LinearFormat format = numerics.wo_a_activation == LinearActivation::kFp8
                                  ? LinearFormat::kFp8
                                  : LinearFormat::kPlain;
  Numerics input_numerics = numerics;
  input_numerics.linear_activation = numerics.wo_a_activation;
  input = linear_input(input, format, input_numerics);
  const at::Tensor matrices = wo_a.view({groups, latent, group_width});
  const auto product = [&] {
    return at::bmm(input.transpose(0, 1), matrices.transpose(1, 2)).transpose(0, 1);
  };
  const at::Tensor result =
      numerics.invariant() ? invariant_value(input,
                                             needs_gradient(input, wo_a),
                                             product,
                                             [&] { return fixed_grouped_linear(input, matrices); })
                           : product();
  return store_activation(result.reshape(sizes), numerics);
}

}  // namespace baleen::ops
