#pragma once
// What the host hands to the direct form of small linears (linear_direct.cuh), by value as a kernel
// parameter, and the layout of a block's shared memory. Filled by linear_direct_launch.cpp.

#include <cstdint>

#include "device/stream_handle.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/linear_direct_plan.h"

namespace baleen::kernels {

/// What every block reads first stands first: parameters arrive by cache lines of 64 bytes.
struct DirectDeviceParams {
  const uint8_t* weight;
  const uint8_t* x;
  uint32_t x_stride;       // bytes
  uint32_t tiles_per_row;  // blocks of 128 inputs
  uint32_t num_tokens;
  const void* x_scales;
  const void* weight_scales;
  uint32_t x_scale_stride;
  ScaleFormat x_scale_format;
  ScaleFormat weight_scale_format;
  LinearOutput output;
  uint32_t tiles_per_leaf;
  uint32_t leaf_shift;  // log2 of the leaves
  void* y;
  uint32_t y_stride;  // elements
};

/// Shared memory: x, products of every block of 128 inputs, scales. Padding keeps the lanes of a
/// warp on different banks.
template <int kTokens, int kSplit>
struct DirectForm {
  static constexpr uint32_t kRows = 64 / kSplit;
  static constexpr uint32_t kQuads = kRows / 4;  // four rows of one token are added by one thread
  static constexpr uint32_t kColumns = kSplit * kTokens < 8 ? 8 : kSplit * kTokens;
  static constexpr uint32_t kSetBytes = kColumns * 128;  // x beside one tile of weights
  static constexpr uint32_t kTokenStride = kRows + 4;    // floats
  static constexpr uint32_t kPartStride = kTokens * kTokenStride + 4;
  static constexpr uint32_t kScaleStride = kTokens + 1;
  static constexpr uint32_t x_bytes(uint32_t blocks) { return blocks / kSplit * kSetBytes; }
  static constexpr uint32_t parts_bytes(uint32_t blocks) { return blocks * kPartStride * 4; }
  static constexpr uint32_t shared_bytes(uint32_t blocks) {
    return x_bytes(blocks) + parts_bytes(blocks) + blocks * kScaleStride * 4;
  }
};

/// Describes and starts a launch that plan_direct has taken.
void launch_direct_linear(const LinearParams& params,
                          const LinearPlan& plan,
                          const DirectPlan& direct,
                          device::StreamHandle stream);

/// Starts the kernel of one token tile; instantiated in linear_direct_sm90_t*.cu.
template <int kTokens>
void start_direct_linear(const DirectDeviceParams& params,
                         const DirectPlan& plan,
                         device::StreamHandle stream);

}  // namespace baleen::kernels
