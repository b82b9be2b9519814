// Top-k on Hopper: a cluster of blocks holds the row in registers, after one read of it.
// 1. Thread maxima give a score that at least k entries reach, usually by no more than 2k.
// 2. Entries above it go to the first block's shared memory. Too few: the score itself is the k-th
//    and its lowest entries join. Too many (runs, crowds): a better bound, or one digit by digit.
// 3. The first block chooses among them exactly and writes in ascending order.
// Many long rows are streamed through shared memory by pairs of blocks instead, so that all rows
// are under way at once: the score of step 1 comes from a sample of the row.
#include <algorithm>

#include "base/check.h"
#include "device/launch.h"
#include "kernels/indexer_topk/final_choice.cuh"
#include "kernels/indexer_topk/indexer_topk.h"
#include "kernels/indexer_topk/lone_block.h"
#include "kernels/indexer_topk/row_stream.cuh"
#include "kernels/ptx/expecting_arrive.cuh"
#include "kernels/ptx/pdl.cuh"
#include "kernels/ptx/remote_arrive.cuh"

namespace baleen::kernels {
namespace {

constexpr int64_t kMaxEntries = 262'144;  // entries that the bit map of one block covers
constexpr int64_t kEntriesPerVector = 4 * kTopkThreads;
constexpr uint32_t kListPlaces = 8192;        // candidates over all blocks of a cluster
constexpr uint32_t kRingChunks = 3;           // of a streamed row in shared memory
constexpr uint32_t kLeastGuessed = 64;        // entries; of fewer a sample says too little
constexpr uint32_t kLoneListPlaces = 16'384;  // of a block without peers
constexpr int64_t kEarlyEntries = 1 << 20;    // of all rows: so few cost nothing to load in vain
constexpr int32_t kStreamedCluster = 2;
constexpr int32_t kStreamedVectors = 8;             // of the sample
constexpr int64_t kLeastStreamedEntries = 131'072;  // measured: below, waves of rows are quicker
constexpr int32_t kLeastStreamedRows = 48;

struct TopkTask {
  IndexerTopkParams params;
  uint32_t capacity;  // candidates per block
  uint32_t words;     // of the bit map, a multiple of 8
  uint32_t page_shift;
  uint32_t ring_chunks;  // of a streamed row
  bool load_early;       // reads up to max_entries before it knows the length
};

uint32_t log2_of(uint32_t power) {
  uint32_t shift = 0;
  while ((1U << shift) < power) {
    ++shift;
  }
  return shift;
}

__device__ __forceinline__ TopkArena arena_of(const TopkTask& task, uint32_t blocks) {
  extern __shared__ __align__(16) uint8_t dynamic[];
  TopkArena arena;
  arena.list = reinterpret_cast<uint64_t*>(dynamic);
  arena.small_list = arena.list + blocks * task.capacity;
  arena.histogram = reinterpret_cast<uint32_t*>(arena.small_list + kSmallList);
  arena.marks = arena.histogram + kBins;
  arena.marks_before = reinterpret_cast<uint16_t*>(arena.marks + task.words);
  return arena;
}

/// Chunks of a streamed row, behind the arena.
__device__ __forceinline__ uint8_t* ring_of(const TopkTask& task, const TopkArena& arena) {
  auto* const end = reinterpret_cast<uint8_t*>(arena.marks_before + task.words);
  return end + (128 - ptx::shared_address(end) % 128) % 128;
}

/// Tells all blocks how many entries this one has pushed. Contains a cluster barrier.
__device__ __forceinline__ void tell_kept(uint32_t rank, uint32_t blocks, RowShared& shared) {
  __syncthreads();
  if (threadIdx.x < blocks) {
    *ptx::peer_pointer(&shared.board.kept[rank], threadIdx.x) = shared.kept;
  }
  ptx::cluster_sync();
}

/// The same for candidates that were sent to the first block by stores that count there: behind it
/// every block knows all counts, and the first one has all candidates.
__device__ __forceinline__ void tell_sent(uint32_t rank,
                                          uint32_t blocks,
                                          uint32_t capacity,
                                          RowShared& shared) {
  __syncthreads();
  if (threadIdx.x < blocks) {
    push_word(&shared.board.kept[rank],
              threadIdx.x,
              shared.kept,
              ptx::peer_address(&shared.messages.counts, threadIdx.x));
  }
  if (threadIdx.x == 0) {
    ptx::arrive_at_peer_expecting(ptx::peer_address(&shared.messages.list, 0),
                                  8 * min(shared.kept, capacity));
  }
  ptx::barrier_wait_cluster(&shared.messages.counts, 0);
  if (rank == 0) {
    ptx::barrier_wait_cluster(&shared.messages.list, 0);
  }
}

/// How many entries of a streamed row's sample are to reach the bound, which then is a guess: half
/// as many again as the share of k that falls to the sample. Where the sample is the row, k.
__device__ __forceinline__ uint32_t guessed_share(uint32_t k, uint32_t length) {
  constexpr uint32_t kSample = kStreamedCluster * kStreamedVectors * 4 * kTopkThreads;
  const uint32_t spread = (length + kSample - 1) / kSample;
  return k < kLeastGuessed || spread <= 1 ? k : (3 * k + 2 * spread - 1) / (2 * spread);
}

/// After a first push that kept too few or too many: corrects the cut until the candidates hold the
/// k best and fit, and returns the floor they were taken with. A function of its own that loads the
/// row again, so that the usual way has all registers for itself.
template <int kVectors, bool kStreams>
__device__ __noinline__ uint32_t push_again(const TopkTask* task,
                                            uint32_t row_number,
                                            uint32_t floor,
                                            uint32_t top,
                                            bool guessed,
                                            RowShared* shared_place) {
  const IndexerTopkParams& params = task->params;
  RowShared& shared = *shared_place;
  const uint32_t rank = ptx::cluster_rank();
  const uint32_t blocks = ptx::cluster_size();
  const TopkArena arena = arena_of(*task, blocks);
  const auto k = static_cast<uint32_t>(params.k);
  RegisterRow<kVectors, kStreams> row(params.scores + row_number * params.score_stride,
                                      static_cast<uint32_t>(params.lengths[row_number]),
                                      rank,
                                      blocks);
  uint64_t* const region = ptx::peer_pointer(arena.list, 0) + rank * task->capacity;
  bool lopsided_tried = false;
  while (true) {
    const uint32_t kept = sum_of(shared.board.kept, blocks);
    if (guessed && kept < k) {  // the guess was too high
      uint32_t sample_top;
      floor = row.template lower_bound<false>(k, shared, &sample_top);
      guessed = false;
      if (threadIdx.x == 0) {
        shared.kept = 0;
      }
      __syncthreads();
      row.push_all_above(floor, region, task->capacity, shared);
    } else if (max_of(shared.board.kept, blocks) > task->capacity) {
      guessed = false;
      floor = lopsided_tried ? row.refine(floor, top, k, task->capacity, shared, arena.histogram)
                             : max(floor, row.lopsided_bound(k, shared));
      lopsided_tried = true;
      if (threadIdx.x == 0) {
        shared.kept = 0;
      }
      ptx::cluster_sync();  // no peer still reads the histogram or the counts
      row.push_all_above(floor, region, task->capacity, shared);
    } else if (kept <
               k) {  // the k-th best has the key `floor`: some of its lowest entries are wanted
      const uint32_t limit = row.tie_limit(floor, k - kept, shared, arena.histogram);
      row.push_ties(floor, limit, region, task->capacity, shared);
    } else {
      break;
    }
    tell_kept(rank, blocks, shared);
  }
  arena.histogram[threadIdx.x] = 0;  // no peer reads it: the last cluster barrier is behind
  arena.histogram[threadIdx.x + kTopkThreads] = 0;
  __syncthreads();
  return floor;
}

/// How blocks of a cluster tell each other about the usual row. A block alone has no peers, and
/// stores that count at one are illegal in a launch without clusters.
enum class Telling { kMessages, kBarriers };

/// Chooses one row with all blocks of the cluster.
template <int kVectors, bool kStreams, Telling kTelling>
__device__ void choose_row(const TopkTask& task,
                           uint32_t row_number,
                           const TopkArena& arena,
                           RowShared& shared,
                           RingBarriers& barriers) {
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
  // Of few rows all that may be valid is loaded before the length is known; its load comes first.
  const int32_t stated_length = params.lengths[row_number];
  uint32_t limit = static_cast<uint32_t>(params.max_entries);
  if (!task.load_early) {
    limit = static_cast<uint32_t>(max(0, stated_length));
  }
  const float* const scores = params.scores + row_number * params.score_stride;
  const RowStream stream(ring_of(task, arena), task.ring_chunks, barriers, scores, limit);
  if (kStreams && limit > k) {
    stream.start();
  }
  RegisterRow<kVectors, kStreams> row(scores, limit, rank, blocks);
  const auto length = static_cast<uint32_t>(max(0, stated_length));
  const auto list_end = static_cast<uint32_t>(params.list_stride);
  ptx::cluster_wait();  // all blocks run, so their shared memory may be written
  if (length <= k) {
    if (rank == 0) {
      for (uint32_t i = threadIdx.x; i < length; i += kTopkThreads) {
        output.write(i, i);
      }
      for (uint32_t i = length + threadIdx.x; i < list_end; i += kTopkThreads) {
        output.write_none(i);
      }
    }
    return;
  }
  if (task.load_early) {
    row.clip(length);
  }
  uint32_t top;
  constexpr bool kByMessages = kTelling == Telling::kMessages;
  uint32_t floor =
      row.template lower_bound<kByMessages>(kStreams ? guessed_share(k, length) : k, shared, &top);
  uint64_t* const list = ptx::peer_pointer(arena.list, 0) + rank * task.capacity;
  if constexpr (kStreams) {
    stream.push_above(floor, list, task.capacity, shared);
    __syncthreads();
    if (threadIdx.x < blocks) {
      *ptx::peer_pointer(&shared.board.top[rank], threadIdx.x) = shared.top;
    }
    tell_kept(rank, blocks, shared);
    top = max_of(shared.board.top, blocks);
  } else if constexpr (!kByMessages) {
    row.push_above(floor, list, task.capacity, shared);
    tell_kept(rank, blocks, shared);
  } else {
    const uint32_t region = ptx::peer_address(arena.list + rank * task.capacity, 0);
    const uint32_t landed = ptx::peer_address(&shared.messages.list, 0);
    row.push_above(floor, task.capacity, shared, [&](uint32_t place, uint64_t pair) {
      ptx::store_async_8(region + place * 8, pair, landed);
    });
    tell_sent(rank, blocks, task.capacity, shared);
  }
  const bool fits = max_of(shared.board.kept, blocks) <= task.capacity;
  if (!fits || sum_of(shared.board.kept, blocks) < k) [[unlikely]] {
    floor = push_again<kVectors, kStreams>(&task, row_number, floor, top, kStreams, &shared);
  }
  if (rank != 0) {
    return;  // nothing touches this block's shared memory any more
  }
  const Candidates candidates(arena.list, task.capacity, shared.board.kept, blocks);
  choose_and_write(k, (length + 31) / 32, floor, top, arena, shared, candidates, output);
  for (uint32_t i = k + threadIdx.x; i < list_end; i += kTopkThreads) {
    output.write_none(i);
  }
}

template <int kVectors, bool kStreams, Telling kTelling>
__global__ __launch_bounds__(kTopkThreads,
                             1) void topk_kernel(const __grid_constant__ TopkTask task) {
  __shared__ RowShared shared;
  __shared__ RingBarriers barriers;
  const uint32_t blocks = ptx::cluster_size();
  const TopkArena arena = arena_of(task, blocks);
  if (threadIdx.x == 0) {
    shared.messages.init(blocks);
    shared.kept = 0;
    shared.small = 0;
    shared.top = 0;
  }
  ptx::cluster_arrive_relaxed();  // what the peers need of this block are its barriers
  ptx::release_successor();
  if (ptx::cluster_rank() == 0) {
    uint4* const zeros = reinterpret_cast<uint4*>(arena.histogram);
    for (uint32_t i = threadIdx.x; i < (task.words + kBins) / 4; i += kTopkThreads) {
      zeros[i] = make_uint4(0, 0, 0, 0);
    }
  }
  ptx::wait_for_predecessor();
  // The first barrier after this, in lower_bound, orders the zeros above before their use.
  choose_row<kVectors, kStreams, kTelling>(task, blockIdx.x / blocks, arena, shared, barriers);
}

template <int kVectors, bool kStreams = false>
void launch_with(const IndexerTopkParams& params, uint32_t blocks, cudaStream_t stream) {
  const auto needed = static_cast<uint32_t>(params.k) + 64;
  const auto row_places = static_cast<uint32_t>((params.max_entries + 1) / 2 * 2);
  const uint32_t places =
      blocks == 1 ? std::min(kLoneListPlaces, row_places) : kListPlaces / blocks;
  const TopkTask task{
      .params = params,
      .capacity = std::max(places, (needed + 1) / 2 * 2),
      .words = static_cast<uint32_t>((params.max_entries + 255) / 256 * 8),
      .page_shift = log2_of(static_cast<uint32_t>(params.page_entries)),
      .ring_chunks = kStreams ? kRingChunks : 0,
      .load_early = !kStreams && params.num_rows * params.max_entries <= kEarlyEntries,
  };
  const std::size_t bytes = 8ULL * (blocks * task.capacity + kSmallList) + 6ULL * task.words +
                            4ULL * kBins + (kStreams ? 128 : 0) +
                            std::size_t{kChunkBytes} * task.ring_chunks;
  const auto launch = [&](auto kernel) {
    device::launch(stream,
                   {.grid = dim3(static_cast<uint32_t>(params.num_rows) * blocks),
                    .block = dim3(kTopkThreads),
                    .cluster = blocks,
                    .shared_bytes = bytes,
                    .programmatic = params.programmatic},
                   kernel,
                   task);
  };
  if constexpr (kStreams) {
    launch(topk_kernel<kVectors, true, Telling::kBarriers>);
  } else if (blocks > 1) {
    launch(topk_kernel<kVectors, false, Telling::kMessages>);
  } else if constexpr (kVectors >= 4) {
    launch(topk_kernel<kVectors, false, Telling::kBarriers>);
  } else {  // shorter rows of one block are lone_block.h's
    BALEEN_CHECK(false, "max_entries={} vectors={}", params.max_entries, kVectors);
  }
}

}  // namespace

bool indexer_topk_sm90_supports(int64_t max_entries, int32_t k) {
  return max_entries <= kMaxEntries && k >= 1 && k <= 2048;
}

IndexerTopkPlan plan_indexer_topk(int64_t max_entries, int32_t num_rows, int32_t k) {
  IndexerTopkPlan plan;
  if (max_entries >= kLeastStreamedEntries && num_rows >= kLeastStreamedRows && k <= 1024) {
    return {.cluster = kStreamedCluster, .vectors = kStreamedVectors, .streamed = true};
  }
  // A block's thread maxima bound at most 1,024 places, best when far fewer are asked of it.
  const auto too_small = [&](int64_t blocks) {
    return blocks * 8 * kEntriesPerVector < max_entries ||
           (max_entries > kLoneEntries && blocks * 512 < k);
  };
  while (plan.cluster < 8 && too_small(plan.cluster)) {
    plan.cluster *= 2;
  }
  const int64_t wide = k <= 1024 ? 16 : 8;
  while (max_entries > kLoneEntries && plan.cluster < wide &&
         int64_t{plan.cluster} * 2 * num_rows <= 128 &&
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
  BALEEN_CHECK(
      (plan.streamed ? plan.cluster == kStreamedCluster && params.k <= 1024
                     : plan.cluster * plan.vectors * kEntriesPerVector >= params.max_entries) &&
          (plan.cluster < 16 || params.k <= 1024),
      "cluster={} vectors={} max_entries={} k={}",
      plan.cluster,
      plan.vectors,
      params.max_entries,
      params.k);
  if (params.num_rows == 0) {
    return;
  }
  if (plan.cluster == 1 && params.max_entries <= kLoneEntries) {
    return launch_indexer_topk_lone(params, stream);
  }
  const auto blocks = static_cast<uint32_t>(plan.cluster);
  if (plan.streamed) {
    return launch_with<kStreamedVectors, true>(params, blocks, stream);
  }
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
