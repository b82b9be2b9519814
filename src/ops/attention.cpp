#include "ops/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include "base/check.h"
#include "kernels/sparse_attention/sparse_attention_cpu.h"
#include "ops/indexer.h"
#include "ops/invariant.h"
#include "ops/needs_gradient.h"
#include "ops/rounding.h"

namespace baleen::ops {
namespace {

constexpr int64_t kFewQueries = 4;  // up to here listing rows beats building masks

struct Shape {
  int64_t batch, tokens, heads, width, entries;
  int64_t before;          // raw rows ahead of the first query
  int64_t first_position;  // of the first query
  int64_t window, ratio;
  bool rounded;             // e_s to bf16 in the numerator
  int64_t hidden_row = -1;  // raw row that no query sees

  int64_t chunk_tokens(bool on_gpu) const {
    // The logits of a chunk of c queries are [batch, c, heads, c + window + entries].
    const double budget =
        (on_gpu ? 0x1p28 : 0x1p22) / static_cast<double>(std::max<int64_t>(1, batch * heads));
    const auto other = static_cast<double>(window + entries);
    const auto fitting =
        static_cast<int64_t>((std::sqrt(other * other + 4.0 * budget) - other) / 2.0);
    return std::clamp<int64_t>(
        std::min(fitting, std::max<int64_t>(512, 2 * window)), 1, std::max<int64_t>(1, tokens));
  }
};

/// The rows that queries [begin, begin + count) can see, with the mask that says which sees which.
struct Chunk {
  int64_t begin, count;
  int64_t raw_begin, raw_count, entry_count;
  at::Tensor rows;    // [B, S, D]
  at::Tensor hidden;  // bool [1 or B, count, 1, S]
};

Chunk chunk_of(const Shape& shape,
               const at::Tensor& raw,
               const at::Tensor& entries,
               const at::Tensor& picks,
               int64_t begin,
               int64_t count) {
  Chunk chunk{begin, count, 0, 0, 0, {}, {}};
  chunk.raw_begin = std::max<int64_t>(0, shape.before + begin - shape.window + 1);
  chunk.raw_count = shape.before + begin + count - chunk.raw_begin;
  chunk.entry_count = std::min(
      shape.entries, visible_entries(shape.first_position + begin + count - 1, shape.ratio));
  const auto longs = raw.options().dtype(at::kLong).requires_grad(false);
  // Distances are in rows of `raw`: query t sits at row before + t.
  const at::Tensor query_row =
      at::arange(shape.before + begin, shape.before + begin + count, longs).unsqueeze(1);
  const at::Tensor raw_row =
      at::arange(chunk.raw_begin, chunk.raw_begin + chunk.raw_count, longs).unsqueeze(0);
  const at::Tensor age = query_row - raw_row;
  at::Tensor hidden = age.lt(0).logical_or_(age.ge(shape.window)).unsqueeze(0);
  if (shape.hidden_row >= 0) {
    hidden.logical_or_(raw_row.eq(shape.hidden_row));
  }
  chunk.rows = raw.narrow(1, chunk.raw_begin, chunk.raw_count);
  if (chunk.entry_count > 0) {
    const at::Tensor position =
        at::arange(shape.first_position + begin, shape.first_position + begin + count, longs);
    const at::Tensor visible = (position + 1).floor_divide(shape.ratio).unsqueeze(1);
    at::Tensor unseen = at::arange(chunk.entry_count, longs).unsqueeze(0).ge(visible).unsqueeze(0);
    if (picks.defined()) {
      unseen = unseen.logical_or(
          picks.narrow(1, begin, count).narrow(2, 0, chunk.entry_count).logical_not());
      hidden = hidden.expand({unseen.size(0), count, chunk.raw_count});
    }
    hidden = at::cat({hidden, unseen}, 2);
    chunk.rows = at::cat({chunk.rows, entries.narrow(1, 0, chunk.entry_count)}, 1);
  }
  chunk.hidden = hidden.unsqueeze(2);
  return chunk;
}

/// D^-1/2 <q, row> as [B, count, nh, S], -inf where hidden.
at::Tensor logits_of(const Shape& shape, const Chunk& chunk, const at::Tensor& queries) {
  return at::bmm(queries, chunk.rows.transpose(1, 2))
      .view({shape.batch, chunk.count, shape.heads, chunk.rows.size(1)})
      .mul_(1.0 / std::sqrt(static_cast<double>(shape.width)))
      .masked_fill_(chunk.hidden, -std::numeric_limits<double>::infinity());
}

at::Tensor numerator_weights(const Shape& shape, const at::Tensor& e) {
  return shape.rounded ? round_bf16(e) : e;
}

/// [B, count, nh, X] as [B, count * nh, X] for products with rows that all heads share.
at::Tensor flat_heads(const at::Tensor& x) {
  return x.reshape({x.size(0), x.size(1) * x.size(2), x.size(3)});
}

struct Output {
  at::Tensor o;    // [B, T, nh, D], not rounded
  at::Tensor lse;  // [B, T, nh], log of the softmax denominator with the sink
};

Output forward_pass(const Shape& shape,
                    const at::Tensor& q,
                    const at::Tensor& raw,
                    const at::Tensor& entries,
                    const at::Tensor& picks,
                    const at::Tensor& sink) {
  const int64_t step = shape.chunk_tokens(q.is_cuda());
  std::vector<at::Tensor> outputs;
  std::vector<at::Tensor> sums;
  for (int64_t begin = 0; begin < shape.tokens; begin += step) {
    const int64_t count = std::min(step, shape.tokens - begin);
    const Chunk chunk = chunk_of(shape, raw, entries, picks, begin, count);
    const at::Tensor z = logits_of(shape, chunk, flat_heads(q.narrow(1, begin, count)));
    const at::Tensor maximum = z.amax(-1, /*keepdim=*/true);
    const at::Tensor e = (z - maximum).exp_();
    const at::Tensor denominator = e.sum(-1) + (sink - maximum.squeeze(-1)).exp();
    const at::Tensor sum = at::bmm(flat_heads(numerator_weights(shape, e)), chunk.rows)
                               .view({shape.batch, count, shape.heads, shape.width});
    outputs.push_back(sum / denominator.unsqueeze(-1));
    sums.push_back(at::logaddexp(maximum.squeeze(-1) + e.sum(-1).log(), sink));
  }
  if (outputs.empty()) {
    return {at::empty_like(q), q.select(-1, 0)};
  }
  return {outputs.size() == 1 ? outputs[0] : at::cat(outputs, 1),
          sums.size() == 1 ? sums[0] : at::cat(sums, 1)};
}

/// On the CPU, query by query: the rows that a query sees are listed and given to the kernel.
at::Tensor forward_by_query(const Shape& shape,
                            const at::Tensor& q,
                            const at::Tensor& raw,
                            const at::Tensor& entries,
                            const at::Tensor& picks,
                            const at::Tensor& sink) {
  const at::Tensor queries = q.contiguous();
  const at::Tensor raw_rows = raw.contiguous();
  const at::Tensor entry_rows = shape.entries > 0 ? entries.contiguous() : at::Tensor();
  const at::Tensor mask = picks.defined() ? picks.contiguous() : at::Tensor();
  const at::Tensor sinks = sink.contiguous();
  at::Tensor o = at::empty_like(queries);
  AT_DISPATCH_FLOATING_TYPES(q.scalar_type(), "sparse_attention", [&] {
    at::parallel_for(0, shape.batch * shape.tokens, 1, [&](int64_t task_begin, int64_t task_end) {
      std::vector<const scalar_t*> rows;
      std::vector<scalar_t> weights(static_cast<std::size_t>(shape.window + shape.entries));
      for (int64_t query = task_begin; query < task_end; ++query) {
        const int64_t b = query / shape.tokens;
        const int64_t t = query % shape.tokens;
        rows.clear();
        const int64_t own = shape.before + t;
        const auto* first_raw =
            raw_rows.const_data_ptr<scalar_t>() + b * raw_rows.size(1) * shape.width;
        for (int64_t i = std::max<int64_t>(0, own - shape.window + 1); i <= own; ++i) {
          if (i != shape.hidden_row) {
            rows.push_back(first_raw + i * shape.width);
          }
        }
        const int64_t seen =
            std::min(shape.entries, visible_entries(shape.first_position + t, shape.ratio));
        for (int64_t w = 0; w < seen; ++w) {
          if (!mask.defined() || mask.const_data_ptr<bool>()[query * shape.entries + w]) {
            rows.push_back(entry_rows.const_data_ptr<scalar_t>() +
                           (b * shape.entries + w) * shape.width);
          }
        }
        kernels::sparse_attention_cpu<scalar_t>(
            {.q = queries.const_data_ptr<scalar_t>() + query * shape.heads * shape.width,
             .rows = rows.data(),
             .num_rows = static_cast<int64_t>(rows.size()),
             .sink = sinks.const_data_ptr<scalar_t>(),
             .o = o.mutable_data_ptr<scalar_t>() + query * shape.heads * shape.width,
             .weights = weights.data(),
             .heads = shape.heads,
             .width = shape.width,
             .rounded = shape.rounded});
      }
    });
  });
  return o;
}

/// Recomputes the probabilities chunk by chunk. Gradients of shared rows are summed over heads
/// inside a product and over chunks in ascending order.
class SparseAttention : public torch::autograd::Function<SparseAttention> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx,
                            const at::Tensor& q,
                            const at::Tensor& raw,
                            const std::optional<at::Tensor>& maybe_entries,
                            const std::optional<at::Tensor>& maybe_picks,
                            const at::Tensor& sink,
                            const Shape& shape) {
    const at::Tensor entries = maybe_entries.value_or(at::Tensor());
    const at::Tensor picks = maybe_picks.value_or(at::Tensor());
    const Output output = forward_pass(shape, q, raw, entries, picks, sink);
    ctx->save_for_backward({q, raw, entries, picks, sink, output.o, output.lse});
    ctx->saved_data["sizes"] = std::vector<int64_t>{shape.batch,
                                                    shape.tokens,
                                                    shape.heads,
                                                    shape.width,
                                                    shape.entries,
                                                    shape.before,
                                                    shape.first_position,
                                                    shape.window,
                                                    shape.ratio,
                                                    shape.rounded ? 1 : 0};
    return output.o;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto sizes = ctx->saved_data["sizes"].toIntVector();
    const Shape shape{sizes[0],
                      sizes[1],
                      sizes[2],
                      sizes[3],
                      sizes[4],
                      sizes[5],
                      sizes[6],
                      sizes[7],
                      sizes[8],
                      sizes[9] != 0};
    const at::Tensor &q = saved[0], &raw = saved[1], &entries = saved[2], &picks = saved[3];
    const at::Tensor &sink = saved[4], &o = saved[5], &lse = saved[6];
    const double alpha = 1.0 / std::sqrt(static_cast<double>(shape.width));
    const at::Tensor delta = (grads[0] * o).sum(-1);  // [B, T, nh]
    at::Tensor dsink = ((sink - lse).exp() * delta).sum(at::IntArrayRef{0, 1}).neg();
    at::Tensor draw = at::zeros_like(raw);
    at::Tensor dentries = entries.defined() ? at::zeros_like(entries) : at::Tensor();
    std::vector<at::Tensor> dq;
    const int64_t step = shape.chunk_tokens(q.is_cuda());
    for (int64_t begin = 0; begin < shape.tokens; begin += step) {
      const int64_t count = std::min(step, shape.tokens - begin);
      const Chunk chunk = chunk_of(shape, raw, entries, picks, begin, count);
      const at::Tensor queries = flat_heads(q.narrow(1, begin, count));
      const at::Tensor gradient = flat_heads(grads[0].narrow(1, begin, count));
      const at::Tensor z = logits_of(shape, chunk, queries);
      const at::Tensor log_sum = lse.narrow(1, begin, count).unsqueeze(-1);
      const at::Tensor p = (z - log_sum).exp();
      at::Tensor used = p;  // what multiplied the rows in the forward pass
      if (shape.rounded) {
        const at::Tensor maximum = z.amax(-1, /*keepdim=*/true);
        used = numerator_weights(shape, (z - maximum).exp()) * (maximum - log_sum).exp();
      }
      const at::Tensor dp = at::bmm(gradient, chunk.rows.transpose(1, 2)).view(p.sizes());
      const at::Tensor dz =
          flat_heads(p * (dp - delta.narrow(1, begin, count).unsqueeze(-1))).mul_(alpha);
      dq.push_back(at::bmm(dz, chunk.rows).view({shape.batch, count, shape.heads, shape.width}));
      const at::Tensor drows = at::baddbmm(
          at::bmm(dz.transpose(1, 2), queries), flat_heads(used).transpose(1, 2), gradient);
      draw.narrow(1, chunk.raw_begin, chunk.raw_count).add_(drows.narrow(1, 0, chunk.raw_count));
      if (chunk.entry_count > 0) {
        dentries.narrow(1, 0, chunk.entry_count)
            .add_(drows.narrow(1, chunk.raw_count, chunk.entry_count));
      }
    }
    const at::Tensor all_dq =
        dq.empty() ? at::zeros_like(q) : (dq.size() == 1 ? dq[0] : at::cat(dq, 1));
    return {all_dq, draw, dentries, at::Tensor(), dsink, at::Tensor()};
  }
};

