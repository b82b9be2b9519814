// The Hopper and the portable attention kernel against the double oracle (attention_check.h).

#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/sparse_attention/attention_scene.h"
#include "kernels/testing/attention_check.h"

namespace baleen::kernels {
namespace {

using testing::AttentionGpuTest;
using testing::AttentionScene;
using testing::SceneOptions;
using testing::SceneOutput;
using testing::SceneSource;
using testing::text;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

SparseAttentionPlan make_plan(const AttentionScene& scene,
                              int32_t heads_per_block,
                              int32_t cluster = 1,
                              int32_t clusters = 1) {
  return {.mode = AttentionMode::kFast,
          .heads_per_block = heads_per_block,
          .cluster = cluster,
          .clusters = clusters,
          .max_queries = scene.options().queries};
}

using SparseAttentionGpu = AttentionGpuTest;
using SparseAttentionGpuSmall = AttentionGpuTest;

SceneOptions c4_scene(int32_t heads, int32_t queries) {
  SceneOptions options;
  options.heads = heads;
  options.queries = queries;
  options.first = {.length = 128, .rows_per_page = 256};
  options.second = {.length = 512, .rows_per_page = 64};
  return options;
}

TEST_F(SparseAttentionGpuSmall, OneTile) {
  for (const int32_t heads : {8, 16, 32, 64}) {
    SceneOptions options;
    options.heads = heads;
    options.first = {.length = 64};
    AttentionScene scene(options);
    scene.upload();
    check(scene, run(scene, make_plan(scene, heads)), text("heads ", heads));
  }
}

TEST_F(SparseAttentionGpuSmall, EveryCodeAndScaleComesThroughExactly) {
  // A single row of weight 1 is the output. q = 0, so scores stay 0 while values are finite.
  SceneOptions options;
  options.queries = 247;  // scale bytes 0..246; above, 448 * 2^(byte - 127) leaves bf16
  options.with_sink = false;
  options.first = {.length = 1, .rows_per_page = 64};
  for (const auto& [heads, part, cluster, few] : {std::tuple{8, 0, 1, false},
                                                  {8, 1, 1, false},
                                                  {64, 0, 1, false},
                                                  {64, 1, 1, false},
                                                  {64, 0, 2, false},  // half of it crosses
                                                  {64, 1, 2, false},
                                                  {8, 0, 4, true},
                                                  {8, 1, 4, true}}) {
    options.heads = heads;
    AttentionScene scene(options);
    std::fill(scene.q().begin(), scene.q().end(), static_cast<uint16_t>(0));
    std::vector<uint8_t>& bytes = scene.first().pool().bytes();
    std::vector<std::vector<double>> rows;
    for (int32_t query = 0; query < options.queries; ++query) {
      const int32_t row = query;
      scene.first().set_row(query, 0, row);
      const KvPoolView view = scene.first().pool().view();
      for (int i = 0; i < kKvNopeDims; ++i) {
        // 448 of 256 codes; the second part shifts them, so each code meets several places.
        bytes[static_cast<std::size_t>(kv_value_offset(view, row) + i)] =
            static_cast<uint8_t>(i + 101 * part + query);
      }
      for (int i = 0; i < kKvRopeDims; ++i) {
        scene.first().pool().set_rope(row, i, static_cast<uint16_t>(0x3F80 + i));
      }
      for (int i = 0; i < kKvScales; ++i) {
        bytes[static_cast<std::size_t>(kv_scale_offset(view, row) + i)] =
            static_cast<uint8_t>(query);
      }
      rows.push_back(scene.first().pool().values(row));
    }
    scene.upload();
    SparseAttentionPlan plan = make_plan(scene, heads, cluster);
    plan.few = few;
    const SceneOutput output = run(scene, plan);
    int64_t wrong = 0;
    std::string first;
    for (std::size_t query = 0; query < rows.size(); ++query) {
      for (std::size_t i = 0; i < kKvDims; ++i) {
        const uint16_t wanted = numerics::bf16_from_double(rows[query][i]);
        const auto head = query % static_cast<std::size_t>(heads);
        const uint16_t got =
            output.o[(query * static_cast<std::size_t>(heads) + head) * kKvDims + i];
        if (got != wanted && !((got | wanted) == 0x8000)) {  // the sign of a zero is not kept
          if (wrong++ < 6) {
            first += text(" scale ", query, " dim ", i, " got ", got, " wanted ", wanted, ";");
          }
        }
      }
    }
    EXPECT_EQ(wrong, 0) << "heads " << heads << " cluster " << cluster << " few " << few << first;
  }
}

TEST_F(SparseAttentionGpuSmall, ListLengthsAndMissingRows) {
  const auto sweep = [&](const SceneSource& source, const std::string& label) {
    SceneOptions options;
    options.queries = 3;
    options.first = source;
    for (const auto& [heads, cluster] : {std::pair{16, 1}, {16, 3}, {64, 1}, {64, 2}}) {
      options.heads = heads;
      AttentionScene scene(options);
      scene.upload();
      check(scene,
            run(scene, make_plan(scene, heads, cluster)),
            text(label, ", heads ", heads, ", cluster ", cluster),
            heads / 16 * 3);
    }
  };
  for (const int32_t length : {1, 63, 64, 65, 127, 128, 640}) {
    sweep({.length = length}, text("length ", length));
  }
  sweep({.length = 128, .lengths = {0, 1, 128}}, "lengths 0 1 128");
  sweep({.length = 128, .lengths = {0, -3, 0}}, "lengths 0 -3 0");
  sweep({.length = 192, .missing_every = 1}, "all missing");
  sweep({.length = 192, .missing_first = 64}, "first tile missing");
  sweep({.length = 192, .missing_first = 63}, "63 leading missing");
  sweep({.length = 192, .missing_every = 3}, "every third missing");
  sweep({.length = 192, .duplicates = true}, "duplicates");
}

TEST_F(SparseAttentionGpuSmall, PageSizes) {
  for (const int32_t heads : {8, 64}) {
    for (const int32_t rows_per_page : {2, 61, 64, 69, 128, 256}) {
      SceneOptions options;
      options.heads = heads;
      options.first = {.length = 100, .rows_per_page = rows_per_page};
      options.second = {.length = 77, .rows_per_page = rows_per_page, .dense = true};
      AttentionScene scene(options);
      scene.upload();
      check(scene,
            run(scene, make_plan(scene, heads)),
            text("page ", rows_per_page, ", heads ", heads),
            heads / 8);
    }
  }
}

TEST_F(SparseAttentionGpuSmall, RowsThatFollowEachOther) {
  // Runs of neighbouring rows come as one copy: of 1, 2, 4 and more rows, up to a unit's end.
  for (const int32_t entries_per_page : {1, 2, 4, 16, 64}) {
    for (const int32_t length : {1, 2, 7, 8, 9, 63, 64, 65, 129}) {
      SceneOptions options;
      options.heads = 64;
      options.first = {.length = 3};
      options.second = {.length = length, .dense = true, .entries_per_page = entries_per_page};
      AttentionScene scene(options);
      scene.upload();
      check(scene,
            run(scene, make_plan(scene, 64)),
            text("entries per page ", entries_per_page, " length ", length),
            9);
    }
  }
}

TEST_F(SparseAttentionGpuSmall, Sinks) {
  SceneOptions options;
  options.heads = 8;
  options.queries = 2;
  options.first = {.length = 70, .lengths = {70, 0}};
  AttentionScene scene(options);
  scene.sink() = {kInfinity, -kInfinity, 0, 80, -80, 5, -5, 1};
  scene.upload();
  check(scene, run(scene, make_plan(scene, 8)), "sinks");
  check(scene, run(scene, make_plan(scene, 8, 2)), "sinks, cluster");
}

TEST_F(SparseAttentionGpuSmall, LargeScoresAndScales) {
  for (const auto& [low, high, q_size] :
       {std::tuple{105, 128, 1.0F}, std::tuple{127, 140, 0.001F}, std::tuple{120, 134, 8.0F}}) {
    for (const int32_t heads : {16, 64}) {
      SceneOptions options;
      options.heads = heads;
      options.first = {.length = 200};
      options.scale_low = low;
      options.scale_high = high;
      options.q_size = q_size;
      AttentionScene scene(options);
      scene.upload();
      check(scene,
            run(scene, make_plan(scene, heads)),
            text("heads ", heads, " scales ", low, "..", high),
            heads / 16);
      check(scene,  // parts cross between two blocks
            run(scene, make_plan(scene, heads, 2)),
            text("heads ", heads, " scales ", low, "..", high, ", cluster 2"),
            heads / 16);
    }
  }
}

TEST_F(SparseAttentionGpuSmall, TurnsTheOutputBack) {
  for (const int32_t heads : {8, 64}) {
    SceneOptions options;
    options.heads = heads;
    options.queries = 2;
    options.first = {.length = 30};
    options.inverse_rope = true;
    AttentionScene scene(options);
    scene.upload();
    check(scene, run(scene, make_plan(scene, heads)), text("inverse rope, heads ", heads));
  }
}

TEST_F(SparseAttentionGpuSmall, NoQueriesIsLegal) {
  SceneOptions options;
  options.queries = 0;
  AttentionScene scene(options);
  SparseAttentionParams params;
  params.heads = 16;
  params.plan = make_plan(scene, 16);
  launch_sparse_attention(params, stream());
  launch_sparse_attention_portable(params, stream());
  synchronize();
}

TEST_F(SparseAttentionGpu, EveryWidthAndCut) {
  for (const int32_t heads : {8, 16, 32, 64, 128}) {
    SceneOptions options = c4_scene(heads, 2);
    options.first.lengths = {128, 100};
    options.inverse_rope = true;
    AttentionScene scene(options);
    scene.upload();
    for (const int32_t width : {8, 16, 32, 64}) {
      if (width > heads) {
        continue;
      }
      for (const auto& [cluster, clusters] :
           {std::pair{1, 1}, {2, 1}, {5, 1}, {8, 1}, {1, 3}, {4, 2}, {2, 5}}) {
        if (width == 64 && cluster > 2) {
          continue;  // not offered
        }
        check(scene,
              run(scene, make_plan(scene, width, cluster, clusters)),
              text("heads ", heads, " width ", width, " cluster ", cluster, " x ", clusters),
              heads / 8 + 1);
      }
    }
  }
}

TEST_F(SparseAttentionGpu, DenseEntriesOfALongContext) {
  SceneOptions options;
  options.heads = 16;
  options.queries = 2;
  options.first = {.length = 192, .rows_per_page = 256, .missing_first = 40};
  options.second = {.length = 7031, .lengths = {7031, 2049}, .rows_per_page = 128, .dense = true};
  AttentionScene scene(options);
  scene.upload();
  for (const auto& [cluster, clusters] : {std::pair{1, 1}, {8, 4}, {2, 56}}) {
    check(scene,
          run(scene, make_plan(scene, 16, cluster, clusters)),
          text("dense cluster ", cluster, " x ", clusters),
          4);
  }
  const SparseAttentionPlan plan =
      plan_sparse_attention(scene.shape(), AttentionMode::kInvariant, 132);
  EXPECT_EQ(plan.clusters, 4);
  check(scene, run(scene, plan), "dense invariant", 4);
}

TEST_F(SparseAttentionGpu, BlocksThatDoNotFitTheCardAtOnceJoinTheSame) {
  // 3 queries fit and wait for each other, 90 do not: the block that comes last joins. Equal bits
  // per query, and counters that are zero again.
  for (const auto& [width, cluster, clusters] :
       {std::tuple{64, 1, 4}, std::tuple{64, 2, 5}, std::tuple{16, 2, 3}}) {
    SceneOptions options = c4_scene(64, 90);
    AttentionScene scene(options);
    scene.upload();
    const SparseAttentionPlan plan = make_plan(scene, width, cluster, clusters);
    const SceneOutput all = run(scene, plan);
    check(scene, all, text("width ", width, " clusters ", clusters), 40);
    for (int repeat = 0; repeat < 3; ++repeat) {
      EXPECT_TRUE(run(scene, plan) == all) << "width " << width << " repeat " << repeat;
    }
    scene.paint_output();
    SparseAttentionParams params = scene.params(plan);
    params.num_queries = 3;
    launch_sparse_attention(params, stream());
    synchronize();
    const SceneOutput some = scene.output();
    for (std::size_t i = 0; i < std::size_t{3} * 64 * kKvDims; ++i) {
      ASSERT_EQ(some.o[i], all.o[i]) << "width " << width << " element " << i;
    }
  }
}

TEST_F(SparseAttentionGpu, ManyQueriesAgainstThePortableKernel) {
  for (const int32_t queries : {1, 2, 3, 4, 64, 321}) {
    SceneOptions options = c4_scene(16, queries);
    options.first.lengths = {128, 5, 77};
    options.second.lengths = {512, 64, 0, 65};
    AttentionScene scene(options);
    scene.upload();
    const SparseAttentionPlan plan =
        plan_sparse_attention(scene.shape(), AttentionMode::kFast, 132);
    const SceneOutput fast = run(scene, plan);
    scene.paint_output();
    launch_sparse_attention_portable(scene.params(plan), stream());
    synchronize();
    const SceneOutput portable = scene.output();
    // Both err by 2^-8 of sum p |row|, which is below 3 for these rows, and of the output.
    int64_t wrong = 0;
    for (std::size_t i = 0; i < fast.o.size(); ++i) {
      const float a = numerics::bf16_to_float(fast.o[i]);
      const float b = numerics::bf16_to_float(portable.o[i]);
      wrong += std::abs(a - b) <= 0x1p-7F * (3 + std::abs(b)) ? 0 : 1;
    }
    EXPECT_EQ(wrong, 0) << "queries " << queries;
    if (queries <= 3) {
      check(scene, portable, text("portable, ", queries, " queries"), 5);
    }
  }
}

TEST_F(SparseAttentionGpu, PermutedBatchGivesPermutedBits) {
  SceneOptions options = c4_scene(32, 7);
  options.first.lengths = {128, 5, 77};
  options.second.lengths = {512, 64, 0, 65};
  const std::vector<int32_t> order = {3, 0, 6, 1, 5, 2, 4};
  for (const AttentionMode mode : {AttentionMode::kFast, AttentionMode::kInvariant}) {
    AttentionScene plain(options);
    plain.upload();
    const SparseAttentionPlan plan = plan_sparse_attention(plain.shape(), mode, 132);
    ASSERT_NO_FATAL_FAILURE(expect_permuted_bits(plain, plan, order));
  }
}

TEST_F(SparseAttentionGpu, RepeatedLaunchesGiveEqualBits) {
  SceneOptions options = c4_scene(64, 2);
  AttentionScene scene(options);
  scene.upload();
  for (const SparseAttentionPlan& plan : {make_plan(scene, 64, 2),
                                          make_plan(scene, 64, 2, 5),
                                          make_plan(scene, 16, 5),
                                          make_plan(scene, 32, 2, 4)}) {
    const SceneOutput first = run(scene, plan);
    for (int repeat = 0; repeat < 1000; ++repeat) {
      launch_sparse_attention(scene.params(plan), stream());
      if (repeat % 100 == 99) {
        synchronize();
        ASSERT_TRUE(scene.output() == first) << "repeat " << repeat;
      }
    }
  }
}

TEST_F(SparseAttentionGpu, InvariantModeIgnoresWidthBatchAndNeighbours) {
  SceneOptions options = c4_scene(64, 7);
  options.first = {.length = 192, .rows_per_page = 256, .missing_first = 13};
  options.second = {.length = 2500, .rows_per_page = 128, .dense = true};
  AttentionScene scene(options);
  scene.upload();
  SparseAttentionPlan plan = plan_sparse_attention(scene.shape(), AttentionMode::kInvariant, 132);
  const SceneOutput all = run(scene, plan);
  check(scene, all, "invariant", 16);
  for (const int32_t width : {8, 16, 32, 64}) {
    plan.heads_per_block = width;
    EXPECT_TRUE(run(scene, plan) == all) << "width " << width;
  }
  // Fewer queries, and room for more parts than the rows need.
  for (const int32_t queries : {1, 2, 5}) {
    plan.heads_per_block = 8 * queries >= 32 ? 32 : 8 * queries;
    plan.clusters = 4;
    scene.paint_output();
    SparseAttentionParams params = scene.params(plan);
    params.num_queries = queries;
    launch_sparse_attention(params, stream());
    synchronize();
    const SceneOutput some = scene.output();
    const std::size_t count = static_cast<std::size_t>(queries) * 64 * kKvDims;
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_EQ(some.o[i], all.o[i]) << "queries " << queries << " element " << i;
    }
  }
}

}  // namespace
}  // namespace baleen::kernels
