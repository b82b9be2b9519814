#pragma once
// The embedding of a step: one row of the table per token id.
//
//   kernels::token_rows({.table = embed, .ids = ids, .out = x, .vocab = 129280, .width = 4096,
//                        .num_tokens = 4}, stream);
//
// Ids outside the vocabulary (padding) give a row of zeros. Errors: a width that is no multiple of
// 8 is a programmer's error (checked). Sync: none; capture-safe; zero tokens are legal. Any GPU.

#include <cstdint>

#include "device/stream_handle.h"

namespace baleen::kernels {

struct TokenRowsParams {
  const uint16_t* table = nullptr;  // bf16 [vocab, width], 16-byte aligned
  const int32_t* ids = nullptr;     // i32 [num_tokens]
  uint16_t* out = nullptr;          // bf16 [num_tokens, width], 16-byte aligned
  int32_t vocab = 0;
  int32_t width = 0;
  int32_t num_tokens = 0;
  bool programmatic = false;  // may start before its predecessor in the stream has ended
};

void token_rows(const TokenRowsParams& params, device::StreamHandle stream);

}  // namespace baleen::kernels
