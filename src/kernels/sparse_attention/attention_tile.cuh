#pragma once
// Shared memory of one block of the Hopper attention kernel, and the roles of its threads: the
// first one or two warp groups score tiles, the next two accumulate and join the output, the last
// one copies rows. What follows on tiles is for up to 32 heads; wide_tile.cuh is for 64.
//
//   extern __shared__ uint8_t memory[];
//   AttentionShared<16> shared(memory);
//
// A tile of 64 rows is four units of 16 rows, one per warp of its group. A unit holds eight blocks
// of 64 dims, each 16 lines of 128 bytes in 128-byte swizzle. Before it is expanded, the bytes of
// its rows wait in its last 9 KB: a warp expands the first three blocks, which lie before them,
// then reads all that is left of its 16 rows and writes the other blocks over it.

#include <cstdint>

#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/sparse_attention/row_source.cuh"
#include "kernels/sparse_attention/sparse_attention.h"

namespace baleen::kernels {

inline constexpr int kGroupThreads = 128;
inline constexpr int kOutputGroups = 2;
inline constexpr int kOutputThreads = kOutputGroups * kGroupThreads;
inline constexpr int kDimBlocks = kKvDims / 64;  // 7 nope, 1 rope
inline constexpr int kUnitRows = 16;
inline constexpr int kUnitBytes = kUnitRows * kKvDims * 2;
inline constexpr int kBlockBytes = kUnitRows * 128;   // of a unit
inline constexpr int kSegments = kKvValueBytes / 64;  // 9
inline constexpr int kTileBytes = 4 * kUnitBytes;
inline constexpr int kMaxCluster = 8;
inline constexpr int kMaxClusters = 56;      // as many as bits of a counter beside its count
inline constexpr int kStatSlots = 4;         // tiles whose maxima are kept
inline constexpr float kNoMaximum = -1e30F;  // below every score, far from infinity

inline constexpr int kRawBegin = kUnitBytes - kUnitRows * kKvValueBytes;  // of a unit: 7,168
inline constexpr int kEarlyBlocks = 3;
static_assert(kEarlyBlocks * kBlockBytes <= kRawBegin);

template <int kHeads>
struct AttentionShape {
  static constexpr bool kWide = kHeads == 64;                  // wide_tile.cuh
  static constexpr int kBuffers = kHeads == 32 ? 2 : 3;        // tiles in flight
  static constexpr int kWeightBuffers = kWide ? 1 : kBuffers;  // of weights
  static constexpr int kWeightBytes = kHeads * 128;            // 64 bf16 weights per head
  static constexpr int kPartialStride = kKvDims + 4;           // floats per head, conflict-free
  static constexpr int kColumns = kHeads / 4;  // heads seen by a thread of a score tile
  static constexpr int kOwned = 1;             // columns left after the reduction
  // 64 heads keep 128 accumulators in every output thread, which leaves room for one score group.
  static constexpr int kScoreGroups = kWide ? 1 : 2;
  static constexpr int kLargestCluster = kWide ? 2 : kMaxCluster;
  static constexpr int kLaunchThreads = (kScoreGroups + kOutputGroups + 1) * kGroupThreads;
  static constexpr int kFirstOutputThread = kScoreGroups * kGroupThreads;
  static constexpr int kUnitRows = kWide ? 8 : 16;  // rows that one warp expands in place
  static constexpr int kUnitBytes = kUnitRows * kKvDims * 2;
  static constexpr int kRawBegin = kUnitBytes - kUnitRows * kKvValueBytes;  // of a unit
  static constexpr int kHeldBlocks = kWide ? 5 : 0;  // blocks of 64 dims of q kept in registers
  // Registers of the threads of each role, within what the launch gives all of them.
  static constexpr int kCopyRegisters = kWide ? 24 : 32;
  static constexpr int kScoreRegisters = kWide ? 152 : 112;
  static constexpr int kOutputRegisters = kWide ? 168 : 104;
  static_assert(kCopyRegisters + kScoreGroups * kScoreRegisters +
                    kOutputGroups * kOutputRegisters <=
                65536 / kLaunchThreads / 8 * 8 * (kLaunchThreads / kGroupThreads));
};

/// What all widths have.
template <int kHeads>
struct CommonStats {
  float2 turns[kRopePairs];
  float sinks[kHeads];
  uint32_t present_rows[3][2];  // one bit per row, by buffer
  int32_t joins;                // whether this block joins clusters
  int32_t slice;                // chunks of the output that each block of the cluster joins
  uint64_t left;                // clusters whose share this block joins beside its own
  ptx::Barrier q_ready;
  ptx::Barrier received;    // the peers' shares of this block's slice
  ptx::Barrier fetched[3];  // bytes of a tile's rows are in place
  ptx::Barrier full[3];     // expanded rows and weights of a tile are in place
  ptx::Barrier freed[3];    // nobody reads a tile any more
};

template <int kHeads>
struct AttentionStats : CommonStats<kHeads> {
  float maximum[kStatSlots][kHeads];        // running, in powers of two
  float factor[kStatSlots][kHeads];         // 2^(old - new)
  int32_t changed[kStatSlots];              // whether a factor differs from 1
  float tile_maximum[2][4][kHeads];         // by tile parity and warp
  float sums[2][4][kHeads];                 // of weights, by tile parity and warp
  float sum_maximum[2][kHeads];             // to which they refer
  float2 all_totals[kMaxCluster][kHeads];   // maximum and sum, by rank
  float all_factors[kMaxCluster][kHeads];   // of partial outputs, by rank
  uint2 all_scales[3][kAttentionTileRows];  // by buffer
  ptx::Barrier ranked[2];                   // maxima of even and odd tiles are published
};

template <>
struct AttentionStats<64> : CommonStats<64> {
  float factor[2][64];         // 2^(old - new), by tile parity
  ptx::Barrier expanded[3];    // a tile's rows are in place as bf16
  float2 peer_totals[64];      // maximum and sum of the other block of a cluster of two
  float part_factors[2][64];   // of the outputs, by rank
  int32_t peer_spare;          // where the other block has room for outputs (wide_join.cuh)
  ptx::Barrier totals_came;    // peer_totals
  ptx::Barrier lines_came[4];  // the other block's part of the output, by lines
  ptx::Barrier may_send;       // the other block's room is free
};

template <int kHeads>
__device__ __forceinline__ bool row_present(const AttentionStats<kHeads>& stats,
                                            int buffer,
                                            int row) {
  return ((stats.present_rows[buffer][row / 32] >> (row % 32)) & 1U) != 0;
}

/// 64 heads: only the last blocks of q are in shared memory, behind the weights; the score group
/// has the others in registers.
template <int kHeads>
struct AttentionShared {
  using Shape = AttentionShape<kHeads>;
  static constexpr int kPartialBytes = kHeads * Shape::kPartialStride * 4;
  static constexpr int kWeightsBegin = Shape::kBuffers * kTileBytes;
  static constexpr int kQBegin = kWeightsBegin + Shape::kWeightBuffers * Shape::kWeightBytes;
  static constexpr int kQBlockBytes = kHeads * 128;
  static constexpr int kStatsBegin = kQBegin + (kDimBlocks - Shape::kHeldBlocks) * kQBlockBytes;
  static constexpr int kBytes = kStatsBegin + static_cast<int>(sizeof(AttentionStats<kHeads>));
  static_assert(kPartialBytes <= kQBegin, "partial output reuses the tiles");
  static_assert(kPartialBytes +
                    (Shape::kLargestCluster - 1) * kHeads * kKvDims * 4 / Shape::kLargestCluster <=
                kQBegin);
  static_assert(kBytes <= 232448);

