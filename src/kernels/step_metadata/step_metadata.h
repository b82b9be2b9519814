#pragma once
// Derives in one launch what the layers of a pass need from a few numbers per request: positions,
// the rows of the raw window, where rows are written, compression plans and ring writes. Part of
// the captured graph; the owner of the graph owns all arrays.
//
//   kernels::step_metadata({.slots = slots, .lengths = lengths, .chain_len = 4, .max_requests = 64,
//                           .max_tokens = 256, .page_table = s, ...}, stream);
//
// Tokens of a pass: request after request, each with `chain_len` (decode 1, verify d) or its own
// `token_counts`, at positions length, length + 1, ... Everything past the real requests is
// padding, written anew in every launch. A request with a negative length or count, a slot below 0,
// or more tokens than its table has blocks is treated as padding and counted in `errors`: no
// consumer sees a negative length. Page 0 of every pool is the sink; a table entry of 0 means "no
// page". Sync: none; capture-safe; zero requests are legal. Any GPU. Oracle:
// step_metadata_oracle.h.

#include <cstdint>

#include "device/stream_handle.h"
#include "kernels/compressor_pool/compressor_plan.h"

namespace baleen::kernels {

inline constexpr int32_t kPageTokens = 256;      // of a full page and of a window page
inline constexpr int32_t kWindowTokens = 128;    // raw rows a query sees
inline constexpr int32_t kWindowTile = 64;       // lists are aligned to position div 64
inline constexpr int32_t kWindowCapacity = 192;  // window plus what the alignment may need
inline constexpr int32_t kMostStepRequests = 1024;

/// A plan for one ratio; null arrays are not written. Entries past the real number get
/// destination (ring row) -1.
struct CompressionOutputs {
  CompressorPlanEntry* plan = nullptr;  // [max_entries], stable order over tokens
  int32_t max_entries = 0;
  int32_t* num_entries = nullptr;    // i32 [1]
  RingWriteEntry* writes = nullptr;  // [max_writes], stable order over tokens
  int32_t max_writes = 0;
  int32_t* num_writes = nullptr;  // i32 [1]
  int32_t ring_size = 0;          // rows per window page (ratio 4) or per request slot (ratio 128)
};

struct StepMetadataParams {
  const int32_t* slots = nullptr;         // i32 [max_requests], row of the page table
  const int32_t* lengths = nullptr;       // i32 [max_requests], committed tokens before the pass
  const int32_t* token_counts = nullptr;  // i32 [max_requests]; null: chain_len each
  int32_t chain_len = 1;
  int32_t max_requests = 0;               // captured, at most kMostStepRequests
  const int32_t* num_requests = nullptr;  // i32 [1], real ones; null: max_requests
  int32_t max_tokens = 0;                 // captured
  const int32_t* page_table = nullptr;    // i32 [slots, table_blocks], full page of 256 positions
  int32_t table_blocks = 0;
  // Window page of a block: of its full page, or with `window_table` of the slot's block, where
  // sequences that share a full page have window pages of their own.
  const int32_t* window_pages = nullptr;  // i32 [full pages]; unused with window_table
  const int32_t* window_table = nullptr;  // i32 [slots, table_blocks] or null
  const int32_t* draft_begin = nullptr;   // i32 [max_requests], first visible position; may be null
  const int32_t* draft_hole = nullptr;    // i32 [max_requests], one hidden position; may be null

  // Per token [max_tokens]; each may be null.
  int32_t* token_requests = nullptr;  // row of the batch, -1 in padding
  int32_t* positions = nullptr;       // 0 in padding
  int32_t* causal_lengths = nullptr;  // position + 1; 0 in padding
  int32_t* window_slots = nullptr;    // row of the window pool to write, 0 in padding
  int32_t* c4_entries = nullptr;      // entries of ratio 4 a query sees
  int32_t* c128_entries = nullptr;    // entries of ratio 128 a query sees
  // i32 [max_tokens, kWindowCapacity]: visible window rows, oldest first; place i holds a position
  // that is i modulo 64; -1 elsewhere.
  int32_t* window_rows = nullptr;

  CompressionOutputs c4;
  CompressionOutputs c128;

  int32_t* counters = nullptr;  // i32 [num_counters], set to 0 for the kernels of this pass
  int32_t num_counters = 0;
  uint32_t* errors = nullptr;  // u32 [1], grows by the requests refused and plans that did not fit
};

void step_metadata(const StepMetadataParams& params, device::StreamHandle stream);

/// First position whose projected row a pass that ends at `end` must leave in the ring. With a ring
/// larger than the window the writer keeps what drafts may need after a rejection.
constexpr int32_t first_ring_write(int32_t end, int32_t ratio, int32_t ring_size) {
  const int32_t window = ratio == 4 ? 8 : ratio;
  const int32_t group = end / ratio * ratio - (ratio == 4 ? ratio : 0);
  const int32_t drafts = ring_size > window ? end - (ring_size - window + 2) : group;
  const int32_t first = group < drafts ? group : drafts;
  return first < 0 ? 0 : first;
}

}  // namespace baleen::kernels
