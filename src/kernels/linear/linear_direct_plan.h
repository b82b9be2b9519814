#pragma once
// When a launch of linears takes the direct form (linear_direct.cuh), and how it is cut: one FP8
// task of at most 16 tokens and 8.4 MB of weights that does not run ahead. The bits of a result do
// not depend on the form. Host code, plain data, any thread.
//
//   const DirectPlan direct = plan_direct(params, plan_linear(params, 1));
//   if (direct.warp_groups > 0) ...

#include <cstdint>

#include "kernels/linear/linear_plan.h"

namespace baleen::kernels {

/// Tiles of 8 KiB of weights in the registers of a warp group.
inline constexpr int32_t kDirectSets = 2;
inline constexpr int32_t kMostDirectGroups = 4;  // warp groups of a block of threads

struct DirectPlan {
  int32_t warp_groups = 0;  // per block of threads; 0: not this form
  int32_t token_tile = 0;   // 2, 4, 8 or 16
  int32_t split = 0;        // 1, 2, 4 or 8: a block of threads owns 64 / split rows
  int32_t blocks = 0;       // of threads
};

/// `plan` is that of the ring form, which decides the leaves.
DirectPlan plan_direct(const LinearParams& params, const LinearPlan& plan);

}  // namespace baleen::kernels
