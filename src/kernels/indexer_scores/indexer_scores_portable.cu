// Index scores for any GPU: one thread per score, decoded keys in registers, FP32 throughout.
#include "base/check.h"
#include "device/launch.h"
#include "kernels/indexer_scores/indexer_scores.h"
#include "numerics/bfloat16.h"
#include "numerics/float8.h"

namespace baleen::kernels {
namespace {

constexpr uint32_t kThreads = kIndexPageEntries;  // one page per block

/// Block (p, r) scores page p for query row r.
__global__ __launch_bounds__(kThreads) void portable_kernel(IndexerScoresParams params) {
  __shared__ float heads[kScoreHeads * kScoreDims];
  const auto row = static_cast<int32_t>(blockIdx.y);
  const auto page = static_cast<int64_t>(blockIdx.x);
  const int32_t request = row / params.queries_per_request;
  int32_t longest = 0;
  for (int32_t j = 0; j < params.queries_per_request; ++j) {
    longest = max(longest, params.lengths[request * params.queries_per_request + j]);
  }
  if (page * kIndexPageEntries >= longest) {
    return;
  }
  const uint8_t* query = params.queries + row * kScoreHeads * kScoreDims;
  for (uint32_t i = threadIdx.x; i < kScoreHeads * kScoreDims; i += kThreads) {
    heads[i] = numerics::e4m3_to_float(query[i]);
  }
  __syncthreads();
  const int64_t entry = page * kIndexPageEntries + threadIdx.x;
  float score = __int_as_float(static_cast<int>(0xFF800000U));
  if (entry < params.lengths[row]) {
    const int64_t id = params.page_table[request * params.page_table_stride + page];
    const uint8_t* base = params.key_pages + id * kIndexPageBytes;
    float key[kScoreDims];
#pragma unroll
    for (int i = 0; i < kScoreDims; ++i) {
      key[i] = numerics::e4m3_to_float(base[threadIdx.x * kScoreDims + static_cast<uint32_t>(i)]);
    }
    score = 0.0F;
    for (int h = 0; h < kScoreHeads; ++h) {
      float dot = 0.0F;
#pragma unroll
      for (int i = 0; i < kScoreDims; ++i) {
        dot = fmaf(heads[h * kScoreDims + i], key[i], dot);
      }
      score = fmaf(fmaxf(dot, 0.0F), params.head_weights[row * kScoreHeads + h], score);
    }
    score *= reinterpret_cast<const float*>(base + kIndexPageEntries * kScoreDims)[threadIdx.x];
    if (params.rounding == ScoreRounding::kBf16) {
      score = numerics::round_to_bf16(score);
    }
  }
  params.scores[row * params.score_stride + entry] = score;
}

}  // namespace

void launch_indexer_scores_portable(const IndexerScoresParams& params,
                                    int64_t max_pages,
                                    device::StreamHandle stream) {
  BALEEN_CHECK(
      params.queries_per_request >= 1 && params.score_stride >= max_pages * kIndexPageEntries,
      "queries_per_request={} score_stride={} max_pages={}",
      params.queries_per_request,
      params.score_stride,
      max_pages);
  const int64_t rows = int64_t{params.num_requests} * params.queries_per_request;
  if (rows == 0 || max_pages == 0) {
    return;
  }
  device::launch(stream,
                 {.grid = dim3(static_cast<uint32_t>(max_pages), static_cast<uint32_t>(rows)),
                  .block = dim3(kThreads)},
                 portable_kernel,
                 params);
}

}  // namespace baleen::kernels
