#pragma once
// Collectives on tensors, with gradients. Each is one autograd function whose backward is the
// adjoint call, so that the gradient of a sum over all ranks of their losses comes out, each rank's
// share on the rank itself. Rows are those of dim 0.
//
// On the CPU a rank's backward runs in the thread that called it, node by node in exactly the
// reverse of the order of creation: a collective inside may wait, and ranks that ran the same calls
// forward run their adjoints in the same order. Two things break that and are the caller's duty:
// every rank must run a collective with the same need for gradients, and its result must reach the
// rank's loss (attached() makes it so where a rank has no use for its part).
//
//   at::Tensor y = sum_over_ranks(partial, mesh.group(Axis::kTp));

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "comm/group.h"

namespace baleen::mesh {

/// The sum on every rank, where every rank's loss uses it alike and that loss counts once: backward
/// hands the gradient through.
at::Tensor sum_over_ranks(const at::Tensor& x, comm::Group& group);

/// `x` itself, equal on all ranks, used on each for another part of a sum: backward adds the
/// gradients of all ranks, so that they are equal again.
at::Tensor shared_by_ranks(const at::Tensor& x, comm::Group& group);

/// Rows of all ranks, equally many each, in order of rank. Backward: reduce-scatter.
at::Tensor all_gather_rows(const at::Tensor& x, comm::Group& group);

/// x: size() blocks of equally many rows; this rank's block of the sum. Backward: all-gather.
at::Tensor reduce_scatter_rows(const at::Tensor& x, comm::Group& group);

/// `x` of rank `root`. Backward: the root gets the sum of all gradients, others nothing.
at::Tensor broadcast_from(const at::Tensor& x, int root, comm::Group& group);

/// x holds `sent[r]` rows for every rank r, one behind another; the result `received[r]` rows of
/// every rank r. Any dtype. Backward: the same with the counts exchanged.
at::Tensor exchange_rows(const at::Tensor& x,
                         const std::vector<int64_t>& sent,
                         const std::vector<int64_t>& received,
                         comm::Group& group);

/// As exchange_rows with `own` rows from every rank, added over the ranks in the order of the tree.
/// Backward: every rank gets every rank's gradient.
at::Tensor exchange_and_sum(const at::Tensor& x,
                            const std::vector<int64_t>& sent,
                            int64_t own,
                            comm::Group& group);

/// `x`; backward also reaches `others`, with no gradient, so that the collectives behind them run.
at::Tensor attached(const at::Tensor& x, const std::vector<at::Tensor>& others);

// Without gradients.

/// In place; contiguous float, double or int64.
void sum_in_place(at::Tensor& x, comm::Group& group);
void maximum_in_place(at::Tensor& x, comm::Group& group);
void broadcast_in_place(at::Tensor& x, int root, comm::Group& group);
/// One number, added in double in the order of the tree.
double sum_of_numbers(double value, comm::Group& group);

}  // namespace baleen::mesh
