#pragma once
// Decides how one launch of linears is cut: token tile, leaves, blocks per sum (cluster), clusters
// and ring depth. Depends on shapes and mode alone; of num_tokens only the token tile and the ring
// depth depend, which do not touch the order of sums. Host code, plain data, any thread.
//
//   const LinearPlan plan = plan_linear(params, /*row_tiles=*/1);

#include <array>
#include <cstdint>

#include "kernels/linear/linear.h"

namespace baleen::kernels {

struct LinearTaskPlan {
  int32_t row_blocks = 0;       // of 64 * row_tiles rows, all groups
  int32_t tiles_per_row = 0;    // 8 KiB weight tiles along the inputs
  int32_t leaves = 0;           // of the whole sum, a multiple of the cluster
  int32_t tiles_per_leaf = 0;   // along the inputs
  int32_t stages_per_leaf = 0;  // ring stages one block spends on a leaf
};

struct LinearPlan {
  bool valid = false;
  int32_t token_tile = 0;  // 8, 16, 32 or 64 tokens
  int32_t token_tiles = 0;
  int32_t cluster = 0;
  int32_t num_clusters = 0;
  int32_t num_items = 0;  // row blocks of all tasks, times token tiles
  int32_t stages = 0;
  int32_t scale_blocks = 0;  // most blocks of 128 inputs that one block of threads meets per item
  int32_t x_chunks = 0;      // most chunks of 128 bytes of x per token that it meets per item
  int32_t x_offset = 0;      // parts of dynamic shared memory after the ring, bytes
  int32_t reduction_offset = 0;
  int32_t barrier_offset = 0;
  int32_t scale_offset = 0;
  int32_t shared_bytes = 0;
  std::array<LinearTaskPlan, kMaxLinearTasks> tasks = {};
};

/// `row_tiles`: 64-row tiles a block works on at once, 1 (linear) or 2 (grouped projection).
/// `valid` is false when the shapes do not fit one launch.
LinearPlan plan_linear(const LinearParams& params, int32_t row_tiles);

/// Few tokens: a block keeps its stretch of every token's x in shared memory. More tokens: x goes
/// through the ring beside the weights.
constexpr bool x_is_resident(int32_t token_tile) {
  return token_tile <= 16;
}

/// Bytes of the parts of dynamic shared memory, in this order: ring, x, reduction, barriers,
/// scales.
constexpr int32_t ring_stage_bytes(int32_t token_tile) {
  return 2 * 8192 + (x_is_resident(token_tile) ? 0 : token_tile * 256);
}
constexpr int32_t resident_x_bytes(int32_t x_chunks, int32_t token_tile) {
  return x_is_resident(token_tile) ? x_chunks * token_tile * 128 : 0;
}
/// Of a lone block only what is quantised, which two row tiles can be, passes through it.
constexpr int32_t reduction_bytes(int32_t cluster, int32_t token_tile, int32_t row_tiles) {
  return cluster == 1 && row_tiles == 1
             ? 0
             : cluster * ((token_tile / 2 + cluster - 1) / cluster) * row_tiles * 32 * 16;
}
constexpr int32_t scale_bytes(int32_t scale_blocks, int32_t token_tile) {
  return scale_blocks * (token_tile + 2) * 4;
}
inline constexpr int32_t kMaxRingStages = 8;
inline constexpr int32_t kBarrierBytes = 256;  // 64 of exchange, 2 barriers per stage and 2 more

}  // namespace baleen::kernels
