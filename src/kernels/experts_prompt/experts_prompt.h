#pragma once
// Mixture of experts of a pass of prompts (up to 1,024 tokens): what kernels/experts computes, bit
// for bit, in a form for many tokens per expert. Where that reads an expert's weights once for
// every 8 tokens, this reads them once for 32.
//
//   launch_experts_prompt(params, stream);   // ExpertsParams as for launch_experts, but for
//                                            // .workspace = experts_prompt_workspace(params).bytes
//
// Six launches, none of which waits for another block: groups are listed, tokens copied to where
// their groups want them, up product and SwiGLU, hidden rows to e4m3, down product, sum over slots.
// The workspace needs no clearing. Contract, order of sums, rounding points and errors as in
// experts.h; `programmatic` is not used. Sync: none; capture-safe; allocates nothing; zero tokens
// are legal.

#include <cstdint>

#include "device/stream_handle.h"
#include "kernels/experts/experts.h"

namespace baleen::kernels {

inline constexpr int kExpertsPromptLaunches = 6;
inline constexpr int kPromptGroupUnits = 4;  // units of 8 entries that share a read of weights

/// Places inside the workspace, in bytes; every one a multiple of 256.
struct ExpertsPromptWorkspace {
  int64_t num_groups = 0;     // i32 [1]
  int64_t groups = 0;         // experts_prompt::Group [units]
  int64_t input_codes = 0;    // e4m3 [units, 8, hidden], as the products read them
  int64_t input_scales = 0;   // bf16 [units, 8, hidden / 128]
  int64_t hidden_rows = 0;    // bf16 [num_tokens * slots, width], in list order
  int64_t hidden_codes = 0;   // e4m3 [units, 8, width]
  int64_t hidden_scales = 0;  // bf16 [units, 8, width / 128]
  int64_t slot_rows = 0;      // bf16 or f32 [num_tokens, slots, hidden]
  int64_t bytes = 0;
};
ExpertsPromptWorkspace experts_prompt_workspace(const ExpertsParams& params);

/// Whether the shape is covered: experts_supported, rows in pairs of tiles.
bool experts_prompt_supported(const ExpertsParams& params);

void launch_experts_prompt(const ExpertsParams& params, device::StreamHandle stream);

}  // namespace baleen::kernels