Shape shape_of(const at::Tensor& q,
               const AttentionRows& rows,
               int64_t first_position,
               bool rounded) {
  BALEEN_CHECK(
      q.dim() == 4 && rows.raw.dim() == 3 && rows.raw.size(2) == q.size(3) && rows.window > 0,
      "q dims {}, raw dims {}, window {}",
      q.dim(),
      rows.raw.dim(),
      rows.window);
  Shape shape{q.size(0),
              q.size(1),
              q.size(2),
              q.size(3),
              0,
              rows.raw.size(1) - q.size(1),
              first_position,
              rows.window,
              rows.ratio,
              rounded,
              rows.hidden_row};
  BALEEN_CHECK(shape.before + rows.withheld >= std::min(first_position, rows.window - 1),
               "{} raw rows and {} withheld before position {}, window {}",
               shape.before,
               rows.withheld,
               first_position,
               rows.window);
  if (rows.entries.defined()) {
    shape.entries = rows.entries.size(1);
    BALEEN_CHECK(rows.entries.dim() == 3 && rows.entries.size(2) == shape.width &&
                     (rows.ratio > 0 || shape.entries == 0),
                 "entries of width {} for heads of {}, ratio {}",
                 rows.entries.size(-1),
                 shape.width,
                 rows.ratio);
  }
  if (rows.picks.defined()) {
    BALEEN_CHECK(rows.picks.dim() == 3 && rows.picks.size(1) == shape.tokens &&
                     rows.picks.size(2) == shape.entries,
                 "picks {} x {} for {} queries and {} entries",
                 rows.picks.size(-2),
                 rows.picks.size(-1),
                 shape.tokens,
                 shape.entries);
  }
  return shape;
}

