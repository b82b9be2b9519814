#pragma once
// Manifold-constrained hyper-connections: n residual streams are mixed into one input per sub-layer
// and its output is spread over them again. All mixing arithmetic is in the compute dtype; only the
// three outputs of width H are stored as bf16 where the setting says so.
//
//   HcMix mix = hc_pre(streams, weights, hc_config, numerics);
//   at::Tensor y = sub_layer(rms_norm(mix.y, ...));
//   streams = hc_post(y, streams, mix.post, mix.comb, numerics);

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "ops/numerics_config.h"

namespace baleen::ops {

struct HcConfig {
  double rms_norm_eps = 1e-6;
  double hc_eps = 1e-6;
  int64_t sinkhorn_iters = 20;  // column steps; row steps are one fewer after the softmax
};

struct HcWeights {
  at::Tensor fn;     // [(2 + n) * n, n * H]; for hc_head [n, n * H]; stream-major columns
  at::Tensor base;   // [(2 + n) * n]; for hc_head [n]
  at::Tensor scale;  // [3]; for hc_head [1]
};

struct HcMix {
  at::Tensor y;     // [..., H]
  at::Tensor post;  // [..., n]
  at::Tensor comb;  // [..., n, n]; first index is the stream that is read
};

/// streams [..., n, H].
HcMix hc_pre(const at::Tensor& streams,
             const HcWeights& weights,
             const HcConfig& config,
             const Numerics& numerics);

/// out_k = post_k * y + sum_j comb[j, k] * streams_j -> [..., n, H].
at::Tensor hc_post(const at::Tensor& y,
                   const at::Tensor& streams,
                   const at::Tensor& post,
                   const at::Tensor& comb,
                   const Numerics& numerics);

/// Collapse of the streams before the last norm: [..., n, H] -> [..., H].
at::Tensor hc_head(const at::Tensor& streams,
                   const HcWeights& weights,
                   const HcConfig& config,
                   const Numerics& numerics);

/// Row softmax plus eps, then `iters` column and `iters` - 1 row normalisations, rows and columns
/// in turn. logits [..., n, n]; closed-form backward.
at::Tensor sinkhorn(const at::Tensor& logits, double hc_eps, int64_t iters);

}  // namespace baleen::ops
