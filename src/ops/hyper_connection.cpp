#include "ops/hyper_connection.h"

#include <vector>

#include <ATen/ATen.h>

#include "base/check.h"
#include "ops/rounding.h"

namespace baleen::ops {
namespace {

/// The mixing product m = (fn x) rho over all streams of a token, with m * scale + base; `scale` is
/// spread over the numbers that share it.
at::Tensor mixed(const at::Tensor& flat,
                 const HcWeights& weights,
                 const at::Tensor& scale,
                 double rms_norm_eps) {
  const at::Tensor rho = flat.square().mean(-1, /*keepdim=*/true).add(rms_norm_eps).rsqrt();
  return at::addcmul(weights.base, at::linear(flat, weights.fn) * rho, scale);
}

/// sum_j pre_j x_j. pre [M, n], streams [M, n, H] -> [M, H].
at::Tensor weighted_sum(const at::Tensor& pre, const at::Tensor& streams) {
  return at::bmm(pre.unsqueeze(1), streams).squeeze(1);
}

std::vector<int64_t> leading_sizes(const at::Tensor& streams) {
  std::vector<int64_t> sizes = streams.sizes().vec();
  sizes.resize(sizes.size() - 2);
  return sizes;
}

at::Tensor with_leading(const at::Tensor& x,
                        std::vector<int64_t> leading,
                        at::IntArrayRef trailing) {
  leading.insert(leading.end(), trailing.begin(), trailing.end());
  return x.reshape(leading);
}

void check_weights(const at::Tensor& streams,
                   const HcWeights& weights,
                   int64_t outputs,
                   int64_t scales) {
  const int64_t width = streams.size(-1) * streams.size(-2);
  BALEEN_CHECK(streams.dim() >= 2 && weights.fn.dim() == 2 && weights.fn.size(0) == outputs &&
                   weights.fn.size(1) == width && weights.base.numel() == outputs &&
                   weights.scale.numel() == scales,
               "mixing of {} streams of {}: fn {} x {}, base {}, scale {}",
               streams.size(-2),
               streams.size(-1),
               weights.fn.size(0),
               weights.fn.size(-1),
               weights.base.numel(),
               weights.scale.numel());
}

}  // namespace

HcMix hc_pre(const at::Tensor& streams,
             const HcWeights& weights,
             const HcConfig& config,
             const Numerics& numerics) {
  const int64_t n = streams.size(-2);
  const int64_t width = streams.size(-1);
  check_weights(streams, weights, (2 + n) * n, 3);
  const at::Tensor flat = streams.reshape({-1, n * width});
  const at::Tensor scale = at::cat({weights.scale.narrow(0, 0, 1).expand({n}),
                                    weights.scale.narrow(0, 1, 1).expand({n}),
                                    weights.scale.narrow(0, 2, 1).expand({n * n})});
  const at::Tensor mix = mixed(flat, weights, scale, config.rms_norm_eps);
  const at::Tensor pre = mix.narrow(1, 0, n).sigmoid() + config.hc_eps;
  const at::Tensor post = mix.narrow(1, n, n).sigmoid() * 2.0;
  const at::Tensor comb = sinkhorn(
      mix.narrow(1, 2 * n, n * n).reshape({-1, n, n}), config.hc_eps, config.sinkhorn_iters);
  const at::Tensor y = weighted_sum(pre, flat.view({-1, n, width}));
  const std::vector<int64_t> leading = leading_sizes(streams);
  return {store_activation(with_leading(y, leading, {width}), numerics),
          with_leading(post, leading, {n}),
          with_leading(comb, leading, {n, n})};
}

at::Tensor hc_post(const at::Tensor& y,
                   const at::Tensor& streams,
                   const at::Tensor& post,
                   const at::Tensor& comb,
                   const Numerics& numerics) {
  const int64_t n = streams.size(-2);
  const int64_t width = streams.size(-1);
  BALEEN_CHECK(
      y.size(-1) == width && post.size(-1) == n && comb.size(-1) == n && comb.size(-2) == n,
      "{} streams of {}, sub-layer output of {}, {} post weights",
      n,
      width,
      y.size(-1),
      post.size(-1));
  const at::Tensor kept =
      at::bmm(comb.reshape({-1, n, n}).transpose(1, 2), streams.reshape({-1, n, width}));
  const at::Tensor out = at::addcmul(kept, post.reshape({-1, n, 1}), y.reshape({-1, 1, width}));
  return store_activation(out.view(streams.sizes()), numerics);
}

at::Tensor hc_head(const at::Tensor& streams,
                   const HcWeights& weights,
                   const HcConfig& config,
                   const Numerics& numerics) {
  const int64_t n = streams.size(-2);
  const int64_t width = streams.size(-1);
  check_weights(streams, weights, n, 1);
  const at::Tensor flat = streams.reshape({-1, n * width});
  const at::Tensor pre =
      mixed(flat, weights, weights.scale, config.rms_norm_eps).sigmoid() + config.hc_eps;
  const at::Tensor h = weighted_sum(pre, flat.view({-1, n, width}));
  return store_activation(with_leading(h, leading_sizes(streams), {width}), numerics);
}

}  // namespace baleen::ops
