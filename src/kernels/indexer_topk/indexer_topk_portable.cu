// Top-k for any length and any GPU: one block per row finds the k-th key digit by digit, re-reading
// the row, then writes entries in order by block scans.
#include "base/check.h"
#include "device/launch.h"
#include "kernels/indexer_topk/final_choice.cuh"
#include "kernels/indexer_topk/indexer_topk.h"

namespace baleen::kernels {
namespace {

constexpr uint32_t kDigits = 256;

struct PortableRow {
  const float* scores;
  uint32_t length;
  uint32_t k;
};

/// The k-th best key, and how many of its holders are among the k best.
__device__ void find_key(const PortableRow& row, uint32_t* histogram, uint32_t* result) {
  uint32_t prefix = 0;
  uint32_t need = row.k;
  for (int shift = 24; shift >= 0; shift -= 8) {
    if (threadIdx.x < kDigits) {
      histogram[threadIdx.x] = 0;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < row.length; i += blockDim.x) {
      const uint32_t key = score_key(row.scores[i]);
      if (shift == 24 || (key >> (shift + 8)) == prefix >> (shift + 8)) {
        atomicAdd(&histogram[(key >> shift) & 255], 1U);
      }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      uint32_t digit = kDigits - 1;
      while (histogram[digit] < need) {
        need -= histogram[digit--];
      }
      result[0] = prefix | (digit << shift);
      result[1] = need;
    }
    __syncthreads();
    prefix = result[0];
    need = result[1];
  }
}

__global__ __launch_bounds__(kTopkThreads) void portable_kernel(IndexerTopkParams params,
                                                                uint32_t page_shift) {
  __shared__ uint32_t histogram[kDigits];
  __shared__ uint32_t result[2];
  __shared__ uint32_t warp_sums[2][kTopkWarps];
  const uint32_t row_number = blockIdx.x;
  const auto k = static_cast<uint32_t>(params.k);
  const int64_t begin = row_number * params.list_stride;
  const RowOutput output{
      params.indices == nullptr ? nullptr : params.indices + begin,
      params.slots == nullptr ? nullptr : params.slots + begin,
      params.slots == nullptr
          ? nullptr
          : params.page_table + row_number / static_cast<uint32_t>(params.rows_per_request) *
                                    params.page_table_stride,
      page_shift};
  const PortableRow row{params.scores + row_number * params.score_stride,
                        static_cast<uint32_t>(max(0, params.lengths[row_number])),
                        k};
  uint32_t key = 0;
  uint32_t ties = 0;
  if (row.length > k) {
    find_key(row, histogram, result);
    key = result[0];
    ties = result[1];
  }
  // From here on: write every key above `key`, and the first `ties` that equal it.
  uint32_t written = 0;
  uint32_t ties_seen = 0;
  for (uint32_t base = 0; base < row.length; base += kTopkThreads) {
    const uint32_t entry = base + threadIdx.x;
    const uint32_t mine = entry < row.length ? score_key(row.scores[entry]) : kAbsentKey;
    const uint32_t lane_below = (1U << (threadIdx.x % 32)) - 1;
    const bool tie = entry < row.length && mine == key;
    const uint32_t tie_lanes = __ballot_sync(kFullMask, tie);
    const uint32_t warp = threadIdx.x / 32;
    if (threadIdx.x % 32 == 0) {
      warp_sums[0][warp] = static_cast<uint32_t>(__popc(tie_lanes));
    }
    __syncthreads();
    uint32_t tie_rank = ties_seen + static_cast<uint32_t>(__popc(tie_lanes & lane_below));
    for (uint32_t w = 0; w < kTopkWarps; ++w) {
      tie_rank += w < warp ? warp_sums[0][w] : 0U;
      ties_seen += warp_sums[0][w];
    }
    const bool kept = mine > key || (tie && tie_rank < ties);
    const uint32_t kept_lanes = __ballot_sync(kFullMask, kept);
    if (threadIdx.x % 32 == 0) {
      warp_sums[1][warp] = static_cast<uint32_t>(__popc(kept_lanes));
    }
    __syncthreads();
    uint32_t place = written + static_cast<uint32_t>(__popc(kept_lanes & lane_below));
    for (uint32_t w = 0; w < kTopkWarps; ++w) {
      place += w < warp ? warp_sums[1][w] : 0U;
      written += warp_sums[1][w];
    }
    if (kept) {
      output.write(place, entry);
    }
  }
  for (int64_t i = written + threadIdx.x; i < params.list_stride; i += kTopkThreads) {
    output.write_none(i);
  }
}

}  // namespace

void launch_indexer_topk_portable(const IndexerTopkParams& params, cudaStream_t stream) {
  BALEEN_CHECK(params.k >= 1 && params.list_stride >= params.k && params.rows_per_request >= 1 &&
                   (params.page_entries & (params.page_entries - 1)) == 0,
               "k={} list_stride={} rows_per_request={} page_entries={}",
               params.k,
               params.list_stride,
               params.rows_per_request,
               params.page_entries);
  if (params.num_rows == 0) {
    return;
  }
  uint32_t page_shift = 0;
  while ((1 << page_shift) < params.page_entries) {
    ++page_shift;
  }
  device::launch(
      stream,
      {.grid = dim3(static_cast<uint32_t>(params.num_rows)), .block = dim3(kTopkThreads)},
      portable_kernel,
      params,
      page_shift);
}

}  // namespace baleen::kernels
