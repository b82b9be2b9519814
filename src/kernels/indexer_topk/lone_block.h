#pragma once
// Top-k of rows that one block holds in registers with few scores a thread: no bound and no
// candidate list, the histogram takes all scores. Part of the Hopper path; callers use
// launch_indexer_topk.
//
//   if (params.max_entries <= kLoneEntries) { launch_indexer_topk_lone(params, stream); }

#include <cstdint>

#include "device/stream_handle.h"
#include "kernels/indexer_topk/indexer_topk.h"

namespace baleen::kernels {

inline constexpr int64_t kLoneEntries = 8192;

/// `params` has passed the checks of launch_indexer_topk_sm90 and max_entries <= kLoneEntries.
void launch_indexer_topk_lone(const IndexerTopkParams& params, device::StreamHandle stream);

}  // namespace baleen::kernels
