#pragma once
// What the host hands to the kernel of grouped_prompt, by value. Filled by grouped_prompt.cpp, read
// by grouped_prompt_sm90.cu.

#include <cstdint>

#include <cuda.h>

#include "device/stream_handle.h"

namespace baleen::kernels::grouped_prompt {

inline constexpr int32_t kTileTokens = 128;
inline constexpr int32_t kTileOutputs = 128;

struct Task {
  const uint8_t* weight;         // packed tiles of 64 outputs x 128 inputs, in fragments
  const uint8_t* weight_scales;  // UE8M0 [groups * outputs / 128, blocks]
  uint8_t* y;                    // e4m3 [num_tokens, groups * outputs]
  uint8_t* y_scales;             // UE8M0 [num_tokens, groups * outputs / 128]
  int32_t num_tokens;
  int32_t token_tiles;
  int32_t output_tiles;  // of all groups
  int32_t tiles_per_group;
  int32_t blocks;       // of 128 inputs
  int32_t leaf_blocks;  // of one leaf; `blocks` where there is one
};

/// `x`: [chunks of 64 inputs][tokens][64 inputs] of bf16, 128-byte swizzle.
void start(const Task& task, const CUtensorMap& x, device::StreamHandle stream);

}  // namespace baleen::kernels::grouped_prompt