/// A custom function takes an absent tensor as nullopt only.
std::optional<at::Tensor> if_defined(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional<at::Tensor>(tensor) : std::nullopt;
}

}  // namespace

at::Tensor sparse_attention(const at::Tensor& q,
                            const AttentionRows& rows,
                            const at::Tensor& sink,
                            int64_t first_position,
                            const Numerics& numerics) {
  const Shape shape = shape_of(q, rows, first_position, numerics.round_activations);
  const bool gradient = needs_gradient(q, rows.raw, rows.entries, sink);
  BALEEN_CHECK(!gradient || (rows.withheld == 0 && rows.hidden_row < 0),
               "withheld={} hidden_row={} under autograd",
               rows.withheld,
               rows.hidden_row);
  const auto by_query = [&] {
    return forward_by_query(shape, q, rows.raw, rows.entries, rows.picks, sink);
  };
  const auto by_tensors = [&] {
    const at::Tensor o =
        gradient ? SparseAttention::apply(
                       q, rows.raw, if_defined(rows.entries), if_defined(rows.picks), sink, shape)
                 : forward_pass(shape, q, rows.raw, rows.entries, rows.picks, sink).o;
    return store_activation(o, numerics);
  };
  if (numerics.invariant()) {
    return invariant_value(q, gradient, by_tensors, by_query);
  }
  return q.device().is_cpu() && shape.tokens <= kFewQueries && !gradient ? by_query()
                                                                         : by_tensors();
}

}  // namespace baleen::ops
