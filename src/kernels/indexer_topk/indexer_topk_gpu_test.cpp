// Every implementation of top-k against the oracle: equal lists, no tolerance.
#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "device/buffer.h"
#include "device/stream.h"
#include "kernels/indexer_topk/indexer_topk.h"
#include "kernels/indexer_topk/indexer_topk_oracle.h"
#include "kernels/indexer_topk/score_samples.h"
#include "kernels/testing/gpu_test.h"

namespace baleen::kernels {
namespace {

using testing::make_scores;
using testing::ScoreKind;

/// The oracle's picks in the order of preference, as many as `most`.
std::vector<int32_t> preferred(const std::vector<float>& row, int64_t length, int64_t most) {
  const std::vector<double> wide(row.begin(), row.end());
  const std::vector<int64_t> best = topk_oracle(
      wide, static_cast<std::size_t>(std::max<int64_t>(length, 0)), static_cast<std::size_t>(most));
  return {best.begin(), best.end()};
}

/// The list a kernel owes for the first k of `best`.
std::vector<int32_t> expected_list(const std::vector<int32_t>& best, int64_t k, int64_t stride) {
  std::vector<int32_t> list(best.begin(),
                            best.begin() + std::min<int64_t>(k, static_cast<int64_t>(best.size())));
  std::sort(list.begin(), list.end());
  list.resize(static_cast<std::size_t>(stride), -1);
  return list;
}

std::string first_difference(const std::vector<int32_t>& got, const std::vector<int32_t>& want) {
  int64_t different = 0;
  std::string first;
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (got[i] != want[i]) {
      if (different++ == 0) {
        first = "place " + std::to_string(i) + ": got " + std::to_string(got[i]) + ", want " +
                std::to_string(want[i]);
      }
    }
  }
  return first + "; " + std::to_string(different) + " of " + std::to_string(want.size()) +
         " differ";
}

class TopkRunner {
 public:
  TopkRunner(const std::vector<std::vector<float>>& rows,
             std::vector<int32_t> lengths,
             int64_t max_entries)
      : lengths_(device::Buffer<int32_t>::from_host(lengths)) {
    const int64_t stride = std::max<int64_t>(4, (max_entries + 3) / 4 * 4);
    std::vector<float> all(rows.size() * static_cast<std::size_t>(stride),
                           std::numeric_limits<float>::quiet_NaN());
    for (std::size_t r = 0; r < rows.size(); ++r) {
      std::fill_n(all.begin() + static_cast<int64_t>(r) * stride, stride, 1e38F);  // bait
      std::copy(rows[r].begin(), rows[r].end(), all.begin() + static_cast<int64_t>(r) * stride);
    }
    scores_ = device::Buffer<float>::from_host(all);
    params.scores = scores_.data();
    params.score_stride = stride;
    params.lengths = lengths_.data();
    params.max_entries = max_entries;
    params.num_rows = static_cast<int32_t>(rows.size());
  }

  template <class Launch>
  std::vector<int32_t> run(int32_t k,
                           int64_t list_stride,
                           const device::Stream& stream,
                           Launch launch) {
    device::Buffer<int32_t> lists(params.num_rows * list_stride);
    lists.fill_bytes(0x5A);
    params.k = k;
    params.list_stride = list_stride;
    params.indices = lists.data();
    launch(params, stream.get());
    BALEEN_CUDA_CHECK(cudaGetLastError());
    stream.synchronize();
    return lists.to_host();
  }

  IndexerTopkParams params;

