// The attention kernel for few queries: small blocks without roles, rows straight from global
// memory into registers, up to sixteen blocks of a cluster for a query and head group. All its code
// runs once: few instructions count more than few operations.

#include <algorithm>

#include "base/check.h"
#include "device/launch.h"
#include "kernels/ptx/pdl.cuh"
#include "kernels/ptx/remote_arrive.cuh"
#include "kernels/sparse_attention/attention_few.h"
#include "kernels/sparse_attention/few_join.cuh"
#include "kernels/sparse_attention/few_products.cuh"
#include "kernels/sparse_attention/few_rows.cuh"

namespace baleen::kernels {
namespace {

/// kHalves: eights of rows that a block has at most.
template <int kHeads, int kHalves, int kCluster>
__global__ void __launch_bounds__(kFewThreads, 2)
    few_attention_kernel(const __grid_constant__ FewParams params) {
  extern __shared__ __align__(16) uint8_t few_memory[];
  using Shape = FewShape<kHalves>;
  using Shared = FewShared<kHeads, kHalves, kCluster>;
  auto& shared = *reinterpret_cast<Shared*>(few_memory);
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const bool is_rope = warp == kFewWarps - 1;
  if (thread == 0) {
    ptx::barrier_init(&shared.totals_received, 1);
    ptx::barrier_init(&shared.received, 1);
    ptx::fence_barrier_init();
    ptx::barrier_expect_bytes(&shared.totals_received, sizeof(shared.totals));
    ptx::barrier_expect_bytes(&shared.received, kPushedBytes<Shared>);
  }
  __syncwarp();
  ptx::cluster_arrive_relaxed();  // the barriers are published by the fence at their init
  const auto query = static_cast<int32_t>(blockIdx.z);
  const int64_t first_row =
      static_cast<int64_t>(query) * params.heads + static_cast<int64_t>(blockIdx.y) * kHeads;
  FewPair at = few_pair<kHeads, kCluster>(thread);
  const auto sink_of = [&](int head) {
    return params.sink != nullptr ? ptx::load_static_one(params.sink + blockIdx.y * kHeads + head)
                                  : __int_as_float(0xFF800000);  // -inf
  };
  float sink = sink_of(at.head);
  ptx::wait_for_predecessor();
  ptx::release_successor();

  const FewSlots slots = few_slots<kCluster>(params, query, static_cast<int32_t>(blockIdx.x));
  // The last warps find rows: those of codes have more to do later.
  const int row = thread - (kFewThreads - 32 * Shape::kPasses);
  const bool finds = row >= 0 && row < Shape::kRows;
  const int32_t entry = finds ? few_entry(params, slots, slots.begin + row) : -1;
  ask_query<kHeads>(params, first_row, shared.query[warp]);
  if (finds) {
    shared.places[row] = few_place(params, slots, slots.begin + row, entry);
  }
  __syncthreads();
  uint32_t words[kHalves][8];
  FewScales<kHalves> scales;
  scales.read(shared.places);
  load_rows<kHalves>(shared.places, words);
  uint32_t q[kHeads / 8][8];
  take_query<kHeads>(shared.query[warp], is_rope, q);
  arrange_query<kHeads>(q, is_rope);
  expand_rows<kHalves>(words);
  const FewOutputScale output_scale = apply_scales<kHalves>(shared, scales, words, is_rope);
  score_few_rows<kHeads, kHalves>(shared.scores[warp], shared.score_scales[warp], words, q);
  __syncthreads();
  FewState<kHeads> state;
  weigh_few_rows<kHeads, kHalves>(shared, scales, params.scale, state);
  __syncthreads();
  ptx::cluster_wait();  // every peer's barriers are ready
  push_totals<kCluster>(shared, state.maximum, state.sum);
  FewOutput<kHeads> output = {};
  accumulate_few_rows<kHeads, kHalves>(shared, words, output);
  push_output<kCluster>(shared, output, output_scale);

  constexpr int kPairs = kFewUnits / kCluster * (kHeads / 8) * 64;
#pragma unroll 1
  for (int pair = thread; pair < kPairs; pair += kFewThreads) {
    if (pair >= kFewThreads) {
      at = few_pair<kHeads, kCluster>(pair);
      sink = sink_of(at.head);
    }
    float2 turn = make_float2(1, 0);
    const bool turns = params.positions != nullptr && at.dim >= kKvNopeDims;
    if (turns) {
      turn =
          rotation(params.positions[query], __ldg(params.frequencies + (at.dim - kKvNopeDims) / 2));
    }
    ptx::barrier_wait_cluster_or_leave(&shared.totals_received, 0);
    FewFactors<kCluster> factors;
    factors.read(shared, at.head, sink);
    ptx::barrier_wait_cluster_or_leave(&shared.received, 0);
    float2 o = join_pair<kHeads, kCluster>(shared, pair, at.head, factors);
    if (turns) {
      o.x = to_bf16(o.x);
      o.y = to_bf16(o.y);
      rotate_pair(o.x, o.y, make_float2(turn.x, -turn.y));
    }
    *reinterpret_cast<uint32_t*>(params.o + (first_row + at.head) * kKvDims + at.dim) =
        ptx::pack_bf16(o.x, o.y);
    if (at.dim == 0) {
      report_head(params, first_row + at.head, sink, factors.maximum, factors.sum);
    }
  }
}

int32_t log2_of(int32_t power) {
  int32_t shift = 0;
  while ((1 << shift) < power) {
    ++shift;
  }
  return shift;
}

FewSource few_source(const SparseAttentionSource& source) {
  if (source.rows == nullptr && source.pages == nullptr) {
    return {};
  }
  const bool is_list = source.rows != nullptr;
  const int32_t per_page = source.pool.rows_per_page;
  const int32_t shift = log2_of(per_page);
  const int64_t units = source.pool.page_bytes / 16;
  BALEEN_CHECK(units <= UINT32_MAX, "page_bytes={}", source.pool.page_bytes);
  const uint64_t whole = uint64_t{1} << (31 + shift);
  const auto divisor = static_cast<uint64_t>(per_page);
  return {.table = is_list ? source.rows : source.pages,
          .lengths = source.lengths,
          .base = reinterpret_cast<uint64_t>(source.pool.base),
          .stride = source.stride,
          .rows_per_page = static_cast<uint32_t>(per_page),
          .page_units = static_cast<uint32_t>(units),
          .page_magic = static_cast<uint32_t>((whole + divisor - 1) / divisor),
          .page_shift = static_cast<uint32_t>(shift),
          .capacity = source.capacity,
          .entry_shift = is_list ? 0 : log2_of(source.entries_per_page)};
}

template <int kHeads, int kHalves, int kCluster>
void launch_few(const SparseAttentionParams& params, device::StreamHandle stream) {
  const FewParams few{.heads = params.heads,
                      .first = few_source(params.first),
                      .second = few_source(params.second),
                      .q = params.q,
                      .sink = params.sink,
                      .scale = params.scale * ptx::kLog2E,
                      .o = params.o,
                      .lse = params.lse,
                      .lse_with_sink = params.lse_with_sink,
                      .positions = params.positions,
                      .frequencies = params.frequencies};
  device::launch(stream,
                 {.grid = dim3(kCluster,
                               static_cast<unsigned>(params.heads / kHeads),
                               static_cast<unsigned>(params.num_queries)),
                  .block = dim3(kFewThreads),
                  .cluster = kCluster,
                  .shared_bytes = sizeof(FewShared<kHeads, kHalves, kCluster>),
                  .programmatic = params.programmatic},
                 few_attention_kernel<kHeads, kHalves, kCluster>,
                 few);
}

int32_t capacity_of(const SparseAttentionSource& source) {
  return source.rows != nullptr || source.pages != nullptr ? source.capacity : 0;
}

template <int kHeads, int kCluster>
void launch_few_cluster(const SparseAttentionParams& params, device::StreamHandle stream) {
  const int32_t most = (capacity_of(params.first) + capacity_of(params.second) + kCluster - 1) /
                       kCluster;  // rows of a block
  BALEEN_CHECK(most <= kFewRows, "rows of a block {}", most);
  if (most <= 40) {
    launch_few<kHeads, 5, kCluster>(params, stream);
  } else {
    launch_few<kHeads, 6, kCluster>(params, stream);
  }
}

template <int kHeads>
void launch_few_heads(const SparseAttentionParams& params, device::StreamHandle stream) {
  switch (params.plan.cluster) {
    case 4:
      return launch_few_cluster<kHeads, 4>(params, stream);
    case 8:
      return launch_few_cluster<kHeads, 8>(params, stream);
    default:
      return launch_few_cluster<kHeads, 16>(params, stream);
  }
}

/// Measured with as many clusters as have a multiprocessor for each block, and with up to twice as
/// many, where the last ones share theirs.
struct FewCost {
  int32_t heads;
  int32_t cluster;
  int32_t alone;   // clusters of the card that have multiprocessors of their own
  int32_t shared;  // clusters that fit the card
  double us_alone;
  double us_shared;
};
/// Fewer may be a part of a card that holds no cluster of sixteen.
constexpr int32_t kSixteensNeed = 64;  // multiprocessors
constexpr FewCost kFewCosts[] = {{8, 4, 30, 62, 4.6, 5.8},
                                 {8, 8, 15, 30, 4.2, 5.2},
                                 {8, 16, 7, 14, 4.4, 5.6},
                                 {16, 4, 30, 62, 6.2, 8.0},
                                 {16, 8, 15, 30, 5.5, 7.2},
                                 {16, 16, 7, 14, 5.4, 7.4}};

}  // namespace

FewCut best_few_cut(const SparseAttentionShape& shape, int32_t num_multiprocessors) {
  const int64_t slots = int64_t{shape.first_capacity} + shape.second_capacity;
  FewCut best;
  for (const FewCost& cost : kFewCosts) {
    if (shape.heads % cost.heads != 0 || slots > int64_t{kFewRows} * cost.cluster ||
        (cost.cluster > 8 && num_multiprocessors < kSixteensNeed)) {
      continue;
    }
    const int64_t clusters =
        static_cast<int64_t>(std::max(shape.num_queries, 1)) * (shape.heads / cost.heads);
    const bool alone = clusters * 132 <= int64_t{cost.alone} * num_multiprocessors;
    if (!alone && clusters * 132 > int64_t{cost.shared} * num_multiprocessors) {
      continue;
    }
    const double us = alone ? cost.us_alone : cost.us_shared;
    if (best.heads_per_block == 0 || us < best.us) {
      best = {cost.heads, cost.cluster, us};
    }
  }
  return best;
}

bool supports_few_plan(const SparseAttentionPlan& plan) {
  return plan.mode == AttentionMode::kFast &&
         (plan.heads_per_block == 8 || plan.heads_per_block == 16) &&
         (plan.cluster == 4 || plan.cluster == 8 || plan.cluster == 16) && plan.clusters == 1;
}

void launch_few_attention(const SparseAttentionParams& params, device::StreamHandle stream) {
  if (params.plan.heads_per_block == 8) {
    launch_few_heads<8>(params, stream);
  } else {
    launch_few_heads<16>(params, stream);
  }
}

}  // namespace baleen::kernels
