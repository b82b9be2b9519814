#pragma once
// The grouped projection as tasks of linears, and how its sums are cut: one answer for the forms
// for few and for many tokens, whose bits agree only as long as their leaves do. Host code, plain
// data, any thread.
//
//   launch_linear_tasks(grouped_linear(params), kGroupedRowTiles, stream);
//   const LinearTaskPlan cut = grouped_cut(params);   // leaves = 0: no cut fits

#include "kernels/grouped_projection/grouped_projection.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/linear_plan.h"

namespace baleen::kernels {

inline constexpr int32_t kGroupedRowTiles = 2;  // 128 outputs, one scale of a quantised result

LinearParams grouped_linear(const GroupedProjectionParams& params);

/// The cut of the sums, which depends on neither the number of tokens nor `tuning` (a cluster
/// forced by it in a benchmark cuts differently); all zero where the shapes fit no launch.
LinearTaskPlan grouped_cut(const GroupedProjectionParams& params);

}  // namespace baleen::kernels
