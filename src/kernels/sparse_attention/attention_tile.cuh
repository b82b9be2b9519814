#pragma once
// Shared memory of one block of the Hopper attention kernel, and the roles of its threads: the
// first one or two warp groups score tiles, the last two fetch rows and accumulate the output.
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
inline constexpr int kDimBlocks = kKvDims / 64;  // 7 nope, 1 rope
inline constexpr int kUnitRows = 16;
inline constexpr int kUnitBytes = kUnitRows * kKvDims * 2;
inline constexpr int kBlockBytes = kUnitRows * 128;   // of a unit
inline constexpr int kSegments = kKvValueBytes / 64;  // 9
inline constexpr int kTileBytes = 4 * kUnitBytes;
inline constexpr int kMaxCluster = 8;
inline constexpr int kMaxClusters = 32;
inline constexpr int kStatSlots = 4;         // tiles whose maxima are kept
inline constexpr float kNoMaximum = -1e30F;  // below every score, far from infinity

inline constexpr int kRawBegin = kUnitBytes - kUnitRows * kKvValueBytes;  // of a unit: 7,168
inline constexpr int kEarlyBlocks = 3;
static_assert(kEarlyBlocks * kBlockBytes <= kRawBegin);

template <int kHeads>
struct AttentionShape {
  static constexpr int kBuffers = kHeads <= 16 ? 3 : 2;  // tiles in flight
  static constexpr int kWeightBytes = kHeads * 128;      // 64 bf16 weights per head
  static constexpr int kPartialStride = kKvDims + 4;     // floats per head, conflict-free
  static constexpr int kColumns = kHeads / 4;            // heads seen by a thread of a score tile
  static constexpr int kOwned = kHeads == 64 ? 2 : 1;    // columns left after the reduction
  // 64 heads keep 128 accumulators in every output thread: three groups leave 168 registers each.
  static constexpr int kScoreGroups = kHeads == 64 ? 1 : 2;
  static constexpr int kMaxShares = kHeads == 64 ? 1 : kMaxCluster - 1;  // peers of a block
  static constexpr int kThreads = (kScoreGroups + kOutputGroups) * kGroupThreads;
};

template <int kHeads>
struct AttentionStats {
  float maximum[kStatSlots][kHeads];   // running, in powers of two
  float factor[kStatSlots][kHeads];    // 2^(old - new)
  int32_t changed[kStatSlots][2];      // whether a factor differs from 1
  float tile_maximum[2][4][kHeads];    // by tile parity and warp
  float sums[2][4][kHeads];            // of weights, by tile parity and warp
  float sum_maximum[2][kHeads];        // to which they refer
  float2 totals[kMaxCluster][kHeads];  // maximum and sum, by rank
  float factors[kMaxCluster][kHeads];  // of partial outputs, by rank
  float2 turns[kRopePairs];
  float sinks[kHeads];
  uint2 scales[3][kAttentionTileRows];  // by buffer
  int32_t present[3][kAttentionTileRows];
  int32_t is_last;
  int32_t slice;  // chunks of the output that each block of the cluster joins
  ptx::Barrier q_ready;
  ptx::Barrier received;    // the peers' shares of this block's slice
  ptx::Barrier ranked[2];   // maxima of even and odd tiles are published
  ptx::Barrier fetched[3];  // bytes of a tile's rows are in place
  ptx::Barrier full[3];     // expanded rows and weights of a tile are in place
};

template <int kHeads>
struct AttentionShared {
  using Shape = AttentionShape<kHeads>;
  static constexpr int kWeightsBegin = Shape::kBuffers * kTileBytes;
  static constexpr int kQBegin = kWeightsBegin + Shape::kBuffers * Shape::kWeightBytes;
  static constexpr int kStatsBegin = kQBegin + kDimBlocks * kHeads * 128;
  static constexpr int kBytes = kStatsBegin + static_cast<int>(sizeof(AttentionStats<kHeads>));
  static_assert(kHeads * Shape::kPartialStride * 4 <= kQBegin, "partial output reuses the tiles");
  static_assert(kBytes + 1024 <= 232448);
  static_assert(Shape::kMaxShares * kHeads * kKvDims * 4 / (Shape::kMaxShares + 1) <=
                (kHeads == 64 ? kStatsBegin - kQBegin
                              : kQBegin - kHeads * Shape::kPartialStride * 4));

  uint8_t* base;

  __device__ explicit AttentionShared(uint8_t* memory)
      : base(memory + (1024 - (ptx::shared_address(memory) & 1023)) % 1024) {}
  __device__ uint8_t* unit(int buffer, int warp) const {
    return base + buffer * kTileBytes + warp * kUnitBytes;
  }
  __device__ uint8_t* raw_row(int buffer, int row) const {
    return unit(buffer, row / kUnitRows) + kRawBegin + row % kUnitRows * kKvValueBytes;
  }
  __device__ uint8_t* weights(int buffer) const {
    return base + kWeightsBegin + buffer * Shape::kWeightBytes;
  }
  __device__ uint8_t* q_block(int block) const { return base + kQBegin + block * kHeads * 128; }
  __device__ float* partial() const { return reinterpret_cast<float*>(base); }
  /// Peers' shares of this block's slice, one after another. The partial output of 64 heads fills
  /// the tiles' place; one peer's half fits where q was.
  __device__ float* received() const {
    constexpr int kPartialBytes = kHeads * Shape::kPartialStride * 4;
    return reinterpret_cast<float*>(base + (kHeads == 64 ? kQBegin : kPartialBytes));
  }
  __device__ AttentionStats<kHeads>& stats() const {
    return *reinterpret_cast<AttentionStats<kHeads>*>(base + kStatsBegin);
  }
};

/// All threads of the block, from either role's branch.
template <int kHeads>
__device__ __forceinline__ void block_sync() {
  ptx::named_barrier_sync(0, AttentionShape<kHeads>::kThreads);
}

/// Which rows one block visits: tiles [begin, end) of the query's row of tiles.
struct TileRange {
  int32_t begin;
  int32_t end;
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
  const int32_t tiles =
      range.first_tiles + (range.second_length + kAttentionTileRows - 1) / kAttentionTileRows;
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

}  // namespace baleen::kernels
