#pragma once
// Brings tiles of rows into shared memory. Run by the last warp group, which does nothing else: a
// bulk copy takes its addresses from uniform registers, so the lanes of a warp issue theirs one
// after another, some 50 clocks each. A warp serves 16 rows of every tile, one half of its lanes
// those of even tiles and one those of odd tiles. Rows that follow each other in memory within a
// unit of the tile come as one copy. Row numbers are read, and rows asked into L2, two to five
// tiles ahead.
//
//   RowFetcher<kHeads>(params, shared, query, range).run(tiles);

#include <cstdint>

#include "kernels/cache_entry/row_math.cuh"
#include "kernels/ptx/async_copy_8.cuh"
#include "kernels/ptx/bulk_copy.cuh"
#include "kernels/ptx/prefetch.cuh"
#include "kernels/ptx/role_registers.cuh"
#include "kernels/sparse_attention/attention_tile.cuh"
#include "kernels/sparse_attention/row_source.cuh"

namespace baleen::kernels {

template <int kHeads>
class RowFetcher {
 public:
  static constexpr int kBuffers = AttentionShape<kHeads>::kBuffers;
  static constexpr int kLanesOfTile = 16;
  static constexpr int kTilesAtOnce = 2;
  static constexpr int kUnitRows = AttentionShape<kHeads>::kUnitRows;

  __device__ RowFetcher(const SparseAttentionParams& params,
                        const AttentionShared<kHeads>& shared,
                        int32_t query,
                        const TileRange& range)
      : params_(params), shared_(shared), query_(query), range_(range) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    row_in_tile_ = static_cast<int>(threadIdx.x) / 32 % 4 * kLanesOfTile + lane % kLanesOfTile;
    turn_ = lane / kLanesOfTile;
    const int32_t first = entry_of(turn_);
    after_next_ = entry_of(turn_ + kTilesAtOnce);
    next_ = row_of(turn_, first);
  }

  __device__ void run(int32_t tiles) {
    copy(turn_, turn_ < tiles);
    next_ = row_of(turn_ + kTilesAtOnce, after_next_);
    ask(turn_ + kTilesAtOnce, next_);
    after_next_ = entry_of(turn_ + 2 * kTilesAtOnce);
    ptx::Barrier* freed = shared_.stats().freed;
    for (int32_t index = kTilesAtOnce; index < tiles; ++index) {
      if (needs_freeing(index)) {
        ptx::barrier_wait_or_leave(&freed[index % kBuffers],
                                   freed_parity<kHeads>(index - kBuffers));
      }
      const bool mine = turn_ == index % kTilesAtOnce;
      copy(index, mine);
      if (mine) {
        next_ = row_of(index + kTilesAtOnce, after_next_);
        after_next_ = entry_of(index + 2 * kTilesAtOnce);
      } else {  // read one call ago
        ask(index - 1 + 2 * kTilesAtOnce, row_of(index - 1 + 2 * kTilesAtOnce, after_next_));
      }
    }
  }

 private:
  /// Whether a tile was in the place of tile `index` before.
  static __device__ bool needs_freeing(int32_t index) { return index >= kBuffers; }
  __device__ const KvPoolView& pool_of(int32_t index) const {
    return range_.begin + index < range_.first_tiles ? params_.first.pool : params_.second.pool;
  }
  /// What the list or page table says of this lane's row of tile `index`: read early, made a row of
  /// one step before the row is due, so that no step waits for it.
  __device__ int32_t entry_of(int32_t index) const {
    const int32_t tile = range_.begin + index;
    if (tile >= range_.end) {
      return -1;
    }
    return tile < range_.first_tiles
               ? source_entry(params_.first,
                              query_,
                              tile * kAttentionTileRows + row_in_tile_,
                              range_.first_length)
               : source_entry(params_.second,
                              query_,
                              (tile - range_.first_tiles) * kAttentionTileRows + row_in_tile_,
                              range_.second_length);
  }
  __device__ int32_t row_of(int32_t index, int32_t entry) const {
    const int32_t tile = range_.begin + index;
    return tile < range_.first_tiles
               ? entry_row(params_.first, tile * kAttentionTileRows + row_in_tile_, entry)
               : entry_row(params_.second,
                           (tile - range_.first_tiles) * kAttentionTileRows + row_in_tile_,
                           entry);
  }
  /// All lanes; those that are `active` bring their row of tile `index`. A missing row is marked
  /// and leaves its place as it is.
  __device__ void copy(int32_t index, bool active) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const bool have = active && next_ >= 0;
    RowAddress at = {nullptr, nullptr};
    if (have) {
      at = row_address(pool_of(index), next_);
    }
    const auto place = reinterpret_cast<uint64_t>(at.values);
    const uint64_t before = __shfl_up_sync(kWholeWarp, place, 1);
    const bool follows =
        have && lane % kUnitRows != 0 && before != 0 && place == before + kKvValueBytes;
    const uint32_t following = __ballot_sync(kWholeWarp, follows);
    const uint32_t present = __ballot_sync(kWholeWarp, have);
    if (!active) {
      return;
    }
    const int buffer = index % kBuffers;
    AttentionStats<kHeads>& stats = shared_.stats();
    ptx::Barrier* fetched = &stats.fetched[buffer];
    if (lane % kLanesOfTile == 0) {
      reinterpret_cast<uint16_t*>(stats.present_rows[buffer])[row_in_tile_ / kLanesOfTile] =
          static_cast<uint16_t>(present >> (turn_ * kLanesOfTile));
    }
    if (have) {
      ptx::async_copy_8(shared_.scales(buffer, row_in_tile_), at.scales, 8);
    }
    if (have && !follows) {
      const auto rows = static_cast<uint32_t>(__ffs(static_cast<int>(~((following >> lane) >> 1))));
      ptx::barrier_expect_bytes(fetched, rows * kKvValueBytes);
      ptx::bulk_load(
          shared_.raw_row(buffer, row_in_tile_), at.values, rows * kKvValueBytes, fetched);
    } else {
      ptx::barrier_arrive(fetched);
    }
    ptx::async_copy_arrive(fetched);
  }
  __device__ void ask(int32_t index, int32_t row) const {
    if (row >= 0) {
      const RowAddress at = row_address(pool_of(index), row);
#pragma unroll
      for (int line = 0; line < kKvValueBytes; line += 128) {
        ptx::prefetch_l2(at.values + line);  // rows are 64-byte aligned: these touch every line
      }
      ptx::prefetch_l2(at.scales);
    }
  }

  const SparseAttentionParams& params_;
  const AttentionShared<kHeads>& shared_;
  int32_t query_;
  const TileRange& range_;
  int32_t row_in_tile_;
  int32_t turn_;        // which of two neighbouring tiles this lane serves
  int32_t next_;        // its row in the next of them
  int32_t after_next_;  // entry of its row in the one after
};

}  // namespace baleen::kernels
