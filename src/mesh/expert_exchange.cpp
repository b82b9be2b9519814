#include "mesh/expert_exchange.h"

#include <tuple>
#include <vector>

#include <ATen/ops/argsort.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/sort.h>

#include "base/check.h"
#include "mesh/collectives.h"

namespace baleen::mesh {
namespace {

/// How many rows every rank sends here, from how many this rank sends to each.
std::vector<int64_t> exchanged_counts(const std::vector<int64_t>& sent, comm::Group& group) {
  const std::vector<int64_t> bytes(sent.size(), sizeof(int64_t));
  std::vector<int64_t> received(sent.size());
  group.all_to_all(sent.data(), bytes, received.data(), bytes);
  return received;
}

}  // namespace

at::Tensor experts_over_ranks(const at::Tensor& x,
                              const at::Tensor& experts,
                              const at::Tensor& weights,
                              const ops::ExpertWeights& shard,
                              int64_t num_experts,
                              ops::LinearFormat format,
                              std::optional<double> limit,
                              const ops::Numerics& numerics,
                              comm::Group& group) {
  if (group.size() == 1) {
    return ops::routed_experts(x, experts, weights, shard, format, limit, numerics);
  }
  const int64_t per_rank = shard.w1.size(0);
  BALEEN_CHECK(per_rank * group.size() == num_experts && x.size(0) > 0,
               "{} experts on each of {} ranks, {} in all; {} rows",
               per_rank,
               group.size(),
               num_experts,
               x.size(0));
  const int64_t slots = experts.size(1);
  const int64_t width = x.size(1);
  // Slots of a row in ascending expert id, then pairs by rank; both sorts keep the order of equals.
  const auto [ids, slot_order] = at::sort(experts, std::optional<bool>(true), 1);
  const at::Tensor pair_ids = ids.reshape({-1});
  const at::Tensor pair_weights = weights.gather(1, slot_order).reshape({-1, 1});
  const at::Tensor pair_ranks = pair_ids.floor_divide(per_rank);
  const at::Tensor order = at::argsort(pair_ranks, /*stable=*/true, 0);
  const at::Tensor counts = at::bincount(pair_ranks, {}, group.size()).to(at::kCPU);
  const std::vector<int64_t> sent(counts.const_data_ptr<int64_t>(),
                                  counts.const_data_ptr<int64_t>() + group.size());
  const std::vector<int64_t> received = exchanged_counts(sent, group);

  const at::Tensor rows = at::cat(
      {x.index_select(0, order.floor_divide(slots)), pair_weights.index_select(0, order)}, 1);
  const at::Tensor arrived = exchange_rows(rows, sent, received, group);
  const at::Tensor arrived_ids =
      exchange_rows(pair_ids.index_select(0, order), sent, received, group);
  const at::Tensor arrived_x = arrived.narrow(1, 0, width);
  const at::Tensor y =
      arrived.size(0) == 0
          ? arrived_x  // keeps the path of the gradients
          : ops::routed_experts(arrived_x,
                                (arrived_ids - group.rank() * per_rank).unsqueeze(1),
                                arrived.narrow(1, width, 1),
                                shard,
                                format,
                                limit,
                                numerics);
  const at::Tensor by_pair = exchange_rows(y, received, sent, group)
                                 .index_select(0, at::argsort(order, /*stable=*/true, 0))
                                 .view({x.size(0), slots, width});
  at::Tensor sum = by_pair.select(1, 0);
  for (int64_t slot = 1; slot < slots; ++slot) {
    sum = sum + by_pair.select(1, slot);
  }
  return sum;
}

}  // namespace baleen::mesh
