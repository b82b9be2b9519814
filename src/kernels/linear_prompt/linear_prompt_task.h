#pragma once
// What the host hands to the kernel of linear_prompt, by value. Filled by linear_prompt.cpp, read
// by linear_prompt_sm90.cu.

#include <array>
#include <cstdint>

#include <cuda.h>

#include "device/stream_handle.h"
#include "kernels/linear/linear.h"

namespace baleen::kernels::linear_prompt {

inline constexpr int32_t kTileTokens = 128;
inline constexpr int32_t kTileOutputs = 128;

struct Task {
  const uint8_t* weight;         // packed tiles of 64 outputs x 128 inputs
  const uint8_t* weight_scales;  // UE8M0 [outputs / 128, blocks]
  const uint8_t* x_scales;       // UE8M0 [num_tokens, x_scale_stride]
  uint16_t* y;
  int64_t x_scale_stride;
  int64_t y_stride;
  int32_t blocks;       // of 128 inputs
  int32_t leaf_blocks;  // of one leaf; `blocks` where there is one
  int32_t item_begin;   // items of a task: tile of outputs major, tile of tokens minor
};

struct Params {
  int32_t num_tasks;
  int32_t num_items;
  int32_t num_tokens;
  int32_t token_tiles;
  Task tasks[kMaxLinearTasks];
};

/// x of every task as [tokens][inputs] of bytes, 128-byte swizzle.
struct Maps {
  CUtensorMap x[kMaxLinearTasks];
};

void start(const Params& params, const Maps& maps, device::StreamHandle stream);

}  // namespace baleen::kernels::linear_prompt
