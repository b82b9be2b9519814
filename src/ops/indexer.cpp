#include "ops/indexer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include "base/check.h"
#include "kernels/indexer_scores/indexer_scores_cpu.h"
#include "ops/invariant.h"
#include "ops/needs_gradient.h"
#include "ops/rounding.h"
#include "ops/total_order.h"

namespace baleen::ops {
namespace {

at::Tensor scores_of_chunk(const at::Tensor& q,
                           const at::Tensor& keys,
                           const at::Tensor& weights,
                           bool rounded) {
  const int64_t batch = q.size(0);
  const int64_t tokens = q.size(1);
  const int64_t heads = q.size(2);
  const int64_t entries = keys.size(1);
  at::Tensor dots = at::bmm(q.reshape({batch, tokens * heads, q.size(3)}), keys.transpose(1, 2))
                        .view({batch, tokens, heads, entries});
  if (!rounded) {
    return at::matmul(weights.unsqueeze(2), dots.relu()).squeeze(2);
  }
  const at::Tensor products = round_bf16(round_bf16(dots).relu() * weights.unsqueeze(-1));
  return round_bf16(products.sum(2));
}

/// In chunks of queries, so that the dots of all heads fit.
at::Tensor scores_by_tensors(const at::Tensor& q,
                             const at::Tensor& keys,
                             const at::Tensor& weights,
                             bool rounded) {
  const int64_t tokens = q.size(1);
  const int64_t row = std::max<int64_t>(1, q.size(0) * q.size(2) * keys.size(1));
  const int64_t budget = int64_t{1} << (q.is_cuda() ? 28 : 23);  // elements of one chunk of dots
  const int64_t chunk = std::max<int64_t>(1, budget / row);
  if (tokens <= chunk) {
    return scores_of_chunk(q, keys, weights, rounded);
  }
  std::vector<at::Tensor> parts;
  for (int64_t begin = 0; begin < tokens; begin += chunk) {
    const int64_t count = std::min(chunk, tokens - begin);
    parts.push_back(
        scores_of_chunk(q.narrow(1, begin, count), keys, weights.narrow(1, begin, count), rounded));
  }
  return at::cat(parts, 1);
}

/// Query by query through the kernel of fixed order.
at::Tensor scores_by_kernel(const at::Tensor& q,
                            const at::Tensor& keys,
                            const at::Tensor& weights,
                            bool rounded) {
  const at::Tensor queries = q.contiguous();
  const at::Tensor key_rows = keys.contiguous();
  const at::Tensor head_weights = weights.contiguous();
  const int64_t tokens = q.size(1);
  const int64_t heads = q.size(2);
  const int64_t width = q.size(3);
  const int64_t entries = keys.size(1);
  at::Tensor scores = at::empty({q.size(0), tokens, entries}, q.options());
  AT_DISPATCH_FLOATING_TYPES(q.scalar_type(), "indexer_scores", [&] {
    at::parallel_for(0, q.size(0) * tokens, 1, [&](int64_t begin, int64_t end) {
      std::vector<scalar_t> dots(static_cast<std::size_t>(heads * entries));
      for (int64_t query = begin; query < end; ++query) {
        kernels::indexer_scores_cpu<scalar_t>(
            {.q = queries.const_data_ptr<scalar_t>() + query * heads * width,
             .keys = key_rows.const_data_ptr<scalar_t>() + query / tokens * entries * width,
             .weights = head_weights.const_data_ptr<scalar_t>() + query * heads,
             .scores = scores.mutable_data_ptr<scalar_t>() + query * entries,
             .dots = dots.data(),
             .heads = heads,
             .width = width,
             .entries = entries,
             .rounded = rounded});
      }
    });
  });
  return scores;
}

/// Entries visible to each query, int64 [T].
at::Tensor visible_counts(const at::Tensor& like,
                          int64_t first_position,
                          int64_t tokens,
                          int64_t ratio) {
  return at::arange(
             first_position + 1, first_position + tokens + 1, like.options().dtype(at::kLong))
      .floor_divide(ratio);
}

at::Tensor entry_indices(const at::Tensor& like, int64_t count) {
  return at::arange(count, like.options().dtype(at::kLong));
}

void check_scores(const at::Tensor& scores, int64_t first_position, int64_t ratio, int64_t k) {
  BALEEN_CHECK(scores.dim() == 3 && first_position >= 0 && ratio > 0 && k >= 0,
               "dims={} first={} ratio={} k={}",
               scores.dim(),
               first_position,
               ratio,
               k);
}

}  // namespace

at::Tensor indexer_scores(const at::Tensor& q,
                          const at::Tensor& keys,
                          const at::Tensor& weights,
                          const Numerics& numerics) {
  BALEEN_CHECK(q.dim() == 4 && keys.dim() == 3 && weights.dim() == 3 &&
                   q.size(2) == weights.size(2) && q.size(3) == keys.size(2),
               "index queries of {} heads of {}, {} head weights, keys of {}",
               q.size(2),
               q.size(3),
               weights.size(2),
               keys.size(2));
  const bool rounded = numerics.index_score == IndexScore::kBf16;
  const auto by_tensors = [&] { return scores_by_tensors(q, keys, weights, rounded); };
  if (numerics.invariant()) {
    return invariant_value(q, needs_gradient(q, keys, weights), by_tensors, [&] {
      return scores_by_kernel(q, keys, weights, rounded);
    });
  }
  return by_tensors();
}

at::Tensor indexer_head_weights(const at::Tensor& projected,
                                int64_t index_head_dim,
                                const Numerics& numerics) {
  const double constant = 1.0 / std::sqrt(static_cast<double>(index_head_dim)) /
                          std::sqrt(static_cast<double>(projected.size(-1)));
  return store_activation(projected * constant, numerics);
}

at::Tensor indexer_pick_mask(const at::Tensor& scores,
                             int64_t first_position,
                             int64_t ratio,
                             int64_t k) {
  check_scores(scores, first_position, ratio, k);
  const int64_t tokens = scores.size(1);
  const int64_t entries = scores.size(2);
  const at::Tensor visible =
      entry_indices(scores, entries)
          .unsqueeze(0)
          .lt(visible_counts(scores, first_position, tokens, ratio).unsqueeze(1));
  if (std::min(visible_entries(first_position + tokens - 1, ratio), entries) <= k) {
    return visible.unsqueeze(0).expand({scores.size(0), tokens, entries});
  }
  const at::Tensor keys = total_order_keys(scores);
  const int64_t never = keys.scalar_type() == at::kLong ? std::numeric_limits<int64_t>::min()
                                                        : std::numeric_limits<int32_t>::min();
  const at::Tensor order = std::get<1>(at::sort(
      keys.masked_fill(visible.logical_not(), never), /*stable=*/true, -1, /*descending=*/true));
  const at::Tensor best =
      at::zeros_like(scores, scores.options().dtype(at::kBool).requires_grad(false))
          .scatter(-1, order.narrow(-1, 0, k), true);
  return best.logical_and(visible);
}

at::Tensor indexer_topk(const at::Tensor& scores,
                        int64_t first_position,
                        int64_t ratio,
                        int64_t k) {
  const at::Tensor mask = indexer_pick_mask(scores, first_position, ratio, k);
  const int64_t entries = scores.size(2);
  const at::Tensor listed = at::where(mask,
                                      entry_indices(scores, entries),
                                      at::full({}, entries, scores.options().dtype(at::kLong)));
  const at::Tensor first = std::get<0>(at::sort(listed, -1)).narrow(-1, 0, std::min(k, entries));
  return first.masked_fill(first.eq(entries), -1);
}

at::Tensor picks_to_mask(const at::Tensor& picks, int64_t num_entries) {
  // Column num_entries takes the picks that are none.
  std::vector<int64_t> sizes = picks.sizes().vec();
  sizes.back() = num_entries + 1;
  const at::Tensor target = at::where(picks.lt(0), at::full_like(picks, num_entries), picks);
  return at::zeros(sizes, picks.options().dtype(at::kBool))
      .scatter(-1, target, true)
      .narrow(-1, 0, num_entries);
}

}  // namespace baleen::ops
