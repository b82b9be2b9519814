// Top-k of short rows by one block of 1,024 threads: a histogram of all scores over their spread,
// all pairs inside the threshold bin, and winners as bits of words of 32 entries, whose order gives
// places.
#include "device/launch.h"
#include "kernels/indexer_topk/final_choice.cuh"
#include "kernels/indexer_topk/lone_block.h"
#include "kernels/ptx/pdl.cuh"

namespace baleen::kernels {
namespace {

constexpr int64_t kEarlyEntries = 1 << 20;  // of all rows: so few cost nothing to load in vain

struct LoneTask {
  IndexerTopkParams params;
  uint32_t page_shift;
  bool load_early;  // reads up to max_entries before it knows the length
};

template <int kVectors>
struct LoneShared {
  alignas(16) uint32_t histogram[kBins];
  alignas(16) uint64_t small_list[kSmallList];
  uint32_t marks[kVectors * 128];
  uint32_t marks_before[kVectors * 128];
  RowShared row;
  uint32_t listed;
};

__device__ __forceinline__ uint32_t first_entry(int v) {
  return (static_cast<uint32_t>(v) * kTopkThreads + threadIdx.x) * 4;
}

/// This thread's scores. Reads nothing at or beyond `limit`; 0 stands there.
template <int kVectors>
__device__ __forceinline__ void load_scores(const float* scores,
                                            uint32_t limit,
                                            float (&values)[4 * kVectors]) {
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const uint32_t entry = first_entry(v);
    float4 four = make_float4(0, 0, 0, 0);
    if (entry + 4 <= limit) {
      four = __ldcg(reinterpret_cast<const float4*>(scores + entry));
    } else if (entry < limit) {
      four.x = __ldcg(scores + entry);
      four.y = entry + 1 < limit ? __ldcg(scores + entry + 1) : 0;
      four.z = entry + 2 < limit ? __ldcg(scores + entry + 2) : 0;
    }
    values[4 * v] = four.x;
    values[4 * v + 1] = four.y;
    values[4 * v + 2] = four.z;
    values[4 * v + 3] = four.w;
  }
}

/// Equal steps between the least and the greatest finite score; not decreasing in the score's
/// order. Infinite scores go to the ends, NaN to the lower one.
struct LinearBins {
  float low;
  float steps_per_unit;

  __device__ __forceinline__ uint32_t operator()(float score) const {
    return min(__float2uint_rz((score - low) * steps_per_unit), kBins - 1);  // NaN gives 0
  }
};

/// Narrows a crowded bin through a list of its pairs.
template <int kCount>
__device__ void narrow_listed(PairRange* range,
                              uint32_t bin,
                              const LinearBins& bin_of,
                              const float (&values)[kCount],
                              uint32_t length,
                              const TopkArena& arena,
                              RowShared& shared,
                              uint32_t* listed) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const uint32_t entry = first_entry(i / 4) + static_cast<uint32_t>(i % 4);
    if (entry < length && bin_of(values[i]) == bin) {
      arena.list[atomicAdd(listed, 1U)] = ranked(score_key(values[i]), entry);
    }
  }
  __syncthreads();
  const Candidates candidates(arena.list, 0, listed, 1);
  narrow_crowd(range, arena, shared, candidates);
}

