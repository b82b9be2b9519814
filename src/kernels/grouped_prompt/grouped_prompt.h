#pragma once
// Grouped output projection for a pass of prompts (up to 1,024 tokens): what
// kernels/grouped_projection computes for e4m3 weights with a quantised result, bit for bit, in a
// form for many tokens. Where that reads and converts the weights again for every 32 tokens, this
// does so for every 128.
//
//   if (grouped_prompt_serves(params)) {   // GroupedProjectionParams as for the other form
//     launch_grouped_prompt(params, stream);
//   }
//
// Packed weights, scales, leaves, rounding points and the quantised result are those of
// grouped_projection.h; `programmatic` and `tuning` are not used. Errors: a shape outside
// supports_grouped_prompt() is a programmer error (checked). Sync: none; capture-safe; allocates
// nothing on the device. Needs compute capability 9.0. Oracle: grouped_projection_oracle.h.

#include "device/stream_handle.h"
#include "kernels/grouped_projection/grouped_projection.h"

namespace baleen::kernels {

/// Whether the form covers the shape: at least one token, e4m3 weights with UE8M0 scales, a
/// quantised result, outputs of a group in multiples of 128, sums of at most two leaves.
bool supports_grouped_prompt(const GroupedProjectionParams& params);

/// Whether the form is the better one: it covers the shape and has work for the whole card, more
/// tokens than the other form takes at once and enough tiles.
bool grouped_prompt_serves(const GroupedProjectionParams& params);

void launch_grouped_prompt(const GroupedProjectionParams& params, device::StreamHandle stream);

}  // namespace baleen::kernels
