#pragma once
// Decides how many drafted tokens of each request stand. Draws are coupled: at every position of
// the chain the token was drawn exactly as without drafts, so a draft is accepted when it equals
// the drawn token, and the first drawn token that differs is the next one. A chain of one is plain
// decode.
//
//   kernels::verify_drafts({.sampled = out, .chain = chain, .chain_len = 4, .num_requests = bs,
//                           .accepted = a, .next_ids = next, .lengths = lengths}, stream);
//
// chain = [last verified token, draft 1 .. draft d - 1]; row i of `sampled` was drawn after chain
// token i. Accepted a is in 1 .. d: a - 1 drafts and the drawn token after them. A row that is not
// kDrawn ends the run: its token (if any) is the last. Sync: none; capture-safe; zero requests are
// legal. Any GPU.

#include <cstdint>

#include "device/stream_handle.h"
#include "kernels/sampling/sampling_rows.h"

namespace baleen::kernels {

inline constexpr int32_t kMostChainTokens = 32;

struct DraftVerificationParams {
  const SampledRow* sampled = nullptr;  // [num_requests, chain_len]
  const int32_t* chain = nullptr;       // i32 [num_requests, chain_len]
  int32_t chain_len = 1;                // 1 .. kMostChainTokens
  int32_t num_requests = 0;
  int32_t* accepted = nullptr;  // i32 [num_requests], out
  int32_t* next_ids = nullptr;  // i32 [num_requests], out: the last accepted token
  int32_t* tokens = nullptr;   // i32 [num_requests, chain_len], out, -1 after the accepted; or null
  int32_t* lengths = nullptr;  // i32 [num_requests], committed lengths, advanced; or null
  int32_t* statuses = nullptr;  // i32 [num_requests], out: first status that is not kDrawn; or null
  int32_t* counts = nullptr;    // i32 [.., counts_stride], penalty counts, advanced; or null
  int64_t counts_stride = 0;
  const int32_t* counts_rows = nullptr;  // i32 [num_requests], row of `counts` or -1
};

void verify_drafts(const DraftVerificationParams& params, device::StreamHandle stream);

}  // namespace baleen::kernels
