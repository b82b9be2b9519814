#pragma once
// Codes what the indexers picked, on the card, as cache/pick_codec.h writes it: a bitmap, or
// ascending numbers as low parts and unary high parts (numerics/pick_shape.h says which and how
// large). A host that records choices then copies the bytes of records instead of every number.
//
//   pick_codes({.picks = picks, .layer_stride = 64 * 512, .visible = c4_entries, .codes = codes,
//       .token_stride = 21 * 400, .errors = errors, .num_layers = 21, .num_tokens = 64,
//       .topk = 512}, stream);
//
// A token's sets stand one behind the other, layer by layer, without gaps; nothing is written for a
// token that sees no more than `topk` entries. Picks that are no ascending set of visible entries
// are counted in `errors`, and their bytes are undefined. Sync: none; capture-safe; allocates
// nothing; zero tokens or layers are legal. Oracle: pick_codes_oracle.h.

#include <cstdint>

#include "device/stream_handle.h"

namespace baleen::kernels {

inline constexpr int32_t kMostCodedPicks = 2048;

struct PickCodesParams {
  const int32_t* picks = nullptr;  // i32 [num_layers][num_tokens, topk], layers layer_stride apart
  int64_t layer_stride = 0;        // numbers
  const int32_t* visible = nullptr;  // i32 [num_tokens], entries that a token sees
  uint8_t* codes = nullptr;          // u8 [num_tokens, token_stride], out
  int64_t token_stride = 0;          // bytes, room for the sets of all layers
  uint32_t* errors = nullptr;        // u32 [1], added to
  int32_t num_layers = 0;
  int32_t num_tokens = 0;
  int32_t topk = 0;  // 1 to kMostCodedPicks
};

void pick_codes(const PickCodesParams& params, device::StreamHandle stream);

}  // namespace baleen::kernels
