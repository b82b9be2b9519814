// Index scores against the oracle in double, and their independence of batch, split and neighbours.
// Bound of the FP8 instruction: its adder keeps 13 fraction bits relative to the largest addend,
// four times per dot, so a score may err by 2.5e-4 of the sum of |a_h| * relu. Operands that are
// FP4 values with one scale have dots exact in 13 bits; what is left are the FP32 head sums.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "device/buffer.h"
#include "device/stream.h"
#include "kernels/indexer_scores/index_key_pool.h"
#include "kernels/indexer_scores/indexer_scores.h"
#include "kernels/testing/gpu_test.h"
#include "numerics/bfloat16.h"

namespace baleen::kernels {
namespace {

using testing::IndexKeyPool;
using testing::KeyKind;

constexpr double kFp8Bound = 2.5e-4;
constexpr double kExactBound = 1e-5;
constexpr uint32_t kPaint = 0x5A5A5A5AU;

struct DevicePool {
  explicit DevicePool(const IndexKeyPool& pool)
      : pages(device::Buffer<uint8_t>::from_host(pool.pages)),
        table(device::Buffer<int32_t>::from_host(pool.table)),
        lengths(device::Buffer<int32_t>::from_host(pool.lengths)),
        queries(device::Buffer<uint8_t>::from_host(pool.queries)),
        weights(device::Buffer<float>::from_host(pool.head_weights)),
        scores(int64_t{pool.requests} * pool.q * pool.table_stride * kIndexPageEntries) {
    params.queries = queries.data();
    params.head_weights = weights.data();
    params.key_pages = pages.data();
    params.num_pages = pool.num_pages;
    params.page_table = table.data();
    params.page_table_stride = pool.table_stride;
    params.lengths = lengths.data();
    params.scores = scores.data();
    params.score_stride = pool.table_stride * kIndexPageEntries;
    params.num_requests = pool.requests;
    params.queries_per_request = pool.q;
  }

