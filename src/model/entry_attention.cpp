#include "model/entry_attention.h"

#include <cmath>
#include <limits>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/einsum.h>
#include <ATen/ops/softmax.h>

namespace baleen::model {

at::Tensor entry_attention(const at::Tensor& query,
                           const ops::AttentionRows& rows,
                           const at::Tensor& sink,
                           int64_t first_position) {
  const at::NoGradGuard no_grad;
  const int64_t num_queries = query.size(1);
  const int64_t num_raw = rows.raw.size(1);
  const int64_t num_entries = rows.entries.size(1);
  const double lowest = -std::numeric_limits<double>::infinity();
  const auto integers = query.options().dtype(at::kLong);

  const at::Tensor position =
      (at::arange(num_queries, integers) + first_position).unsqueeze(1);  // [T, 1]
  const at::Tensor raw_position =
      at::arange(num_raw, integers) + (first_position + num_queries - num_raw);
  const at::Tensor raw_hidden =
      raw_position.gt(position).logical_or(raw_position.le(position - rows.window));
  const at::Tensor entry_hidden =
      ((at::arange(num_entries, integers) + 1) * rows.ratio).gt(position + 1);

  const double scale = 1.0 / std::sqrt(static_cast<double>(query.size(-1)));
  const at::Tensor raw_logits =
      (at::einsum("bthd,bsd->bhts", {query, rows.raw}) * scale).masked_fill(raw_hidden, lowest);
  const at::Tensor entry_logits = (at::einsum("bthd,bsd->bhts", {query, rows.entries}) * scale)
                                      .masked_fill(entry_hidden, lowest);
  const at::Tensor sink_logits =
      sink.view({1, -1, 1, 1}).expand({query.size(0), sink.size(0), num_queries, 1});
  const at::Tensor weights = at::softmax(at::cat({entry_logits, raw_logits, sink_logits}, -1), -1);
  return weights.narrow(-1, 0, num_entries).sum(1);
}

}  // namespace baleen::model
