#include "base/check.h"
#include "device/launch.h"
#include "kernels/ptx/pdl.cuh"
#include "kernels/sampling/draft_verification.h"

namespace baleen::kernels {
namespace {

constexpr int kWarpsPerBlock = 4;
constexpr uint32_t kWholeMask = 0xFFFFFFFFU;

/// One warp per request, one lane per position of the chain.
__global__ void __launch_bounds__(kWarpsPerBlock * 32)
    verify_drafts_kernel(const __grid_constant__ DraftVerificationParams p) {
  ptx::wait_for_predecessor();
  const int request =
      static_cast<int>(blockIdx.x) * kWarpsPerBlock + static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (request >= p.num_requests) {
    return;
  }
  const int64_t base = int64_t{request} * p.chain_len;
  SampledRow row = {static_cast<int32_t>(SamplingStatus::kNoCandidate), -1, 0.0F, 0};
  if (lane < p.chain_len) {
    row = p.sampled[base + lane];
  }
  const bool drawn = row.status == static_cast<int32_t>(SamplingStatus::kDrawn);
  const int32_t draft = lane + 1 < p.chain_len ? p.chain[base + lane + 1] : -1;
  // The next position counts when this one was drawn as the draft says.
  const uint32_t goes_on =
      __ballot_sync(kWholeMask, drawn && lane + 1 < p.chain_len && draft == row.id);
  const int accepted = __ffs(~goes_on);  // position of the first that does not go on, plus one
  const bool counts_here = lane < accepted;
  const uint32_t wrong = __ballot_sync(kWholeMask, counts_here && !drawn);
  if (p.tokens != nullptr && lane < p.chain_len) {
    p.tokens[base + lane] = counts_here ? row.id : -1;
  }
  if (counts_here && p.counts != nullptr && row.id >= 0) {
    const int32_t counts_row = p.counts_rows[request];
    if (counts_row >= 0) {
      atomicAdd(p.counts + counts_row * p.counts_stride + row.id, 1);
    }
  }
  if (lane == accepted - 1) {
    p.accepted[request] = accepted;
    p.next_ids[request] = row.id;
    if (p.lengths != nullptr) {
      p.lengths[request] += accepted;
    }
    if (p.statuses != nullptr) {  // only the last accepted position can be the wrong one
      p.statuses[request] = wrong != 0 ? row.status : static_cast<int32_t>(SamplingStatus::kDrawn);
    }
  }
}

}  // namespace

void verify_drafts(const DraftVerificationParams& p, device::StreamHandle stream) {
  BALEEN_CHECK(p.num_requests >= 0 && p.chain_len >= 1 && p.chain_len <= kMostChainTokens,
               "num_requests={} chain_len={}",
               p.num_requests,
               p.chain_len);
  if (p.num_requests == 0) {
    return;
  }
  BALEEN_CHECK(p.sampled != nullptr && p.chain != nullptr && p.accepted != nullptr &&
               p.next_ids != nullptr && (p.counts == nullptr || p.counts_rows != nullptr));
  device::launch(
      stream,
      {.grid = dim3(static_cast<unsigned>((p.num_requests + kWarpsPerBlock - 1) / kWarpsPerBlock)),
       .block = dim3(kWarpsPerBlock * 32)},
      verify_drafts_kernel,
      p);
}

}  // namespace baleen::kernels