  device::Buffer<uint8_t> pages;
  device::Buffer<int32_t> table;
  device::Buffer<int32_t> lengths;
  device::Buffer<uint8_t> queries;
  device::Buffer<float> weights;
  device::Buffer<float> scores;
  IndexerScoresParams params;
};

enum class Path { kSm90, kSm90General, kSm90ThreeGroups, kSm90OtherGrid, kPortable };
constexpr Path kPaths[] = {
    Path::kSm90, Path::kSm90General, Path::kSm90ThreeGroups, Path::kSm90OtherGrid, Path::kPortable};

std::vector<float> run(DevicePool& pool, Path path, const device::Stream& stream) {
  pool.scores.fill_bytes(0x5A);
  IndexerScoresPlan plan = plan_indexer_scores(pool.params);
  switch (path) {
    case Path::kSm90:
      launch_indexer_scores(pool.params, stream.get());
      break;
    case Path::kSm90General:  // what serves several requests or queries
      plan.lone = false;
      launch_indexer_scores_sm90(pool.params, plan, stream.get());
      break;
    case Path::kSm90ThreeGroups:
      plan.lone = false;
      plan.warp_groups = plan.warp_groups == 3 ? 2 : 3;
      plan.stages = 6;
      launch_indexer_scores_sm90(pool.params, plan, stream.get());
      break;
    case Path::kSm90OtherGrid:
      plan.blocks_per_multiprocessor = 3 - plan.blocks_per_multiprocessor;
      launch_indexer_scores_sm90(pool.params, plan, stream.get());
      break;
    case Path::kPortable:
      launch_indexer_scores_portable(pool.params, pool.params.page_table_stride, stream.get());
      break;
  }
  BALEEN_CUDA_CHECK(cudaGetLastError());
  stream.synchronize();
  return pool.scores.to_host();
}

/// Every `step`-th entry against the oracle, and all that must be masked or untouched.
void expect_oracle(const IndexKeyPool& pool,
                   const std::vector<float>& scores,
                   double bound,
                   int64_t step,
                   const std::string& name) {
  const int64_t stride = pool.table_stride * kIndexPageEntries;
  double worst = 0;
  for (int64_t row = 0; row < int64_t{pool.requests} * pool.q; ++row) {
    const int64_t seen = std::max(0, pool.lengths[static_cast<std::size_t>(row)]);
    const int64_t last = (row / pool.q + 1) * pool.q - 1;
    const int64_t written =
        (std::max<int64_t>(0, pool.lengths[static_cast<std::size_t>(last)]) + 63) / 64 * 64;
    for (int64_t entry = 0; entry < stride; ++entry) {
      const float got = scores[static_cast<std::size_t>(row * stride + entry)];
      if (entry >= written) {
        ASSERT_EQ(numerics::float_bits(got), kPaint)
            << name << ": wrote beyond the last page, row " << row << " entry " << entry;
      } else if (entry >= seen) {
        ASSERT_EQ(got, -std::numeric_limits<float>::infinity())
            << name << ": not masked, row " << row << " entry " << entry;
      } else if (entry % step == 0 || entry + 1 == seen) {
        double magnitude = 0;
        const double want = pool.score(row, entry, &magnitude);
        const double error = std::fabs(static_cast<double>(got) - want);
        worst = std::max(worst, magnitude > 0 ? error / magnitude : error);
        ASSERT_LE(error, bound * magnitude)
            << name << ": row " << row << " entry " << entry << " got " << got << " want " << want;
      }
    }
  }
  std::printf("           %s: worst error / sum|a relu| %.3g\n", name.c_str(), worst);
}

using IndexerScoresGpuSmall = testing::GpuTest;
using IndexerScoresGpu = testing::GpuTest;

TEST_F(IndexerScoresGpuSmall, EqualsTheOracleAtPageBoundaries) {
  for (const int32_t q : {1, 2, 3, 4, 6}) {
    const IndexKeyPool pool(
        {.lengths = {65, 0, 1, 63, 64, -1, 255, 256, 257}, .queries_per_request = q});
    DevicePool on_device(pool);
    for (const Path path : kPaths) {
      const std::string name =
          "q" + std::to_string(q) + "_path" + std::to_string(static_cast<int>(path));
      ASSERT_NO_FATAL_FAILURE(
          expect_oracle(pool, run(on_device, path, owned_stream()), kFp8Bound, 1, name));
    }
  }
}

TEST_F(IndexerScoresGpuSmall, OneRequestOfEveryShortLength) {
  for (const int32_t length : {0, 1, 63, 64, 65, 257, 1000}) {
    const IndexKeyPool pool({.lengths = {length}, .seed = 2});
    DevicePool on_device(pool);
    for (const Path path : kPaths) {
      ASSERT_NO_FATAL_FAILURE(expect_oracle(
          pool, run(on_device, path, owned_stream()), kFp8Bound, 1, "n" + std::to_string(length)));
    }
  }
}

TEST_F(IndexerScoresGpuSmall, Fp4ValuesAreExactUpToTheHeadSum) {
  const IndexKeyPool pool(
      {.lengths = {300, 77}, .queries_per_request = 2, .seed = 3, .keys = KeyKind::kFp4Valued});
  DevicePool on_device(pool);
  for (const Path path : kPaths) {
    ASSERT_NO_FATAL_FAILURE(
        expect_oracle(pool, run(on_device, path, owned_stream()), kExactBound, 1, "fp4"));
  }
}

TEST_F(IndexerScoresGpuSmall, ZeroKeysScoreZero) {
  const IndexKeyPool pool({.lengths = {100}, .seed = 4, .keys = KeyKind::kZero});
  DevicePool on_device(pool);
  const std::vector<float> scores = run(on_device, Path::kSm90, owned_stream());
  for (std::size_t i = 0; i < 100; ++i) {
    ASSERT_EQ(scores[i], 0.0F) << i;
  }
}

TEST_F(IndexerScoresGpuSmall, Bf16IsTheRoundedFloatScore) {
  const IndexKeyPool pool({.lengths = {500}, .queries_per_request = 3, .seed = 5});
  DevicePool on_device(pool);
  for (const Path path : {Path::kSm90, Path::kPortable}) {
    on_device.params.rounding = ScoreRounding::kFloat;
    const std::vector<float> plain = run(on_device, path, owned_stream());
    on_device.params.rounding = ScoreRounding::kBf16;
    const std::vector<float> rounded = run(on_device, path, owned_stream());
    for (std::size_t i = 0; i < plain.size(); ++i) {
      if (numerics::float_bits(plain[i]) != kPaint) {
        ASSERT_EQ(numerics::float_bits(numerics::round_to_bf16(plain[i])),
                  numerics::float_bits(rounded[i]))
            << i;
      }
    }
  }
}

TEST_F(IndexerScoresGpuSmall, NoRequestsIsLegal) {
  launch_indexer_scores({}, stream());
  synchronize();
}

/// A request's scores must be the same bits alone and beside others, and a query's the same whether
/// it is scored alone or with its neighbours.
TEST_F(IndexerScoresGpu, BitsDoNotDependOnNeighbours) {
  const IndexKeyPool alone({.lengths = {3000}, .queries_per_request = 4, .seed = 6});
  DevicePool first(alone);
  const std::vector<float> want = run(first, Path::kSm90, owned_stream());
  const int64_t stride = alone.table_stride * kIndexPageEntries;
  for (const int64_t batch : {2, 7, 16, 64}) {
    // The request comes last, after shorter ones that read the same pool.
    std::vector<int32_t> lengths;
    std::vector<int32_t> table;
    std::vector<uint8_t> queries;
    std::vector<float> weights;
    for (int64_t b = 0; b < batch; ++b) {
      for (int32_t j = 0; j < 4; ++j) {
        lengths.push_back(b + 1 == batch ? alone.lengths[static_cast<std::size_t>(j)]
                                         : static_cast<int32_t>(b * 37 % 900));
      }
      table.insert(table.end(), alone.table.begin(), alone.table.end());
      queries.insert(queries.end(), alone.queries.begin(), alone.queries.end());
      weights.insert(weights.end(), alone.head_weights.begin(), alone.head_weights.end());
    }
    IndexKeyPool many = alone;
    many.requests = static_cast<int32_t>(batch);
    many.lengths = lengths;
    many.table = table;
    many.queries = queries;
    many.head_weights = weights;
    DevicePool second(many);
    for (const Path path : {Path::kSm90, Path::kSm90ThreeGroups, Path::kSm90OtherGrid}) {
      const std::vector<float> got = run(second, path, owned_stream());
      for (int64_t j = 0; j < 4; ++j) {
        const int64_t seen = alone.lengths[static_cast<std::size_t>(j)];
        ASSERT_EQ(std::memcmp(got.data() + ((batch - 1) * 4 + j) * stride,
                              want.data() + j * stride,
                              static_cast<std::size_t>(seen) * 4),
                  0)
            << "batch " << batch << " query " << j << " path " << static_cast<int>(path);
      }
    }
  }
  for (int64_t j = 0; j < 4; ++j) {  // each query as a request of its own
    IndexKeyPool single = alone;
    single.q = 1;
    single.lengths = {alone.lengths[static_cast<std::size_t>(j)]};
    single.queries.assign(alone.queries.begin() + j * 8192, alone.queries.begin() + (j + 1) * 8192);
    single.head_weights.assign(alone.head_weights.begin() + j * 64,
                               alone.head_weights.begin() + (j + 1) * 64);
    DevicePool one(single);
    const std::vector<float> got = run(one, Path::kSm90, owned_stream());
    ASSERT_EQ(
        std::memcmp(
            got.data(), want.data() + j * stride, static_cast<std::size_t>(single.lengths[0]) * 4),
        0)
        << "query " << j;
  }
}

TEST_F(IndexerScoresGpu, LongContexts) {
  for (const int32_t q : {1, 2}) {
    const IndexKeyPool pool(
        {.lengths = {262'144}, .queries_per_request = q, .seed = 7, .most_pages = 512});
    DevicePool on_device(pool);
    for (const Path path : {Path::kSm90, Path::kSm90General, Path::kSm90OtherGrid}) {
      ASSERT_NO_FATAL_FAILURE(expect_oracle(pool,
                                            run(on_device, path, owned_stream()),
                                            kFp8Bound,
                                            509,
                                            "n262144_q" + std::to_string(q)));
    }
  }
}

TEST_F(IndexerScoresGpu, OneEntryAndAMillionInOneBatch) {
  const IndexKeyPool pool({.lengths = {1, 1'048'576, 1}, .seed = 8, .most_pages = 512});
  DevicePool on_device(pool);
  ASSERT_NO_FATAL_FAILURE(
      expect_oracle(pool, run(on_device, Path::kSm90, owned_stream()), kFp8Bound, 4093, "ragged"));
}

TEST_F(IndexerScoresGpu, PicksEqualTheOraclesOutsideTheErrorBand) {
  constexpr int32_t kCount = 12'000;
  constexpr std::size_t kPicks = 512;
  const IndexKeyPool pool({.lengths = {kCount}, .seed = 9});
  DevicePool on_device(pool);
  const std::vector<float> scores = run(on_device, Path::kSm90, owned_stream());
  std::vector<double> exact(kCount);
  double band = 0;
  for (int32_t i = 0; i < kCount; ++i) {
    double magnitude = 0;
    exact[static_cast<std::size_t>(i)] = pool.score(0, i, &magnitude);
    band = std::max(band, kFp8Bound * magnitude);
  }
  std::vector<double> by_oracle = exact;
  std::nth_element(
      by_oracle.begin(), by_oracle.begin() + kPicks - 1, by_oracle.end(), std::greater<>());
  std::vector<float> by_kernel(scores.begin(), scores.begin() + kCount);
  std::nth_element(
      by_kernel.begin(), by_kernel.begin() + kPicks - 1, by_kernel.end(), std::greater<>());
  int unsure = 0;
  for (std::size_t i = 0; i < kCount; ++i) {
    const double distance = exact[i] - by_oracle[kPicks - 1];
    const bool picked = scores[i] >= by_kernel[kPicks - 1];
    if (std::fabs(distance) <= 2 * band) {
      ++unsure;
      continue;
    }
    ASSERT_EQ(picked, distance > 0) << "entry " << i;
  }
  EXPECT_LT(unsure, 200);  // otherwise the statement above is empty
}

TEST_F(IndexerScoresGpu, AThousandLaunchesGiveEqualBits) {
  const IndexKeyPool pool({.lengths = {9000, 100}, .queries_per_request = 2, .seed = 10});
  DevicePool on_device(pool);
  const auto stable = device::Buffer<int32_t>::from_host(std::vector<int32_t>{8000, 0});
  const std::vector<float> want = run(on_device, Path::kSm90, owned_stream());
  for (int round = 0; round < 1000; ++round) {
    on_device.params.programmatic = round % 2 == 1;
    on_device.params.stable_entries = round % 4 == 3 ? stable.data() : nullptr;
    if (round % 50 != 49) {
      launch_indexer_scores(on_device.params, stream());
      continue;
    }
    const std::vector<float> got = run(on_device, Path::kSm90, owned_stream());
    ASSERT_EQ(std::memcmp(got.data(), want.data(), got.size() * 4), 0) << "launch " << round;
  }
}

}  // namespace
}  // namespace baleen::kernels
