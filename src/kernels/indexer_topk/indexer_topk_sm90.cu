// Top-k on Hopper: a cluster of blocks holds the row in registers, after one read of it.
// 1. Thread maxima give a score that at least k entries reach, usually by no more than 2k.
// 2. Entries that reach it go to the first block's shared memory; if too many do (ties, runs), the
// cut
//    is first refined digit by digit over the cluster, down to entry numbers.
// 3. The first block chooses among them exactly and writes in ascending order.
#include <algorithm>

#include "base/check.h"
#include "device/launch.h"
#include "kernels/indexer_topk/final_choice.cuh"
#include "kernels/indexer_topk/indexer_topk.h"
#include "kernels/ptx/pdl.cuh"

namespace baleen::kernels {
namespace {

constexpr int64_t kMaxEntries = 262'144;  // entries that the bit map of one block covers
constexpr int64_t kEntriesPerVector = 4 * kTopkThreads;
constexpr uint32_t kListPlaces = 16'384;  // candidates over all blocks

struct TopkTask {
  IndexerTopkParams params;
  uint32_t capacity;  // candidates per block
  uint32_t words;     // of the bit map, a multiple of 8
  uint32_t page_shift;
};

uint32_t log2_of(uint32_t power) {
  uint32_t shift = 0;
  while ((1U << shift) < power) {
    ++shift;
  }
  return shift;
}

/// Chooses one row with all blocks of the cluster.
template <int kVectors>
__device__ void choose_row(const TopkTask& task,
                           uint32_t row_number,
                           const TopkArena& arena,
                           RowShared& shared) {
  const IndexerTopkParams& params = task.params;
  const uint32_t rank = ptx::cluster_rank();
  const uint32_t blocks = ptx::cluster_size();
  const auto k = static_cast<uint32_t>(params.k);
  const int64_t list_begin = row_number * params.list_stride;
  const RowOutput output{
      params.indices == nullptr ? nullptr : params.indices + list_begin,
      params.slots == nullptr ? nullptr : params.slots + list_begin,
      params.slots == nullptr
          ? nullptr
          : params.page_table + row_number / static_cast<uint32_t>(params.rows_per_request) *
                                    params.page_table_stride,
      task.page_shift};
  const auto length = static_cast<uint32_t>(max(0, params.lengths[row_number]));
  const auto list_end = static_cast<uint32_t>(params.list_stride);
  if (length <= k) {
    if (rank == 0) {
      for (uint32_t i = threadIdx.x; i < length; i += kTopkThreads) {
        output.write(i, i);
      }
      for (uint32_t i = length + threadIdx.x; i < list_end; i += kTopkThreads) {
        output.write_none(i);
      }
    }
    ptx::cluster_wait();
    return;
  }
  RegisterRow<kVectors> row(params.scores + row_number * params.score_stride, length, rank, blocks);
  ptx::cluster_wait();  // all blocks run, so their shared memory may be written
  uint32_t top;
  Cut cut{0, kNoLimit};
  cut.key = row.lower_bound(k, shared, &top);
  uint64_t* const region = ptx::peer_pointer(arena.list, 0) + rank * task.capacity;
  const auto push_and_tell = [&] {
    row.push(cut, region, task.capacity, shared);
    __syncthreads();
    if (threadIdx.x < blocks) {
      *ptx::peer_pointer(&shared.board.kept[rank], threadIdx.x) = shared.kept;
    }
    ptx::cluster_sync();
  };
  push_and_tell();
  if (max_of(shared.board.kept, blocks) > task.capacity) {
    cut = row.refine(cut.key, top, k, task.capacity, shared, arena.histogram);
    if (threadIdx.x == 0) {
      shared.kept = 0;
    }
    ptx::cluster_sync();  // also: no peer still reads this block's histogram
    arena.histogram[threadIdx.x] = 0;
    arena.histogram[threadIdx.x + kTopkThreads] = 0;
    push_and_tell();
  }
  if (rank != 0) {
    return;  // nothing touches this block's shared memory any more
  }
  const auto for_each = [&](auto visit) {
    for_each_candidate(arena.list, task.capacity, shared.board.kept, blocks, visit);
  };
  mark_winners(k, cut.key, top, arena, shared, for_each);
  count_marks((length + 31) / 32, arena, shared);
  write_marked(arena, output, for_each);
  for (uint32_t i = k + threadIdx.x; i < list_end; i += kTopkThreads) {
    output.write_none(i);
  }
}

template <int kVectors>
__global__ __launch_bounds__(kTopkThreads,
                             1) void topk_kernel(const __grid_constant__ TopkTask task) {
  extern __shared__ __align__(16) uint8_t dynamic[];
  __shared__ RowShared shared;
  const uint32_t blocks = ptx::cluster_size();
  TopkArena arena;
  arena.list = reinterpret_cast<uint64_t*>(dynamic);
  arena.small_list = arena.list + blocks * task.capacity;
  arena.marks = reinterpret_cast<uint32_t*>(arena.small_list + kSmallList);
  arena.histogram = arena.marks + task.words;
  arena.marks_before = reinterpret_cast<uint16_t*>(arena.histogram + kBins);
  ptx::cluster_arrive();
  ptx::release_successor();
  for (uint32_t i = threadIdx.x; i < (task.words + kBins) / 4; i += kTopkThreads) {
    reinterpret_cast<uint4*>(arena.marks)[i] = make_uint4(0, 0, 0, 0);
  }
  if (threadIdx.x == 0) {
    shared.kept = 0;
    shared.small = 0;
  }
  ptx::wait_for_predecessor();
  // The first barrier after this, in lower_bound, orders the zeros above before their use.
  choose_row<kVectors>(task, blockIdx.x / blocks, arena, shared);
}

template <int kVectors>
void launch_with(const IndexerTopkParams& params, uint32_t blocks, cudaStream_t stream) {
  TopkTask task{
      params, kListPlaces / blocks, 0, log2_of(static_cast<uint32_t>(params.page_entries))};
  const auto needed = static_cast<uint32_t>(params.k) + 64;
  if (blocks == 1) {
    task.capacity = static_cast<uint32_t>(std::min<int64_t>(
        kListPlaces, std::max<int64_t>(needed, (params.max_entries + 1) / 2 * 2)));
  }
  task.capacity = std::max(task.capacity, (needed + 1) / 2 * 2);
  task.words = static_cast<uint32_t>((params.max_entries + 255) / 256 * 8);
  const std::size_t bytes =
      8ULL * (blocks * task.capacity + kSmallList) + 6ULL * task.words + 4ULL * kBins;
  device::launch(stream,
                 {.grid = dim3(static_cast<uint32_t>(params.num_rows) * blocks),
                  .block = dim3(kTopkThreads),
                  .cluster = blocks,
                  .shared_bytes = bytes,
                  .programmatic = params.programmatic},
                 topk_kernel<kVectors>,
                 task);
}

}  // namespace

bool indexer_topk_sm90_supports(int64_t max_entries, int32_t k) {
  return max_entries <= kMaxEntries && k >= 1 && k <= 2048;
}

IndexerTopkPlan plan_indexer_topk(int64_t max_entries, int32_t num_rows, int32_t k) {
  IndexerTopkPlan plan;
  // A block's thread maxima bound at most 1,024 places, best when far fewer are asked of it.
  const auto too_small = [&](int64_t blocks) {
    return blocks * 8 * kEntriesPerVector < max_entries || (max_entries > 8192 && blocks * 512 < k);
  };
  while (plan.cluster < 8 && too_small(plan.cluster)) {
    plan.cluster *= 2;
  }
  const int64_t wide = k <= 1024 ? 16 : 8;
  while (plan.cluster < wide && int64_t{plan.cluster} * 2 * num_rows <= 128 &&
         plan.cluster * kEntriesPerVector < max_entries) {
    plan.cluster *= 2;
  }
  while (plan.vectors < 8 && plan.cluster * plan.vectors * kEntriesPerVector < max_entries) {
    plan.vectors *= 2;
  }
  return plan;
}

void launch_indexer_topk_sm90(const IndexerTopkParams& params,
                              const IndexerTopkPlan& plan,
                              cudaStream_t stream) {
  BALEEN_CHECK(indexer_topk_sm90_supports(params.max_entries, params.k),
               "max_entries={} k={}",
               params.max_entries,
               params.k);
  BALEEN_CHECK(params.score_stride % 4 == 0 && params.score_stride >= params.max_entries &&
                   params.list_stride >= params.k && params.rows_per_request >= 1,
               "score_stride={} max_entries={} list_stride={} rows_per_request={}",
               params.score_stride,
               params.max_entries,
               params.list_stride,
               params.rows_per_request);
  BALEEN_CHECK((params.page_entries & (params.page_entries - 1)) == 0 &&
                   (params.slots == nullptr || params.page_table != nullptr),
               "page_entries={}",
               params.page_entries);
  BALEEN_CHECK(plan.cluster * plan.vectors * kEntriesPerVector >= params.max_entries &&
                   (plan.cluster < 16 || params.k <= 1024),
               "cluster={} vectors={} max_entries={} k={}",
               plan.cluster,
               plan.vectors,
               params.max_entries,
               params.k);
  if (params.num_rows == 0) {
    return;
  }
  const auto blocks = static_cast<uint32_t>(plan.cluster);
  switch (plan.vectors) {
    case 1:
      return launch_with<1>(params, blocks, stream);
    case 2:
      return launch_with<2>(params, blocks, stream);
    case 4:
      return launch_with<4>(params, blocks, stream);
    case 8:
      return launch_with<8>(params, blocks, stream);
    default:
      BALEEN_CHECK(false, "vectors={}", plan.vectors);
  }
}

void launch_indexer_topk(const IndexerTopkParams& params, cudaStream_t stream) {
  if (indexer_topk_sm90_supports(params.max_entries, params.k)) {
    launch_indexer_topk_sm90(
        params, plan_indexer_topk(params.max_entries, params.num_rows, params.k), stream);
  } else {
    launch_indexer_topk_portable(params, stream);
  }
}

}  // namespace baleen::kernels
