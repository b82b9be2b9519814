#pragma once
// A long row on its way through shared memory, for a pair of blocks that chooses among what lies
// above a bound. Chunks of 8,192 entries go to the blocks in turn; the first ones are asked for
// before the bound is known.
//
//   RowStream stream(ring, scores, length, rank, blocks);   // all threads; before a block barrier
//   stream.start();
//   stream.push_above(floor, list, capacity, shared);       // as RegisterRow::push_above

#include <cstdint>

#include "kernels/indexer_topk/register_row.cuh"
#include "kernels/ptx/bulk_copy.cuh"
#include "kernels/ptx/loaded_arrive.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/shared_access.cuh"

namespace baleen::kernels {

inline constexpr uint32_t kChunkVectors = 2;  // of four entries, for every thread
inline constexpr uint32_t kChunkEntries = 4 * kTopkThreads * kChunkVectors;
inline constexpr uint32_t kChunkBytes = 4 * kChunkEntries;
inline constexpr uint32_t kMaxRingChunks = 4;

struct RingBarriers {
  ptx::Barrier full[kMaxRingChunks];
  ptx::Barrier empty[kMaxRingChunks];
};

class RowStream {
 public:
  /// `ring` has `places` chunks, 128-byte aligned.
  __device__ RowStream(
      uint8_t* ring, uint32_t places, RingBarriers& barriers, const float* scores, uint32_t length)
      : ring_(ring),
        places_(places),
        barriers_(barriers),
        scores_(scores),
        length_(length),
        rank_(ptx::cluster_rank()),
        blocks_(ptx::cluster_size()) {
    const uint32_t chunks = (length + kChunkEntries - 1) / kChunkEntries;
    chunks_ = chunks > rank_ ? (chunks - rank_ + blocks_ - 1) / blocks_ : 0;
  }

  /// Thread 0: prepares the barriers and asks for the first chunks.
  __device__ void start() const {
    if (threadIdx.x == 0) {
      for (uint32_t i = 0; i < places_; ++i) {
        ptx::barrier_init(&barriers_.full[i], 1);
        ptx::barrier_init(&barriers_.empty[i], kTopkWarps);
      }
      ptx::fence_barrier_init();
      for (uint32_t i = 0; i < min(places_, chunks_); ++i) {
        request(i, i);
      }
    }
  }

  /// Puts this block's entries above `floor` into `list` (in any block's shared memory), in no
  /// order, at most `capacity`; adds their number to shared.kept and raises shared.top to the
  /// largest key.
  __device__ __forceinline__ void push_above(uint32_t floor,
                                             uint64_t* list,
                                             uint32_t capacity,
                                             RowShared& shared) const {
    const uint32_t lane = threadIdx.x % 32;
    const float least = key_score(max(floor + 1, kLeastNumberKey));  // NaN, so none, above +inf
    float best = __builtin_nanf("");
    uint32_t place = 0;
    uint32_t parity = 0;
    const uint32_t mine = ptx::shared_address(ring_) + threadIdx.x * 16;
    for (uint32_t chunk = 0; chunk < chunks_; ++chunk) {
      ptx::barrier_wait(&barriers_.full[place], parity);
      float four[kChunkVectors][4];
#pragma unroll
      for (uint32_t v = 0; v < kChunkVectors; ++v) {
        const uint4 bits =
            ptx::load_shared_16(mine + place * kChunkBytes + v * (16 * kTopkThreads));
        four[v][0] = __uint_as_float(bits.x);
        four[v][1] = __uint_as_float(bits.y);
        four[v][2] = __uint_as_float(bits.z);
        four[v][3] = __uint_as_float(bits.w);
      }
      __syncwarp();
      if (lane == 0) {
        uint32_t loaded = __float_as_uint(four[0][0]);
#pragma unroll
        for (uint32_t v = 1; v < kChunkVectors; ++v) {
          loaded &= __float_as_uint(four[v][0]);
        }
        ptx::barrier_arrive_loaded(&barriers_.empty[place], loaded);
      }
      const uint32_t entry = entry_of(chunk) + threadIdx.x * 4;
      if (chunk + 1 == chunks_) {  // only the last chunk may end early
#pragma unroll
        for (uint32_t i = 0; i < 4 * kChunkVectors; ++i) {
          float& score = four[i / 4][i % 4];
          score = entry + i / 4 * (4 * kTopkThreads) + i % 4 < length_ ? score : __builtin_nanf("");
        }
      }
      uint32_t total = 0;
      uint32_t good[4 * kChunkVectors];
#pragma unroll
      for (uint32_t i = 0; i < 4 * kChunkVectors; ++i) {
        best = fmaxf(best, four[i / 4][i % 4]);
        good[i] = __ballot_sync(kFullMask, four[i / 4][i % 4] >= least);
        total += static_cast<uint32_t>(__popc(static_cast<int>(good[i])));
      }
      if (total > 0) {
        uint32_t before = 0;  // of the warp's, those of lower elements and lanes
        if (lane == 0) {
          before = atomicAdd(&shared.kept, total);
        }
        before = __shfl_sync(kFullMask, before, 0);
#pragma unroll
        for (uint32_t i = 0; i < 4 * kChunkVectors; ++i) {
          const uint32_t at = before + static_cast<uint32_t>(
                                           __popc(static_cast<int>(good[i] & ((1U << lane) - 1))));
          if (((good[i] >> lane) & 1U) != 0 && at < capacity) {
            list[at] =
                ranked(score_key(four[i / 4][i % 4]), entry + i / 4 * (4 * kTopkThreads) + i % 4);
          }
          before += static_cast<uint32_t>(__popc(static_cast<int>(good[i])));
        }
      }
      // The place before this one: the other warps are nearly done with it.
      if (threadIdx.x == 0 && chunk > 0 && chunk - 1 + places_ < chunks_) {
        const uint32_t last = place == 0 ? places_ - 1 : place - 1;
        ptx::barrier_wait(&barriers_.empty[last], place == 0 ? parity ^ 1 : parity);
        request(chunk - 1 + places_, last);
      }
      __syncwarp();
      if (++place == places_) {
        place = 0;
        parity ^= 1;
      }
    }
    const uint32_t top = __reduce_max_sync(kFullMask, score_key(best));
    if (lane == 0) {
      atomicMax(&shared.top, top);
    }
  }

 private:
  __device__ uint32_t entry_of(uint32_t chunk) const {
    return (chunk * blocks_ + rank_) * kChunkEntries;
  }
  __device__ void request(uint32_t chunk, uint32_t place) const {
    const uint32_t entry = entry_of(chunk);
    const uint32_t bytes = min(kChunkBytes, (length_ - entry + 3) / 4 * 16);
    ptx::barrier_expect_bytes(&barriers_.full[place], bytes);
    ptx::bulk_load(ring_ + place * kChunkBytes, scores_ + entry, bytes, &barriers_.full[place]);
  }

  uint8_t* ring_;
  uint32_t places_;
  RingBarriers& barriers_;
  const float* scores_;
  uint32_t length_;
  uint32_t rank_;
  uint32_t blocks_;
  uint32_t chunks_;  // of this block
};

}  // namespace baleen::kernels
