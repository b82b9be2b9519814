#pragma once
// What the products of wq_b still need before attention and index scores, for decode and verify
// steps, in one launch: every attention head is normed (no weight) and turned; every index head is
// turned, transformed and rounded to E2M1, and its scale goes into the head's weight.
//
//   kernels::query_finish({.heads = {.rows = q, .num_heads = 64, .out = q, ...},
//                          .index = {.rows = index_q, .weights = a, ...}, .num_tokens = 4},
//                          stream);
//
//   head:   q  = bf16(rotate(bf16(x * (mean(x^2) + eps)^-1/2)))               512 dims
//   index:  k  = e2m1 in groups of 32 of bf16(H bf16(rotate(x)) / sqrt(128))   128 dims
//           codes = e4m3(k / S), weight_out = weight * S, S = largest group scale / 64
// The codes hold k without loss while the scales of a head's groups differ by at most 2^14; a
// positive S passes through relu(<Q, K>), so the score is that of k. One warp per head; the bits of
// a head depend on its own values alone. `out` may be `rows`. A role whose rows are null is left
// out. Errors: shapes outside the stated ones are a programmer's error (checked). Sync: none;
// capture-safe; zero tokens are legal. Any GPU. Oracle: query_finish_oracle.h.

#include <cstdint>

#include "device/stream_handle.h"

namespace baleen::kernels {

struct QueryHeadsRole {
  const uint16_t* rows = nullptr;  // bf16 [num_tokens, num_heads, 512], 16-byte aligned
  int32_t num_heads = 0;
  float eps = 0.0F;
  const float* frequencies = nullptr;  // f32 [32], radians per position, the layer's table
  uint16_t* out = nullptr;             // bf16 [num_tokens, num_heads, 512]
};

struct IndexHeadsRole {
  const uint16_t* rows = nullptr;  // bf16 [num_tokens, num_heads, 128], 8-byte aligned
  int32_t num_heads = 0;
  const float* frequencies = nullptr;  // f32 [32] of the compressed table
  const float* weights = nullptr;      // f32 [num_tokens, num_heads]
  uint8_t* codes = nullptr;            // e4m3 [num_tokens, num_heads, 128], out, 4-byte aligned
  float* weights_out = nullptr;        // f32 [num_tokens, num_heads], out; may be `weights`
};

struct QueryFinishParams {
  QueryHeadsRole heads = {};
  IndexHeadsRole index = {};
  const int32_t* positions = nullptr;  // i32 [num_tokens]
  int32_t num_tokens = 0;
  bool programmatic = false;  // may start before its predecessor in the stream has ended
};

void query_finish(const QueryFinishParams& params, device::StreamHandle stream);

}  // namespace baleen::kernels
