#pragma once
// Brings tiles of rows into shared memory for the score groups. Run by the output groups, which
// wait most of the time. A warp serves eight rows of every tile; of its lanes, eight serve tiles 0,
// 4, 8 ... eight serve 1, 5, 9 ... and so on. Each row is one bulk copy. Row numbers are read, and
// rows asked into L2, four to eight tiles ahead, so that memory is busy from the first microsecond
// and no step waits for an index.
//
//   RowFetcher<kHeads> fetcher(params, shared, query, range);
//   fetcher.fetch_first();                 // fills every buffer
//   fetcher.ask_ahead();
//   ... both output groups are done with tile i ...
//   fetcher.fetch(i + kBuffers);           // tiles in order, one call each

#include <cstdint>

#include "kernels/ptx/async_copy_8.cuh"
#include "kernels/ptx/bulk_copy.cuh"
#include "kernels/ptx/prefetch.cuh"
#include "kernels/sparse_attention/attention_tile.cuh"
#include "kernels/sparse_attention/row_source.cuh"

namespace baleen::kernels {

template <int kHeads>
class RowFetcher {
 public:
  static constexpr int kBuffers = AttentionShape<kHeads>::kBuffers;
  static constexpr int kLanesOfTile = 8;
  static constexpr int kTilesAtOnce = 32 / kLanesOfTile;
  static_assert(kBuffers <= kTilesAtOnce);

  __device__ RowFetcher(const SparseAttentionParams& params,
                        const AttentionShared<kHeads>& shared,
                        int32_t query,
                        const TileRange& range)
      : params_(params), shared_(shared), query_(query), range_(range) {
    const int thread =
        static_cast<int>(threadIdx.x) - AttentionShape<kHeads>::kScoreGroups * kGroupThreads;
    row_in_tile_ = thread / 32 * kLanesOfTile + thread % kLanesOfTile;
    turn_ = thread % 32 / kLanesOfTile;
    next_ = row_of(turn_);
    after_next_ = row_of(turn_ + kTilesAtOnce);
  }

  __device__ void fetch_first() {
    if (turn_ < kBuffers && range_.begin + turn_ < range_.end) {
      copy(turn_, next_);
    }
  }

  /// Asks for the tiles after the first; apart, so that they do not delay those.
  __device__ void ask_ahead() {
    if (turn_ >= kBuffers) {
      ask(turn_, next_);
    }
    ask(turn_ + kTilesAtOnce, after_next_);
    if (turn_ < kBuffers) {
      next_ = after_next_;
      after_next_ = row_of(turn_ + 2 * kTilesAtOnce);
    }
  }

  /// Tile `index` (from the block's first) into its buffer, which nobody reads any more.
  __device__ void fetch(int32_t index) {
    if (range_.begin + index >= range_.end) {
      return;
    }
    if (turn_ == index % kTilesAtOnce) {
      copy(index, next_);
      next_ = after_next_;
      after_next_ = row_of(index + 2 * kTilesAtOnce);
    } else if (turn_ == (index + kTilesAtOnce - 1) % kTilesAtOnce) {
      ask(index - 1 + 2 * kTilesAtOnce, after_next_);  // read one call ago
    }
  }

 private:
  __device__ const KvPoolView& pool_of(int32_t index) const {
    return range_.begin + index < range_.first_tiles ? params_.first.pool : params_.second.pool;
  }
  __device__ int32_t row_of(int32_t index) const {
    const int32_t tile = range_.begin + index;
    if (tile >= range_.end) {
      return -1;
    }
    return tile < range_.first_tiles
               ? source_row(params_.first,
                            query_,
                            tile * kAttentionTileRows + row_in_tile_,
                            range_.first_length)
               : source_row(params_.second,
                            query_,
                            (tile - range_.first_tiles) * kAttentionTileRows + row_in_tile_,
                            range_.second_length);
  }
  /// A missing row is marked and leaves its place as it is.
  __device__ void copy(int32_t index, int32_t row) const {
    const int buffer = index % kBuffers;
    AttentionStats<kHeads>& stats = shared_.stats();
    ptx::Barrier* fetched = &stats.fetched[buffer];
    stats.present[buffer][row_in_tile_] = row >= 0 ? 1 : 0;
    if (row >= 0) {
      const RowAddress at = row_address(pool_of(index), row);
      ptx::async_copy_8(&stats.scales[buffer][row_in_tile_], at.scales, 8);
      ptx::barrier_expect_bytes(fetched, kKvValueBytes);
      ptx::bulk_load(shared_.raw_row(buffer, row_in_tile_), at.values, kKvValueBytes, fetched);
    } else {
      stats.scales[buffer][row_in_tile_] = make_uint2(0, 0);
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
  int32_t turn_;        // which of four neighbouring tiles this lane serves
  int32_t next_;        // its row in the next of them
  int32_t after_next_;  // and in the one after
};

}  // namespace baleen::kernels
