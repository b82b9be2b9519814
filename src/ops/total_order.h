#pragma once
// Scores as integers whose order is total: larger score, larger key; -0 equals +0; NaN ranks below
// -inf. A stable descending sort of the keys therefore breaks ties towards the lower index.
//
//   auto [keys, order] = at::sort(total_order_keys(scores), /*stable=*/true, -1,
//   /*descending=*/true);

#include <ATen/core/Tensor.h>

namespace baleen::ops {

/// float [...] -> int32, double [...] -> int64. The lowest integer is used for no score at all, so
/// it is free to mark what may not be chosen.
at::Tensor total_order_keys(const at::Tensor& scores);

}  // namespace baleen::ops