template <int kVectors>
__global__ __launch_bounds__(kTopkThreads,
                             1) void lone_kernel(const __grid_constant__ LoneTask task) {
  extern __shared__ __align__(16) uint64_t list[];  // 4,096 * kVectors, for crowded bins
  __shared__ LoneShared<kVectors> shared;
  constexpr int kCount = 4 * kVectors;
  const IndexerTopkParams& params = task.params;
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t warp = threadIdx.x / 32;
  ptx::release_successor();
  shared.histogram[threadIdx.x] = 0;
  shared.histogram[threadIdx.x + kTopkThreads] = 0;
  if (threadIdx.x == 0) {
    shared.row.small = 0;
    shared.listed = 0;
  }
  ptx::wait_for_predecessor();
  const uint32_t row_number = blockIdx.x;
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
  float values[kCount];
  load_scores<kVectors>(params.scores + row_number * params.score_stride, limit, values);
  const auto length = static_cast<uint32_t>(max(0, stated_length));
  const auto list_end = static_cast<uint32_t>(params.list_stride);
  if (length <= k) {
    for (uint32_t i = threadIdx.x; i < length; i += kTopkThreads) {
      output.write(i, i);
    }
    for (uint32_t i = length + threadIdx.x; i < list_end; i += kTopkThreads) {
      output.write_none(i);
    }
    return;
  }
  uint32_t least = 0xFFFFFFFFU;
  uint32_t most = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const bool valid = first_entry(i / 4) + static_cast<uint32_t>(i % 4) < length;
    if (valid && fabsf(values[i]) < __int_as_float(0x7F800000)) {
      least = min(least, score_key(values[i]));
      most = max(most, score_key(values[i]));
    }
  }
  least = __reduce_min_sync(kFullMask, least);
  most = __reduce_max_sync(kFullMask, most);
  if (lane == 0) {
    shared.row.warp_low[warp] = least;
    shared.row.warp_high[warp] = most;
  }
  __syncthreads();
  const uint32_t low_key = min_of(shared.row.warp_low, kTopkWarps);
  const uint32_t high_key = max_of(shared.row.warp_high, kTopkWarps);
  LinearBins bin_of{0, 0};  // no finite score: all in one bin
  if (low_key < high_key) {
    bin_of.low = key_score(low_key);
    // 0 when the spread overflows: one bin again.
    bin_of.steps_per_unit = static_cast<float>(kBins - 1) / (key_score(high_key) - bin_of.low);
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (first_entry(i / 4) + static_cast<uint32_t>(i % 4) < length) {
      atomicAdd(&shared.histogram[bin_of(values[i])], 1U);
    }
  }
  const TopkArena arena{.list = list,
                        .small_list = shared.small_list,
                        .histogram = shared.histogram,
                        .marks = shared.marks,
                        .marks_before = nullptr};
  const BinSearch found = take_bin(k, arena, shared.row);
  PairRange range{0, ~0ULL, k - found.above};
  if (found.count > kSmallList) [[unlikely]] {
    narrow_listed(&range, found.bin, bin_of, values, length, arena, shared.row, &shared.listed);
  }
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    uint32_t word = 0;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const uint32_t entry = first_entry(v) + static_cast<uint32_t>(e);
      const uint32_t bin = bin_of(values[4 * v + e]);
      if (entry < length && bin >= found.bin) {
        const uint64_t pair = ranked(score_key(values[4 * v + e]), entry);
        if (bin > found.bin || pair > range.high) {
          word |= 1U << e;
        } else if (pair >= range.low) {
          shared.small_list[atomicAdd(&shared.row.small, 1U)] = pair;
        }
      }
    }
    word <<= 4 * (lane % 8);
#pragma unroll
    for (int step = 1; step <= 4; step *= 2) {
      word |= __shfl_xor_sync(kFullMask, word, step);
    }
    if (lane % 8 == 0) {
      shared.marks[first_entry(v) / 32] = word;
    }
  }
  __syncthreads();
  if (threadIdx.x < shared.row.small) {
    const uint64_t mine = shared.small_list[threadIdx.x];
    uint32_t better = 0;
    for (uint32_t i = 0; i < shared.row.small; ++i) {
      better += shared.small_list[i] > mine ? 1U : 0U;
    }
    if (better < range.need) {
      const uint32_t entry = ranked_entry(mine);
      atomicOr(&shared.marks[entry / 32], 1U << (entry % 32));
    }
  }
  __syncthreads();
  const bool has_word = threadIdx.x < kVectors * 128;
  const uint32_t in_word = has_word ? static_cast<uint32_t>(__popc(shared.marks[threadIdx.x])) : 0U;
  const uint32_t in_warp = warp_inclusive_sum(in_word);
  const uint32_t warp_sum = __shfl_sync(kFullMask, in_warp, 31);
  const uint32_t before =
      sum_of_warps_before(warp_sum, shared.row.bins.warp_sums) + in_warp - in_word;
  if (has_word) {
    shared.marks_before[threadIdx.x] = before;
  }
  __syncthreads();
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const uint32_t entry = first_entry(v);
    const uint32_t word = shared.marks[entry / 32];
    const uint32_t bits = word >> (4 * (lane % 8)) & 15;
    uint32_t place = shared.marks_before[entry / 32] +
                     static_cast<uint32_t>(__popc(word & ((1U << (4 * (lane % 8))) - 1)));
#pragma unroll
    for (uint32_t e = 0; e < 4; ++e) {
      if ((bits >> e & 1) != 0) {
        output.write(place++, entry + e);
      }
    }
  }
  for (uint32_t i = k + threadIdx.x; i < list_end; i += kTopkThreads) {
    output.write_none(i);
  }
}

template <int kVectors>
void launch_with(const LoneTask& task, cudaStream_t stream) {
  device::launch(stream,
                 {.grid = dim3(static_cast<uint32_t>(task.params.num_rows)),
                  .block = dim3(kTopkThreads),
                  .shared_bytes = sizeof(uint64_t) * 4 * kTopkThreads * kVectors,
                  .programmatic = task.params.programmatic},
                 lone_kernel<kVectors>,
                 task);
}

}  // namespace

void launch_indexer_topk_lone(const IndexerTopkParams& params, device::StreamHandle stream) {
  LoneTask task{.params = params,
                .page_shift = 0,
                .load_early = params.num_rows * params.max_entries <= kEarlyEntries};
  while ((1 << task.page_shift) < params.page_entries) {
    ++task.page_shift;
  }
  if (params.max_entries <= 4 * kTopkThreads) {
    launch_with<1>(task, stream);
  } else {
    launch_with<2>(task, stream);
  }
}

}  // namespace baleen::kernels
