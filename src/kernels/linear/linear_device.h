#pragma once
// What the host hands to the Hopper linear kernel: one descriptor per task, passed by value as a
// kernel parameter. Filled by linear_launch.cpp, read by linear_body.cuh.

#include <array>
#include <cstdint>

#include <cuda.h>

#include "kernels/linear/linear.h"
#include "kernels/linear/linear_plan.h"

namespace baleen::kernels {

struct LinearDeviceTask {
  const uint8_t* weight;
  int32_t tiles_per_row;
  int32_t tiles_per_leaf;
  int32_t leaves_per_block;
  int32_t item_begin;  // items of a task: row block major, token tile minor
  const uint8_t* x;
  const void* weight_scales;
  const void* x_scales;
  void* y;
  uint8_t* y_scales;
  int64_t y_stride;
  int64_t x_stride_bytes;
  int64_t x_scale_stride;
  int32_t row_blocks_per_group;
  int32_t x_chunks_per_group;  // of 128 bytes
  int32_t num_outputs;         // rows of all groups
  WeightFormat format;
  ScaleFormat weight_scale_format;
  ScaleFormat x_scale_format;
  LinearOutput output;
};

/// What every block reads first stands first: parameters arrive by cache lines of 64 bytes.
struct LinearDeviceParams {
  int32_t num_tasks;
  int32_t num_items;
  int32_t num_clusters;
  int32_t cluster_shift;  // log2 of the blocks that share a sum
  int32_t stages;
  int32_t num_tokens;
  int32_t token_tiles;
  int32_t scale_blocks;
  int32_t x_offset;  // of the parts of dynamic shared memory after the ring, bytes
  int32_t reduction_offset;
  int32_t barrier_offset;
  int32_t scale_offset;
  int32_t programmatic;  // launched to run ahead of its predecessor
  LinearDeviceTask tasks[kMaxLinearTasks];
};

/// x as [chunks of 128 bytes][tokens][128 bytes], 128-byte swizzle; where x is not resident.
struct LinearXMaps {
  CUtensorMap maps[kMaxLinearTasks];
};

/// Starts the kernel for one token tile; instantiated in linear_sm90_*.cu and
/// grouped_projection_sm90_*.cu.
template <int kTokens, int kRowTiles>
void start_linear_kernel(const LinearDeviceParams& params,
                         const LinearXMaps& x_maps,
                         const LinearPlan& plan,
                         bool programmatic,
                         device::StreamHandle stream);

/// Plans, describes and starts; both linear and grouped projection go through it.
void launch_linear_tasks(const LinearParams& params,
                         int32_t row_tiles,
                         device::StreamHandle stream);

}  // namespace baleen::kernels
