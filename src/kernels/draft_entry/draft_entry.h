#pragma once
// What the draft layer (MTP) does before its block, apart from the two products: the RMSNorm of its
// inputs with the e4m3 rounding of the product behind it, and the streams that the block begins
// with.
//
//   norm_codes({.rows = streams, .weight = hnorm, .codes = c, .scales = s, .num_rows = 4 * m,
//               .width = 4096, .eps = eps}, stream);
//   ... linears: h_proj of the streams, e_proj of the next token's embedding ...
//   join_streams({.token = e, .streams = h, .out = x, .num_tokens = m, .width = 4096}, stream);
//
//   norm_codes:   y = bf16(weight * (x * (mean(x^2) + eps)^-1/2)); codes, scales = e4m3 and UE8M0
//                 of y in blocks of 128
//   join_streams: out[t][k] = bf16(token[t] + streams[t][k])
// The bits of a row depend on the row alone. Errors: widths that are no multiple of 256, or above
// 8,192, are a programmer's error (checked). Sync: none; capture-safe; zero rows are legal. Any
// GPU. Oracle: draft_entry_oracle.h.

#include <cstdint>

#include "device/stream_handle.h"

namespace baleen::kernels {

struct NormCodesParams {
  const uint16_t* rows = nullptr;  // bf16 [num_rows, width], 16-byte aligned
  const float* weight = nullptr;   // f32 [width], 16-byte aligned
  uint8_t* codes = nullptr;        // e4m3 [num_rows, width], out, 8-byte aligned
  uint8_t* scales = nullptr;       // UE8M0 [num_rows, width / 128], out
  int32_t num_rows = 0;
  int32_t width = 0;
  float eps = 0.0F;
};
void norm_codes(const NormCodesParams& params, device::StreamHandle stream);

struct JoinStreamsParams {
  const uint16_t* token = nullptr;    // bf16 [num_tokens, width], 16-byte aligned
  const uint16_t* streams = nullptr;  // bf16 [num_tokens, 4, width], 16-byte aligned
  uint16_t* out = nullptr;            // bf16 [num_tokens, 4, width]; may be `streams`
  int32_t num_tokens = 0;
  int32_t width = 0;
};
void join_streams(const JoinStreamsParams& params, device::StreamHandle stream);

}  // namespace baleen::kernels
