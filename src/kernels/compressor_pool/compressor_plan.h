#pragma once
// One record per group of tokens that a pass completes: where its rows come from and where its
// entry goes. Made once per pass by the step's metadata, read by every compressor of that ratio in
// every layer. Plain data, 32 bytes, read as two 16-byte loads.
//
//   plan[i] = {.end_row = 11, .rows_from_pass = 8, .end_position = 11, .destination = 66};
//   plan[j].destination = kNoEntry;   // padding up to the captured maximum
//
// A window is what one entry pools: 8 tokens (the group before and the own one) at ratio 4, the 128
// tokens of the group at ratio 128. Rows of tokens older than the pass come from the ring of the
// request: row base + position % ring_size. A group never crosses a page of 256 tokens, so one base
// per group is enough.

#include <cstdint>

namespace baleen::kernels {

inline constexpr int32_t kNoEntry = -1;

struct alignas(16) CompressorPlanEntry {
  int32_t end_row = 0;             // row of the pass that holds the group's last token
  int32_t rows_from_pass = 0;      // newest tokens of the window in this pass, 1 .. window
  int32_t end_position = 0;        // of the last token; (end_position + 1) % ratio == 0
  int32_t destination = kNoEntry;  // global row of the entry's pool
  int32_t carry_ring_base = 0;     // ring row of the group before (ratio 4)
  int32_t own_ring_base = 0;       // ring row of the own group
  int32_t request = 0;             // row of the batch, for reports
  int32_t reserved = 0;
};
static_assert(sizeof(CompressorPlanEntry) == 32);

/// One record per token whose projected row a later pass may read: row of the pass -> ring row.
struct alignas(16) RingWriteEntry {
  int32_t row = 0;        // of the pass
  int32_t ring_row = -1;  // -1: padding
  int32_t position = 0;   // of the token: chooses the row of the position bias
  int32_t reserved = 0;
};
static_assert(sizeof(RingWriteEntry) == 16);

}  // namespace baleen::kernels