  uint8_t* base;

  __device__ explicit AttentionShared(uint8_t* memory) : base(memory) {}
  __device__ uint8_t* unit(int buffer, int warp) const {
    return base + buffer * kTileBytes + warp * kUnitBytes;
  }
  __device__ uint8_t* raw_row(int buffer, int row) const {
    constexpr int kRows = Shape::kUnitRows;
    return base + buffer * kTileBytes + row / kRows * Shape::kUnitBytes + Shape::kRawBegin +
           row % kRows * kKvValueBytes;
  }
  /// Scale bytes of a row; of 64 heads in the gap of its unit before the fourth block.
  __device__ uint2* scales(int buffer, int row) const {
    if constexpr (Shape::kWide) {
      return reinterpret_cast<uint2*>(base + buffer * kTileBytes +
                                      row / Shape::kUnitRows * Shape::kUnitBytes +
                                      kEarlyBlocks * Shape::kUnitRows * 128) +
             row % Shape::kUnitRows;
    } else {
      return &stats().all_scales[buffer][row];
    }
  }
  __device__ uint8_t* weights(int buffer) const {
    return base + kWeightsBegin + buffer % Shape::kWeightBuffers * Shape::kWeightBytes;
  }
  __device__ uint8_t* q_block(int block) const {
    return base + kQBegin + (block - Shape::kHeldBlocks) * kQBlockBytes;
  }
  __device__ float* partial() const { return reinterpret_cast<float*>(base); }
  /// Peers' shares of this block's slice, one after another.
  __device__ float* received() const { return reinterpret_cast<float*>(base + kPartialBytes); }
  /// Maximum and sum of a rank's heads.
  __device__ float2* totals(int rank) const { return stats().all_totals[rank]; }
  /// What a rank's partial output is multiplied with, by head.
  __device__ float* factors(int rank) const { return stats().all_factors[rank]; }
  __device__ AttentionStats<kHeads>& stats() const {
    return *reinterpret_cast<AttentionStats<kHeads>*>(base + kStatsBegin);
  }
};

/// Number of this thread among those of the output groups.
template <int kHeads>
__device__ __forceinline__ int output_thread() {
  return static_cast<int>(threadIdx.x) - AttentionShape<kHeads>::kFirstOutputThread;
}

/// Named barriers: of the output groups, of the score groups, and where the former take over the
/// latter's totals.
inline constexpr uint32_t kOutputBarrier = 3;
inline constexpr uint32_t kScoreBarrier = 4;
inline constexpr uint32_t kTotalsBarrier = 5;

__device__ __forceinline__ void output_sync() {
  ptx::named_barrier_sync(kOutputBarrier, kOutputThreads);
}

/// Parity of the phase of freed[index % kBuffers] that ends when tile `index` is read by nobody any
/// more.
template <int kHeads>
__device__ __forceinline__ uint32_t freed_parity(int32_t index) {
  return static_cast<uint32_t>(index / AttentionShape<kHeads>::kBuffers) & 1U;
}

/// Which rows one block visits: tiles [begin, end) of the query's row of tiles.
struct TileRange {
  int32_t begin;
  int32_t end;
  int32_t tiles;        // of all blocks
  int32_t first_tiles;  // tiles of the first source
  int32_t first_length;
  int32_t second_length;
};

__device__ __forceinline__ TileRange tile_range(const SparseAttentionParams& params,
                                                int32_t query,
                                                int32_t part) {
  TileRange range;
  range.first_length = source_length(params.first, query);
  range.second_length = source_length(params.second, query);
  range.first_tiles = (range.first_length + kAttentionTileRows - 1) / kAttentionTileRows;
  range.tiles =
      range.first_tiles + (range.second_length + kAttentionTileRows - 1) / kAttentionTileRows;
  const int32_t tiles = range.tiles;
  const int32_t parts = params.plan.cluster * params.plan.clusters;
  if (params.plan.mode == AttentionMode::kInvariant) {
    constexpr int32_t kPartTiles = kAttentionPartRows / kAttentionTileRows;
    range.begin = part == 0 ? 0 : min(tiles, range.first_tiles + part * kPartTiles);
    range.end = part == parts - 1 ? tiles : min(tiles, range.first_tiles + (part + 1) * kPartTiles);
  } else if (parts == 1) {
    range.begin = 0;
    range.end = tiles;
  } else {  // the first parts take one tile more where it does not divide
    const int32_t each = tiles / parts;
    const int32_t more = tiles - each * parts;
    range.begin = part * each + min(part, more);
    range.end = range.begin + each + (part < more ? 1 : 0);
  }
  return range;
}

/// Tiles of another part of the query, in fast mode.
__device__ __forceinline__ int32_t tiles_of_part(const SparseAttentionParams& params,
                                                 const TileRange& range,
                                                 int32_t part) {
  const int32_t parts = params.plan.cluster * params.plan.clusters;
  return range.tiles / parts + (part < range.tiles % parts ? 1 : 0);
}

}  // namespace baleen::kernels