 private:
  device::Buffer<float> scores_;
  device::Buffer<int32_t> lengths_;
};

/// What a row is tried with: every k by every cluster that can hold the row.
struct Trials {
  std::vector<int32_t> ks;
  std::vector<int32_t> clusters;
  bool portable = false;
};

constexpr IndexerTopkPlan kStreamed{.cluster = 2, .vectors = 8, .streamed = true};
constexpr int64_t kStreamedSample = 65'536;  // entries of a streamed row that give the bound

std::vector<IndexerTopkPlan> plans_for(const Trials& trials, int64_t max_entries, int32_t k) {
  std::vector<IndexerTopkPlan> plans;
  for (const int32_t cluster : trials.clusters) {
    for (const int32_t vectors : {1, 2, 4, 8}) {
      const bool fits = int64_t{cluster} * vectors * 4096 >= max_entries;
      const bool smaller_fits = vectors > 1 && int64_t{cluster} * vectors * 2048 >= max_entries;
      if (fits && !smaller_fits && (cluster < 16 || k <= 1024)) {
        plans.push_back({cluster, vectors});
      }
    }
    if (cluster == kStreamed.cluster && max_entries > kStreamedSample && k <= 1024) {
      plans.push_back(kStreamed);
    }
  }
  return plans;
}

void check_kind(ScoreKind kind, int64_t count, const device::Stream& stream, const Trials& trials) {
  const std::vector<float> row = make_scores(kind, count, static_cast<uint64_t>(count) * 31 + 7);
  const std::vector<int32_t> best = preferred(row, count, 2048);
  TopkRunner runner({row}, {static_cast<int32_t>(count)}, count);
  for (const int32_t k : trials.ks) {
    const std::vector<int32_t> want = expected_list(best, k, k);
    for (const IndexerTopkPlan& plan : plans_for(trials, count, k)) {
      const auto got =
          runner.run(k, k, stream, [&](const IndexerTopkParams& params, cudaStream_t s) {
            launch_indexer_topk_sm90(params, plan, s);
          });
      ASSERT_EQ(got, want) << testing::score_kind_name(kind) << " n " << count << " k " << k
                           << " cluster " << plan.cluster << " vectors " << plan.vectors << ": "
                           << first_difference(got, want);
    }
    if (trials.portable) {
      const auto got =
          runner.run(k, k, stream, [](const IndexerTopkParams& params, cudaStream_t s) {
            launch_indexer_topk_portable(params, s);
          });
      ASSERT_EQ(got, want) << testing::score_kind_name(kind) << " n " << count << " k " << k
                           << " portable: " << first_difference(got, want);
    }
  }
}

using IndexerTopkGpuSmall = testing::GpuTest;
using IndexerTopkGpu = testing::GpuTest;

/// Few launches, for racecheck: every kernel, with its ways of going on from few and many ties.
TEST_F(IndexerTopkGpuSmall, EqualsTheOracleOnTwoShortRows) {
  const Trials trials{.ks = {64}, .clusters = {1, 8}, .portable = true};
  for (const ScoreKind kind : {ScoreKind::kNormal, ScoreKind::kTwoValues, ScoreKind::kOneBlock}) {
    for (const int64_t count : {65, 2049}) {
      ASSERT_NO_FATAL_FAILURE(check_kind(kind, count, owned_stream(), trials));
    }
  }
}

TEST_F(IndexerTopkGpu, EqualsTheOracleOnShortRows) {
  const Trials trials{.ks = {64, 512}, .clusters = {1, 8}, .portable = true};
  for (const ScoreKind kind : testing::all_score_kinds()) {
    for (const int64_t count : {1, 65, 511, 513, 2049}) {
      ASSERT_NO_FATAL_FAILURE(check_kind(kind, count, owned_stream(), trials));
    }
  }
}

TEST_F(IndexerTopkGpuSmall, EmptyAndNegativeLengthsGiveNoPicks) {
  const std::vector<float> row = make_scores(ScoreKind::kNormal, 4096, 3);
  TopkRunner runner({row, row, row, row}, {0, -1, 700, -2147483647}, 4096);
  const std::vector<int32_t> middle = expected_list(preferred(row, 700, 512), 512, 576);
  const std::vector<int32_t> none(576, -1);
  std::vector<int32_t> want;
  for (const auto* list : {&none, &none, &middle, &none}) {
    want.insert(want.end(), list->begin(), list->end());
  }
  EXPECT_EQ(runner.run(512, 576, owned_stream(), launch_indexer_topk), want);
  EXPECT_EQ(runner.run(512, 576, owned_stream(), launch_indexer_topk_portable), want);
}

TEST_F(IndexerTopkGpuSmall, NoRowsIsLegal) {
  IndexerTopkParams params{.list_stride = 512, .max_entries = 4096, .num_rows = 0, .k = 512};
  params.score_stride = 4096;
  launch_indexer_topk(params, stream());
  launch_indexer_topk_portable(params, stream());
  synchronize();
}

TEST_F(IndexerTopkGpuSmall, TranslatesPicksToPoolRows) {
  constexpr int64_t kCount = 5000;
  constexpr int64_t kPages = 80;
  std::vector<std::vector<float>> rows;
  for (uint64_t r = 0; r < 4; ++r) {
    rows.push_back(make_scores(ScoreKind::kNormal, kCount, 40 + r));
  }
  TopkRunner runner(rows, {5000, 4999, 100, 513}, kCount);
  std::vector<int32_t> table(2 * kPages);
  std::iota(table.begin(), table.end(), 1);
  std::reverse(table.begin(), table.end());
  const auto pages = device::Buffer<int32_t>::from_host(table);
  device::Buffer<int32_t> slots(4 * 512);
  runner.params.page_table = pages.data();
  runner.params.page_table_stride = kPages;
  runner.params.rows_per_request = 2;
  runner.params.slots = slots.data();
  for (const bool portable : {false, true}) {
    slots.fill_bytes(0x5A);
    const auto picks = runner.run(
        512, 512, owned_stream(), portable ? launch_indexer_topk_portable : launch_indexer_topk);
    const std::vector<int32_t> got = slots.to_host();
    for (std::size_t i = 0; i < got.size(); ++i) {
      const std::size_t request = i / 1024;
      const int32_t want =
          picks[i] < 0 ? -1
                       : table[request * kPages + static_cast<std::size_t>(picks[i] / 64)] * 64 +
                             picks[i] % 64;
      ASSERT_EQ(got[i], want) << "place " << i << " portable " << portable;
    }
  }
}

TEST_F(IndexerTopkGpu, EqualsTheOracleAtEveryBoundary) {
  Trials trials{.ks = {512, 1024, 64, 2048}, .clusters = {1, 2, 4, 8, 16}};
  for (const ScoreKind kind : testing::all_score_kinds()) {
    for (const int64_t count :
         {63, 64, 512, 1023, 1024, 1025, 2047, 2048, 8191, 8192, 8193, 16384, 32768}) {
      trials.portable = count == 8193 || count == 1025;
      ASSERT_NO_FATAL_FAILURE(check_kind(kind, count, owned_stream(), trials));
    }
  }
}

TEST_F(IndexerTopkGpu, EqualsTheOracleOnLongRows) {
  Trials trials{.ks = {512, 1024, 64, 2048}, .clusters = {2, 4, 8, 16}};
  for (const ScoreKind kind : testing::all_score_kinds()) {
    for (const int64_t count : {65'537, 262'144}) {
      trials.portable = kind == ScoreKind::kSomeNan;
      ASSERT_NO_FATAL_FAILURE(check_kind(kind, count, owned_stream(), trials));
    }
  }
}

TEST_F(IndexerTopkGpu, LengthsFarBelowTheCapturedMaximum) {
  for (const ScoreKind kind : {ScoreKind::kNormal, ScoreKind::kConstant, ScoreKind::kSkewed}) {
    const std::vector<float> row = make_scores(kind, 262'144, 5);
    std::vector<std::vector<float>> rows(13, row);
    const std::vector<int32_t> lengths = {
        262'144, 1, 0, 511, 512, 513, 1025, 5000, 8193, 16'385, 40'000, 131'073, -1};
    TopkRunner runner(rows, lengths, 262'144);
    std::vector<int32_t> want;
    for (const int32_t length : lengths) {
      const std::vector<int32_t> list = expected_list(preferred(row, length, 512), 512, 512);
      want.insert(want.end(), list.begin(), list.end());
    }
    for (const IndexerTopkPlan& plan : {IndexerTopkPlan{8, 8}, IndexerTopkPlan{16, 4}, kStreamed}) {
      const auto got = runner.run(
          512, 512, owned_stream(), [&](const IndexerTopkParams& params, cudaStream_t s) {
            launch_indexer_topk_sm90(params, plan, s);
          });
      ASSERT_EQ(got, want) << testing::score_kind_name(kind) << " cluster " << plan.cluster << ": "
                           << first_difference(got, want);
    }
  }
}

TEST_F(IndexerTopkGpu, StreamedRowsAtEveryBoundaryOfSampleAndChunks) {
  const auto check = [&](const ScoreKind kind, int64_t count) {
    const std::vector<float> row = make_scores(kind, count, static_cast<uint64_t>(count) * 17 + 3);
    const std::vector<int32_t> best = preferred(row, count, 1024);
    TopkRunner runner({row}, {static_cast<int32_t>(count)}, count);
    for (const int32_t k : {1, 512, 1024}) {
      const auto got =
          runner.run(k, k, owned_stream(), [&](const IndexerTopkParams& params, cudaStream_t s) {
            launch_indexer_topk_sm90(params, kStreamed, s);
          });
      const std::vector<int32_t> want = expected_list(best, k, k);
      ASSERT_EQ(got, want) << testing::score_kind_name(kind) << " n " << count << " k " << k << ": "
                           << first_difference(got, want);
    }
  };
  for (const int64_t count : {600,
                              4'095,
                              4'096,
                              4'097,
                              8'193,
                              49'152,
                              49'153,
                              65'535,
                              65'536,
                              65'537,
                              98'305,
                              131'071,
                              131'073,
                              163'845,
                              200'000}) {
    ASSERT_NO_FATAL_FAILURE(check(ScoreKind::kNormal, count));
  }
  for (const ScoreKind kind : testing::all_score_kinds()) {
    ASSERT_NO_FATAL_FAILURE(check(kind, 98'305));
  }
}

TEST_F(IndexerTopkGpu, RaggedBatches) {
  testing::RandomValues random(11);
  for (const int64_t batch : {1, 7, 64, 256}) {
    std::vector<std::vector<float>> rows;
    std::vector<int32_t> lengths;
    std::vector<int32_t> want;
    for (int64_t r = 0; r < batch; ++r) {
      lengths.push_back(static_cast<int32_t>(random.integer(-1, 12'000)));
      rows.push_back(make_scores(r % 2 == 0 ? ScoreKind::kNormalBf16 : ScoreKind::kSkewed,
                                 std::max(lengths.back(), 0),
                                 static_cast<uint64_t>(r)));
      const std::vector<int32_t> list =
          expected_list(preferred(rows.back(), lengths.back(), 1024), 1024, 1024);
      want.insert(want.end(), list.begin(), list.end());
    }
    TopkRunner runner(rows, lengths, 12'000);
    const auto got = runner.run(1024, 1024, owned_stream(), launch_indexer_topk);
    ASSERT_EQ(got, want) << "batch " << batch << ": " << first_difference(got, want);
  }
}

TEST_F(IndexerTopkGpu, BeyondTheRegisterPath) {
  constexpr int64_t kCount = 262'144 + 4097;
  const std::vector<float> row = make_scores(ScoreKind::kNormalBf16, kCount, 9);
  ASSERT_FALSE(indexer_topk_sm90_supports(kCount, 512));
  TopkRunner runner({row}, {static_cast<int32_t>(kCount)}, kCount);
  const auto want = expected_list(preferred(row, kCount, 512), 512, 512);
  EXPECT_EQ(runner.run(512, 512, owned_stream(), launch_indexer_topk), want);
}

TEST_F(IndexerTopkGpu, AThousandLaunchesGiveEqualBitsBesideOtherWork) {
  constexpr int32_t kRepeats = 1000;
  for (const ScoreKind kind : {ScoreKind::kNormalBf16, ScoreKind::kSignedZeros}) {
    const std::vector<float> row = make_scores(kind, 262'144, 21);
    TopkRunner runner({row}, {262'144}, 262'144);
    const auto want = expected_list(preferred(row, 262'144, 512), 512, 512);
    device::Buffer<int32_t> lists(int64_t{kRepeats} * 512);
    lists.fill_bytes(0x5A);
    runner.params.k = 512;
    runner.params.list_stride = 512;
    IndexerTopkParams noise = runner.params;
    device::Buffer<int32_t> noise_list(512);
    noise.indices = noise_list.data();
    const device::Stream other;
    for (int32_t i = 0; i < kRepeats; ++i) {
      IndexerTopkParams params = runner.params;
      params.indices = lists.data() + int64_t{i} * 512;
      params.programmatic = i % 2 == 1;
      launch_indexer_topk(params, stream());
      if (i % 100 == 0) {
        launch_indexer_topk_portable(noise, other.get());
      }
    }
    synchronize();
    other.synchronize();
    const std::vector<int32_t> got = lists.to_host();
    for (int32_t i = 0; i < kRepeats; ++i) {
      ASSERT_TRUE(std::equal(want.begin(), want.end(), got.begin() + int64_t{i} * 512))
          << testing::score_kind_name(kind) << " launch " << i;
    }
  }
}

TEST_F(IndexerTopkGpu, OneGraphServesEveryLength) {
  const std::vector<float> row = make_scores(ScoreKind::kSkewed, 100'000, 2);
  TopkRunner runner({row}, {100'000}, 100'000);
  device::Buffer<int32_t> lengths(1);
  device::Buffer<int32_t> lists(512);
  runner.params.lengths = lengths.data();
  runner.params.indices = lists.data();
  runner.params.k = 512;
  runner.params.list_stride = 512;
  const device::Graph graph = device::Graph::capture(
      owned_stream(), [&](cudaStream_t s) { launch_indexer_topk(runner.params, s); });
  for (const int32_t length : {100'000, 3, 0, 77'777, 512, 513}) {
    lengths.copy_from_host(std::vector<int32_t>{length});
    lists.fill_bytes(0x5A);
    graph.launch(owned_stream());
    synchronize();
    ASSERT_EQ(lists.to_host(), expected_list(preferred(row, length, 512), 512, 512)) << length;
  }
}

}  // namespace
}  // namespace baleen::kernels
