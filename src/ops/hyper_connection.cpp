#include "ops/hyper_connection.h"

#include <vector>

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include "base/check.h"
#include "kernels/hyper_connection/hyper_connection_cpu.h"
#include "ops/invariant.h"
#include "ops/needs_gradient.h"
#include "ops/rounding.h"

namespace baleen::ops {
namespace {

constexpr int64_t kTokenGrain = 16;  // tokens per task on the CPU

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

std::vector<int64_t> with_trailing(std::vector<int64_t> leading, at::IntArrayRef trailing) {
  leading.insert(leading.end(), trailing.begin(), trailing.end());
  return leading;
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

bool on_cpu_without_gradient(const at::Tensor& streams, const HcWeights& weights) {
  return streams.device().is_cpu() &&
         !needs_gradient(streams, weights.fn, weights.base, weights.scale);
}

/// Contiguous copies where needed, and the pointers into them.
struct CpuMix {
  at::Tensor streams, fn, base, scale;

  CpuMix(const at::Tensor& x, const HcWeights& weights)
      : streams(x.contiguous()),
        fn(weights.fn.contiguous()),
        base(weights.base.contiguous()),
        scale(weights.scale.contiguous()) {}

  template <class T>
  kernels::HcMixArgs<T> args(const HcConfig& config, const Numerics& numerics) const {
    const int64_t n = streams.size(-2);
    const int64_t width = streams.size(-1);
    return {.streams = streams.const_data_ptr<T>(),
            .fn = fn.const_data_ptr<T>(),
            .base = base.const_data_ptr<T>(),
            .scale = scale.const_data_ptr<T>(),
            .tokens = streams.numel() / (n * width),
            .num_streams = n,
            .width = width,
            .rms_norm_eps = config.rms_norm_eps,
            .hc_eps = config.hc_eps,
            .sinkhorn_iters = config.sinkhorn_iters,
            .rounded = numerics.round_activations};
  }
};

HcMix hc_pre_on_cpu(const at::Tensor& streams,
                    const HcWeights& weights,
                    const HcConfig& config,
                    const Numerics& numerics) {
  const int64_t n = streams.size(-2);
  const std::vector<int64_t> leading = leading_sizes(streams);
  const CpuMix mix(streams, weights);
  HcMix out{at::empty(with_trailing(leading, {streams.size(-1)}), streams.options()),
            at::empty(with_trailing(leading, {n}), streams.options()),
            at::empty(with_trailing(leading, {n, n}), streams.options())};
  AT_DISPATCH_FLOATING_TYPES(streams.scalar_type(), "hc_pre", [&] {
    const auto all = mix.args<scalar_t>(config, numerics);
    at::parallel_for(0, all.tokens, kTokenGrain, [&](int64_t begin, int64_t end) {
      auto some = all;
      some.tokens = end - begin;
      some.streams += begin * n * all.width;
      some.y = out.y.mutable_data_ptr<scalar_t>() + begin * all.width;
      some.post = out.post.mutable_data_ptr<scalar_t>() + begin * n;
      some.comb = out.comb.mutable_data_ptr<scalar_t>() + begin * n * n;
      kernels::hc_pre_cpu(some);
    });
  });
  return out;
}

at::Tensor hc_head_on_cpu(const at::Tensor& streams,
                          const HcWeights& weights,
                          const HcConfig& config,
                          const Numerics& numerics) {
  const CpuMix mix(streams, weights);
  at::Tensor h =
      at::empty(with_trailing(leading_sizes(streams), {streams.size(-1)}), streams.options());
  AT_DISPATCH_FLOATING_TYPES(streams.scalar_type(), "hc_head", [&] {
    auto args = mix.args<scalar_t>(config, numerics);
    args.y = h.mutable_data_ptr<scalar_t>();
    kernels::hc_head_cpu(args);
  });
  return h;
}

at::Tensor hc_post_on_cpu(const at::Tensor& y,
                          const at::Tensor& streams,
                          const at::Tensor& post,
                          const at::Tensor& comb,
                          const Numerics& numerics) {
  const at::Tensor sub = y.contiguous();
  const at::Tensor x = streams.contiguous();
  const at::Tensor weights = post.contiguous();
  const at::Tensor matrix = comb.contiguous();
  at::Tensor out = at::empty_like(x);
  const int64_t n = x.size(-2);
  const int64_t width = x.size(-1);
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "hc_post", [&] {
    at::parallel_for(0, x.numel() / (n * width), kTokenGrain, [&](int64_t begin, int64_t end) {
      kernels::hc_post_cpu<scalar_t>({.y = sub.const_data_ptr<scalar_t>() + begin * width,
                                      .streams = x.const_data_ptr<scalar_t>() + begin * n * width,
                                      .post = weights.const_data_ptr<scalar_t>() + begin * n,
                                      .comb = matrix.const_data_ptr<scalar_t>() + begin * n * n,
                                      .out = out.mutable_data_ptr<scalar_t>() + begin * n * width,
                                      .tokens = end - begin,
                                      .num_streams = n,
                                      .width = width,
                                      .rounded = numerics.round_activations});
    });
  });
  return out;
}

HcMix hc_pre_by_tensors(const at::Tensor& streams,
                        const HcWeights& weights,
                        const HcConfig& config,
                        const Numerics& numerics) {
  const int64_t n = streams.size(-2);
  const int64_t width = streams.size(-1);
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
  return {store_activation(y.reshape(with_trailing(leading, {width})), numerics),
          post.reshape(with_trailing(leading, {n})),
          comb.reshape(with_trailing(leading, {n, n}))};
}

/// The kernel's values with the gradients of the tensor code.
HcMix hc_pre_fixed(const at::Tensor& streams,
                   const HcWeights& weights,
                   const HcConfig& config,
                   const Numerics& numerics) {
  BALEEN_CHECK(streams.device().is_cpu(), "the fixed order of summation is for the CPU");
  HcMix fixed;
  {
    const at::NoGradGuard no_grad;
    fixed = hc_pre_on_cpu(streams, weights, config, numerics);
  }
  if (!needs_gradient(streams, weights.fn, weights.base, weights.scale)) {
    return fixed;
  }
  const HcMix fast = hc_pre_by_tensors(streams, weights, config, numerics);
  return {straight_through(fast.y, fixed.y),
          straight_through(fast.post, fixed.post),
          straight_through(fast.comb, fixed.comb)};
}

}  // namespace

HcMix hc_pre(const at::Tensor& streams,
             const HcWeights& weights,
             const HcConfig& config,
             const Numerics& numerics) {
  const int64_t n = streams.size(-2);
  check_weights(streams, weights, (2 + n) * n, 3);
  if (numerics.invariant()) {
    return hc_pre_fixed(streams, weights, config, numerics);
  }
  return on_cpu_without_gradient(streams, weights)
             ? hc_pre_on_cpu(streams, weights, config, numerics)
             : hc_pre_by_tensors(streams, weights, config, numerics);
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
  const bool gradient = needs_gradient(y, streams, post, comb);
  const auto by_tensors = [&] {
    const at::Tensor kept =
        at::bmm(comb.reshape({-1, n, n}).transpose(1, 2), streams.reshape({-1, n, width}));
    const at::Tensor out = at::addcmul(kept, post.reshape({-1, n, 1}), y.reshape({-1, 1, width}));
    return store_activation(out.view(streams.sizes()), numerics);
  };
  const auto by_kernel = [&] { return hc_post_on_cpu(y, streams, post, comb, numerics); };
  if (numerics.invariant()) {
    return invariant_value(streams, gradient, by_tensors, by_kernel);
  }
  return streams.device().is_cpu() && !gradient ? by_kernel() : by_tensors();
}

at::Tensor hc_head(const at::Tensor& streams,
                   const HcWeights& weights,
                   const HcConfig& config,
                   const Numerics& numerics) {
  const int64_t n = streams.size(-2);
  const int64_t width = streams.size(-1);
  check_weights(streams, weights, n, 1);
  const auto by_tensors = [&] {
    const at::Tensor flat = streams.reshape({-1, n * width});
    const at::Tensor pre =
        mixed(flat, weights, weights.scale, config.rms_norm_eps).sigmoid() + config.hc_eps;
    const at::Tensor h = weighted_sum(pre, flat.view({-1, n, width}));
    return store_activation(h.reshape(with_trailing(leading_sizes(streams), {width})), numerics);
  };
  const auto by_kernel = [&] { return hc_head_on_cpu(streams, weights, config, numerics); };
  if (numerics.invariant()) {
    return invariant_value(streams,
                           needs_gradient(streams, weights.fn, weights.base, weights.scale),
                           by_tensors,
                           by_kernel);
  }
  return on_cpu_without_gradient(streams, weights) ? by_kernel() : by_tensors();
}

}  // namespace baleen::ops
