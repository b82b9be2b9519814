// Index scores and top-k behind predecessors that write late, with programmatic edges: whatever is
// read too early is seen, because the late bytes stand in for NaN.
#include <algorithm>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "device/buffer.h"
#include "device/stream.h"
#include "kernels/indexer_scores/delayed_copy.h"
#include "kernels/indexer_scores/index_key_pool.h"
#include "kernels/indexer_scores/indexer_scores.h"
#include "kernels/indexer_topk/indexer_topk.h"
#include "kernels/testing/gpu_test.h"

namespace baleen::kernels {
namespace {

using testing::IndexKeyPool;

constexpr int32_t kPicks = 512;

/// Bytes of a device array that are painted with NaN and come back by a late copy.
class LateBytes {
 public:
  LateBytes(void* place, int64_t bytes) : place_(place), good_(bytes) {
    BALEEN_CUDA_CHECK(cudaMemcpy(good_.data(), place, good_.bytes(), cudaMemcpyDefault));
  }
  void paint() const { BALEEN_CUDA_CHECK(cudaMemset(place_, 0xFF, good_.bytes())); }
  void restore_late(cudaStream_t stream) const {
    testing::launch_delayed_copy(place_, good_.data(), good_.count(), 20, stream);
  }

 private:
  void* place_;
  device::Buffer<uint8_t> good_;
};

class IndexerChainGpu : public testing::GpuTest {
 protected:
  void check(const std::vector<int32_t>& lengths, const std::vector<int32_t>& stable, int32_t q) {
    const IndexKeyPool pool({.lengths = lengths, .queries_per_request = q, .seed = 12});
    auto pages = device::Buffer<uint8_t>::from_host(pool.pages);
    const auto table = device::Buffer<int32_t>::from_host(pool.table);
    const auto seen = device::Buffer<int32_t>::from_host(pool.lengths);
    auto queries = device::Buffer<uint8_t>::from_host(pool.queries);
    auto weights = device::Buffer<float>::from_host(pool.head_weights);
    const auto stable_entries = device::Buffer<int32_t>::from_host(stable);
    const int32_t rows = pool.requests * q;
    const int64_t stride = pool.table_stride * kIndexPageEntries;
    device::Buffer<float> scores(rows * stride);
    device::Buffer<int32_t> picks(int64_t{rows} * kPicks);
    IndexerScoresParams score_params{.queries = queries.data(),
                                     .head_weights = weights.data(),
                                     .key_pages = pages.data(),
                                     .num_pages = pool.num_pages,
                                     .page_table = table.data(),
                                     .page_table_stride = pool.table_stride,
                                     .lengths = seen.data(),
                                     .scores = scores.data(),
                                     .score_stride = stride,
                                     .num_requests = pool.requests,
                                     .queries_per_request = q};
    IndexerTopkParams topk_params{.scores = scores.data(),
                                  .score_stride = stride,
                                  .lengths = seen.data(),
                                  .indices = picks.data(),
                                  .list_stride = kPicks,
                                  .max_entries = stride,
                                  .num_rows = rows,
                                  .k = kPicks};
    scores.fill_bytes(0xFF);
    launch_indexer_scores(score_params, stream());
    launch_indexer_topk(topk_params, stream());
    synchronize();
    const std::vector<float> want_scores = scores.to_host();
    const std::vector<int32_t> want = picks.to_host();

    std::vector<LateBytes> late;
    for (std::size_t r = 0; r < lengths.size(); ++r) {
      for (int32_t page = stable[r] / 64; page * 64 < lengths[r]; ++page) {
        const int64_t id = pool.table[r * static_cast<std::size_t>(pool.table_stride) +
                                      static_cast<std::size_t>(page)];
        late.emplace_back(pages.data() + id * kIndexPageBytes, kIndexPageBytes);
      }
    }
    late.emplace_back(queries.data(), queries.count());
    late.emplace_back(weights.data(), weights.count() * 4);
    score_params.programmatic = true;
    score_params.stable_entries = stable_entries.data();
    topk_params.programmatic = true;
    for (int round = 0; round < 10; ++round) {
      for (const LateBytes& bytes : late) {
        bytes.paint();
      }
      scores.fill_bytes(0xFF);
      picks.fill_bytes(0x5A);
      const device::Graph graph = device::Graph::capture(owned_stream(), [&](cudaStream_t s) {
        for (const LateBytes& bytes : late) {
          bytes.restore_late(s);
        }
        launch_indexer_scores(score_params, s);
        launch_indexer_topk(topk_params, s);
      });
      graph.launch(owned_stream());
      synchronize();
      const std::vector<float> got_scores = scores.to_host();
      ASSERT_EQ(std::memcmp(got_scores.data(), want_scores.data(), got_scores.size() * 4), 0)
          << "round " << round;
      ASSERT_EQ(picks.to_host(), want) << "round " << round;
    }
  }
};

TEST_F(IndexerChainGpu, OneRequestReadsOnlyStablePagesEarly) {
  ASSERT_NO_FATAL_FAILURE(check({20'000}, {19'900}, 1));
  ASSERT_NO_FATAL_FAILURE(check({3000}, {0}, 2));
}

TEST_F(IndexerChainGpu, BatchesReadOnlyStablePagesEarly) {
  ASSERT_NO_FATAL_FAILURE(check({700, 9000, 5, 64}, {690, 8996, 0, 63}, 1));
  ASSERT_NO_FATAL_FAILURE(check({700, 9000, 5}, {690, 8996, 0}, 4));
}

}  // namespace
}  // namespace baleen::kernels
