#pragma once
// Brings tiles of rows into shared memory for blocks of 64 heads. A bulk copy takes its addresses
// from uniform registers, so the lanes of a warp issue theirs one after another, some 60 clocks
// each, and what else a step needs is a chain of some hundred instructions. So the first tile,
// which everybody waits for, is cut over the output warps, a unit of eight rows each; of the others
// a warp of the copy group serves 16 rows, its halves in turns, a row per lane. Rows that follow
// each other in memory within a unit come as one copy. Rows are asked into L2 two tiles ahead, row
// numbers read four.
//
//   const WideFetcher fetcher(params, shared, query, range);
//   const int32_t entry = fetcher.first_entry(is_output);  // before the barriers are there
//   ... block barrier ...
//   const auto started = fetcher.start_first(entry);  // output warps
//   fetcher.finish_first(started);
//   fetcher.run(tiles, entry);                        // the copy group

#include <cstdint>

#include "kernels/cache_entry/row_math.cuh"
#include "kernels/ptx/bulk_copy.cuh"
#include "kernels/ptx/prefetch.cuh"
#include "kernels/ptx/role_registers.cuh"
#include "kernels/sparse_attention/attention_tile.cuh"
#include "kernels/sparse_attention/row_source.cuh"
#include "kernels/sparse_attention/wide_tile.cuh"

namespace baleen::kernels {

class WideFetcher {
 public:
  static constexpr int kBuffers = AttentionShape<kWideHeads>::kBuffers;
  static constexpr int kTilesAtOnce = 2;
  static constexpr int kLanesOfTile = 16;
  static_assert(kAttentionTileRows / kWideUnitRows == kOutputThreads / 32);

  /// Copies of a tile that are under way.
  struct Started {
    uint2 scales;      // of this lane's row
    uint32_t present;  // lanes that have a row
    bool active;
  };

  __device__ WideFetcher(const SparseAttentionParams& params,
                         const AttentionShared<kWideHeads>& shared,
                         int32_t query,
                         const TileRange& range)
      : params_(params), shared_(shared), query_(query), range_(range) {}

  /// What the list says of the row that this lane brings first: of the first tile for output warps,
  /// of the next two for the copy group.
  __device__ int32_t first_entry(bool is_output) const {
    return is_output ? (lane() < kWideUnitRows ? entry_of(0, first_row()) : -1)
                     : entry_of(begin(), row());
  }
  /// An output warp's unit of the first tile.
  __device__ Started start_first(int32_t entry) const {
    const bool active = lane() < kWideUnitRows && range_.begin < range_.end;
    const RowAddress at = address_of(0, first_row(), entry);
    return start(0, first_row(), at.values, scales_of(at), active);
  }
  __device__ void finish_first(const Started& started) const { finish(0, first_row(), started); }

  /// The copy group: all further tiles.
  __device__ void run(int32_t tiles, int32_t entry) const {
    int32_t next_entry = entry_of(begin() + kTilesAtOnce, row());
    RowAddress at = address_of(begin(), row(), entry);
    uint2 scales = scales_of(at);
    for (int32_t index = 1; index < tiles; ++index) {
      const bool mine = index % kTilesAtOnce == lane() / kLanesOfTile;
      wait_for_place(index);
      finish(index, row(), start(index, row(), at.values, scales, mine));
      if (mine) {
        entry = next_entry;
        next_entry = entry_of(index + 2 * kTilesAtOnce, row());
        at = address_of(index + kTilesAtOnce, row(), entry);
        scales = scales_of(at);
        ask(at.values);
      }
    }
  }

