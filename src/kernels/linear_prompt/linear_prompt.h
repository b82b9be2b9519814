#pragma once
// Linear layers for a pass of prompts (up to 1,024 tokens): what kernels/linear computes for e4m3
// weights and activations, bit for bit, in a form for many tokens. Where that reads the weights
// again for every 64 tokens, this multiplies tiles of 128 tokens by 128 outputs.
//
//   if (linear_prompt_serves(params)) {   // LinearParams as for launch_linear
//     launch_linear_prompt(params, stream);
//   }
//
// Packed weights, scales, rounding points and sums are those of linear.h: the partial product of
// each 128 inputs is added in FP32 after scaling, in ascending order within a leaf, and the leaves
// are those that launch_linear would cut for the same tasks. `programmatic` and `tuning` are not
// used. Errors: tasks outside supports_linear_prompt() are a programmer error (checked). Sync:
// none; capture-safe; allocates nothing on the device. Needs compute capability 9.0. Oracle:
// linear_oracle.h.

#include "device/stream_handle.h"
#include "kernels/linear/linear.h"

namespace baleen::kernels {

/// Whether the form covers the tasks: at least one token, e4m3 tasks of one group with bf16
/// results, outputs in multiples of 128 and inputs of 512, sums of at most two leaves.
bool supports_linear_prompt(const LinearParams& params);

/// Whether the form is the better one: it covers the tasks and has work for the whole card, more
/// tokens than the other form takes at once and enough tiles.
bool linear_prompt_serves(const LinearParams& params);

void launch_linear_prompt(const LinearParams& params, device::StreamHandle stream);

}  // namespace baleen::kernels
