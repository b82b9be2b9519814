#pragma once
// The attention kernel for few queries (plan.few): what it covers, what it costs, and its launcher.
// Called by plan_sparse_attention() and launch_sparse_attention() alone; the latter has checked the
// parameters.
//
//   const FewCut cut = best_few_cut(shape, num_multiprocessors);
//   if (cut.us < best_of_the_others) { plan.few = true; plan.cluster = cut.cluster; ... }

#include "kernels/sparse_attention/sparse_attention.h"

namespace baleen::kernels {

inline constexpr int32_t kFewRows = 48;  // slots of a block, at most

struct FewCut {
  int32_t heads_per_block = 0;  // 0: not covered
  int32_t cluster = 0;
  double us = 0;  // estimate
};

/// The fastest cut by what was measured on an H200.
FewCut best_few_cut(const SparseAttentionShape& shape, int32_t num_multiprocessors);

bool supports_few_plan(const SparseAttentionPlan& plan);

void launch_few_attention(const SparseAttentionParams& params, device::StreamHandle stream);

}  // namespace baleen::kernels