 private:
  static __device__ int lane() { return static_cast<int>(threadIdx.x) % 32; }
  static __device__ int first_row() {
    return output_thread<kWideHeads>() / 32 * kWideUnitRows + lane() % kWideUnitRows;
  }
  /// Row of every second tile, and the first of these tiles, of a lane of the copy group.
  static __device__ int row() {
    return static_cast<int>(threadIdx.x) / 32 % 4 * kLanesOfTile + lane() % kLanesOfTile;
  }
  static __device__ int32_t begin() { return kTilesAtOnce - lane() / kLanesOfTile; }
  /// Until the tile that was in the place of tile `index` before is read.
  __device__ void wait_for_place(int32_t index) const {
    if (index >= kBuffers) {
      ptx::barrier_wait_or_leave(&shared_.stats().freed[index % kBuffers],
                                 freed_parity<kWideHeads>(index - kBuffers));
    }
  }
  /// What the list or page table says of a row of tile `index`: read early, made an address when
  /// the row is asked for, so that no step waits for it.
  __device__ int32_t entry_of(int32_t index, int row) const {
    const int32_t tile = range_.begin + index;
    if (tile >= range_.end) {
      return -1;
    }
    return tile < range_.first_tiles
               ? source_entry(
                     params_.first, query_, tile * kAttentionTileRows + row, range_.first_length)
               : source_entry(params_.second,
                              query_,
                              (tile - range_.first_tiles) * kAttentionTileRows + row,
                              range_.second_length);
  }
  /// Null where there is no row.
  __device__ RowAddress address_of(int32_t index, int row, int32_t entry) const {
    if (entry < 0) {
      return {nullptr, nullptr};
    }
    const int32_t tile = range_.begin + index;
    return tile < range_.first_tiles
               ? row_address(params_.first.pool,
                             entry_row(params_.first, tile * kAttentionTileRows + row, entry))
               : row_address(params_.second.pool,
                             entry_row(params_.second,
                                       (tile - range_.first_tiles) * kAttentionTileRows + row,
                                       entry));
  }
  /// All lanes, neighbours with neighbouring rows; those that are `active`, whole units, start the
  /// copy of their row of tile `index`. A missing row is marked and leaves its place as it is.
  __device__ Started
  start(int32_t index, int row, const uint8_t* values, uint2 scales, bool active) const {
    const bool have = active && values != nullptr;
    const auto place = have ? reinterpret_cast<uint64_t>(values) : 0;
    const uint64_t before = __shfl_up_sync(kWholeWarp, place, 1);
    const bool follows =
        have && lane() % kWideUnitRows != 0 && before != 0 && place == before + kKvValueBytes;
    const uint32_t following = __ballot_sync(kWholeWarp, follows);
    const uint32_t present = __ballot_sync(kWholeWarp, have);
    const int buffer = index % kBuffers;
    if (have && !follows) {
      const auto rows =
          static_cast<uint32_t>(__ffs(static_cast<int>(~((following >> lane()) >> 1))));
      ptx::bulk_load(shared_.raw_row(buffer, row),
                     values,
                     rows * kKvValueBytes,
                     &shared_.stats().fetched[buffer]);
    }
    return {scales, present, active};
  }
  /// Scale bytes go through registers, so that the rows of a unit arrive together: an arrival
  /// behind an asynchronous copy would again be issued lane by lane.
  __device__ void finish(int32_t index, int row, const Started& started) const {
    const int buffer = index % kBuffers;
    AttentionStats<kWideHeads>& stats = shared_.stats();
    if (((started.present >> lane()) & 1U) != 0) {
      *shared_.scales(buffer, row) = started.scales;
    }
    __syncwarp();
    if (started.active && lane() % kWideUnitRows == 0) {
      const uint32_t of_unit = (started.present >> lane()) & 0xFFU;
      reinterpret_cast<uint8_t*>(stats.present_rows[buffer])[row / kWideUnitRows] =
          static_cast<uint8_t>(of_unit);
      ptx::barrier_expect_bytes(&stats.fetched[buffer],
                                static_cast<uint32_t>(__popc(of_unit)) * kKvValueBytes);
    }
  }
  static __device__ uint2 scales_of(const RowAddress& at) {
    return at.values != nullptr ? __ldg(reinterpret_cast<const uint2*>(at.scales))
                                : make_uint2(0, 0);
  }
  static __device__ void ask(const uint8_t* values) {
    if (values != nullptr) {
#pragma unroll
      for (int line = 0; line < kKvValueBytes; line += 128) {
        ptx::prefetch_l2(values + line);  // rows are 64-byte aligned: these touch every line
      }
    }
  }

  const SparseAttentionParams& params_;
  const AttentionShared<kWideHeads>& shared_;
  int32_t query_;
  const TileRange& range_;
};

}  // namespace baleen::kernels
