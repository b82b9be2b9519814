#pragma once
// Kernels that do nothing but use one resource of the card: memory streams, random row gathers,
// tensor instructions, and the hand-over between kernels, blocks of a grid and blocks of a cluster.
// What they reach is the ceiling that every other kernel's figure is given against. Sync: none;
// capture-safe.
//
//   launch_read_stream({.source = weights, .bytes = 8 << 20, .sink = sink}, stream);

#include <cstdint>

#include "device/stream_handle.h"

namespace baleen::kernels {

/// Reads `bytes` (a multiple of 16) once with 16-byte loads; `sink` [1] keeps the loads alive.
struct ReadStreamParams {
  const void* source = nullptr;
  int64_t bytes = 0;
  uint32_t* sink = nullptr;
  int blocks = 132;
  int threads = 512;
  /// Starts before its predecessor ends and reads before it waits: the upper bound of run-ahead.
  bool run_ahead = false;
};
void launch_read_stream(const ReadStreamParams& params, device::StreamHandle stream);

/// Copies `bytes` (a multiple of 16): as many read as written.
struct CopyStreamParams {
  const void* source = nullptr;
  void* target = nullptr;
  int64_t bytes = 0;
};
void launch_copy_stream(const CopyStreamParams& params, device::StreamHandle stream);

/// Reads rows of 576 + 8 bytes (one KV cache entry) named by `rows` [num_rows] out of pages of 64.
struct GatherParams {
  const uint8_t* pool = nullptr;  // pages of 37,440 bytes
  const int32_t* rows = nullptr;  // i32 [num_rows], page * 64 + row
  int64_t num_rows = 0;
  uint32_t* sink = nullptr;
};
void launch_row_gather(const GatherParams& params, device::StreamHandle stream);

/// `products` tensor instructions m64n256 per warp group, two warp groups on every multiprocessor,
/// over operands that stay in shared memory.
struct TensorParams {
  const uint8_t* operands = nullptr;  // 96 KiB of random codes of the format
  float* sink = nullptr;              // f32 [1]
  int products = 0;                   // k steps per warp group, a multiple of 4
  bool fp8 = false;                   // e4m3 (K = 32) instead of bf16 (K = 16)
};
void launch_tensor(const TensorParams& params, device::StreamHandle stream);
/// FLOP of one launch.
double tensor_flop(const TensorParams& params);

/// An empty kernel of `blocks` blocks; its graph period is the hand-over between dependent kernels.
struct HandoverParams {
  int blocks = 132;
  bool programmatic = false;
};
void launch_handover(const HandoverParams& params, device::StreamHandle stream);

/// `rounds` barriers over a grid of 132 blocks through `counter` (u32 [1], zero at start and end).
struct GridBarrierParams {
  uint32_t* counter = nullptr;
  int rounds = 0;
};
void launch_grid_barriers(const GridBarrierParams& params, device::StreamHandle stream);

/// `rounds` barriers over clusters of `cluster` blocks, each with an exchange of 32 floats per
/// block through distributed shared memory when `exchange` is set.
struct ClusterBarrierParams {
  int cluster = 8;
  int rounds = 0;
  bool exchange = false;
  float* sink = nullptr;  // f32 [1]
};
void launch_cluster_barriers(const ClusterBarrierParams& params, device::StreamHandle stream);

}  // namespace baleen::kernels
