#pragma once
// Token embedding and its n identical copies that start the residual streams.
//
//   at::Tensor streams = ops::embed_streams(weight, ids, config.hc_mult);  // [B, T, n, H]

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace baleen::ops {

/// weight [V, H], ids int64 [...] -> [..., H]. Ids must lie in [0, V).
at::Tensor embed(const at::Tensor& weight, const at::Tensor& ids);

/// [..., H] as `num_streams` copies [..., n, H]; a view without own storage per stream.
at::Tensor broadcast_streams(const at::Tensor& x, int64_t num_streams);

/// Both: ids [...] -> [..., n, H].
at::Tensor embed_streams(const at::Tensor& weight, const at::Tensor& ids, int64_t num_streams);

}  // namespace baleen::ops
