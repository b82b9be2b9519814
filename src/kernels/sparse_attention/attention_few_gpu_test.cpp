// The attention kernel for few queries against the double oracle (attention_check.h), in every cut
// it has.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/sparse_attention/attention_few.h"
#include "kernels/sparse_attention/attention_scene.h"
#include "kernels/testing/attention_check.h"
#include "kernels/testing/random_values.h"

namespace baleen::kernels {
namespace {

using testing::AttentionScene;
using testing::SceneOptions;
using testing::SceneOutput;
using testing::SceneSource;
using testing::text;

SparseAttentionPlan few_plan(const AttentionScene& scene, int32_t width, int32_t cluster) {
  return {.mode = AttentionMode::kFast,
          .heads_per_block = width,
          .cluster = cluster,
          .max_queries = scene.options().queries,
          .few = true};
}

class FewAttentionTest : public testing::AttentionGpuTest {
 protected:
  void check_few(AttentionScene& scene,
                 int32_t width,
                 int32_t cluster,
                 const std::string& label,
                 int32_t head_step = 1) {
    check(scene,
          run(scene, few_plan(scene, width, cluster)),
          text(label, ", width ", width, ", cluster ", cluster),
          head_step,
          0x1p-11);
  }
};
using FewAttentionGpu = FewAttentionTest;
using FewAttentionGpuSmall = FewAttentionTest;

TEST_F(FewAttentionGpuSmall, RowsOfABlock) {
  // Four blocks with so many rows each, or one less in the last: around multiples of 8, and the
  // most there are (40 and 48).
  for (const int32_t heads : {8, 16}) {
    for (const int32_t rows :
         {1, 2, 7, 8, 9, 15, 16, 17, 23, 24, 25, 31, 32, 33, 39, 40, 41, 47, 48}) {
      for (const int32_t length : {4 * rows - 1, 4 * rows}) {
        SceneOptions options;
        options.heads = heads;
        options.first = {.length = length, .capacity = length};
        AttentionScene scene(options);
        scene.upload();
        check_few(scene, heads, 4, text("length ", length), heads / 8);
      }
    }
  }
}

TEST_F(FewAttentionGpuSmall, ListLengthsAndMissingRows) {
  const auto sweep = [&](const SceneSource& source, const std::string& label) {
    SceneOptions options;
    options.queries = 3;
    options.heads = 16;
    options.first = source;
    AttentionScene scene(options);
    scene.upload();
    for (const int32_t width : {8, 16}) {
      for (const int32_t cluster : {4, 8, 16}) {
        if (options.first.length <= kFewRows * cluster) {
          check_few(scene, width, cluster, label, 4);
        }
      }
    }
  };
  // Less rows than blocks, one each, one more, ends of eights.
  for (const int32_t length : {1, 2, 3, 4, 5, 15, 16, 17, 64, 128, 192, 255, 256, 257, 640, 768}) {
    sweep({.length = length, .capacity = length}, text("length ", length));
  }
  sweep({.length = 128, .lengths = {0, 1, 128}}, "lengths 0 1 128");
  sweep({.length = 128, .lengths = {0, -3, 0}}, "lengths 0 -3 0");
  sweep({.length = 192, .missing_every = 1}, "all missing");
  sweep({.length = 192, .missing_first = 64}, "first 64 missing");
  sweep({.length = 192, .missing_first = 63}, "63 leading missing");
  sweep({.length = 192, .missing_every = 3}, "every third missing");
  sweep({.length = 192, .duplicates = true}, "duplicates");
}

TEST_F(FewAttentionGpuSmall, NothingToReadAtAll) {
  SceneOptions options;
  options.heads = 16;
  options.queries = 2;
  AttentionScene scene(options);  // both sources absent
  scene.upload();
  check_few(scene, 8, 16, "no sources");
}

TEST_F(FewAttentionGpuSmall, PageSizes) {
  for (const int32_t rows_per_page : {1, 2, 61, 64, 69, 128, 256}) {
    SceneOptions options;
    options.heads = 8;
    options.first = {.length = 100, .rows_per_page = rows_per_page};
    options.second = {.length = 77,
                      .capacity = 77,
                      .rows_per_page = rows_per_page,
                      .dense = true,
                      .entries_per_page = rows_per_page == 1 ? 1 : 2};
    AttentionScene scene(options);
    scene.upload();
    for (const int32_t cluster : {8, 16}) {
      check_few(scene, 8, cluster, text("page ", rows_per_page));
    }
  }
}

TEST_F(FewAttentionGpuSmall, EntriesPerPage) {
  for (const int32_t entries_per_page : {1, 2, 4, 16, 64}) {
    for (const int32_t length : {1, 2, 7, 33, 64, 129}) {
      SceneOptions options;
      options.heads = 8;
      options.first = {.length = 3};
      options.second = {.length = length, .dense = true, .entries_per_page = entries_per_page};
      AttentionScene scene(options);
      scene.upload();
      check_few(scene, 8, 8, text("entries per page ", entries_per_page, " length ", length), 3);
    }
  }
}

TEST_F(FewAttentionGpuSmall, Sinks) {
  constexpr float kInfinite = std::numeric_limits<float>::infinity();
  SceneOptions options;
  options.heads = 8;
  options.queries = 2;
  options.first = {.length = 70, .lengths = {70, 0}};
  AttentionScene scene(options);
  scene.sink() = {kInfinite, -kInfinite, 0, 80, -80, 5, -5, 1};
  scene.upload();
  check_few(scene, 8, 4, "sinks");
  check_few(scene, 8, 16, "sinks");
  options.with_sink = false;
  AttentionScene without(options);
  without.upload();
  check_few(without, 8, 8, "no sinks");
}

TEST_F(FewAttentionGpuSmall, LargeScoresAndScales) {
  // Scales far apart, beyond what one product carries, and of the smallest kind; q of any size.
  for (const auto& [low, high, q_size] : {std::tuple{105, 128, 1.0F},
                                          std::tuple{127, 140, 0.001F},
                                          std::tuple{120, 134, 8.0F},
                                          std::tuple{133, 136, 0.001F},
                                          std::tuple{0, 20, 1000.0F},
                                          std::tuple{125, 128, 1e-12F},
                                          std::tuple{100, 102, 1e9F}}) {
    SceneOptions options;
    options.heads = 16;
    options.first = {.length = 190};
    options.scale_low = low;
    options.scale_high = high;
    options.q_size = q_size;
    AttentionScene scene(options);
    scene.upload();
    for (const auto& [width, cluster] : {std::pair{8, 16}, {16, 4}}) {
      check_few(scene, width, cluster, text("scales ", low, "..", high, " q ", q_size), 4);
    }
  }
}

TEST_F(FewAttentionGpuSmall, SmallRowsBesideLargeOnes) {
  // Even heads see only rows of small scale, odd heads only large ones, in one block: what one kind
  // is rounded to must not be the other kind's unit. (Within a head and 64 dims it is: f16 holds
  // what is above 2^-38 of the largest.)
  for (const auto& [small, large, small_rope] : {std::tuple{124, 128, 0x3F80},
                                                 std::tuple{102, 128, 0x3F80},
                                                 std::tuple{60, 140, 0x3F80},
                                                 std::tuple{127, 128, 0x3200}}) {
    constexpr int32_t kRows = 160;
    SceneOptions options;
    options.heads = 16;
    options.first = {.length = kRows, .capacity = kRows};
    AttentionScene scene(options);
    testing::RandomValues random(5);
    for (int32_t row = 0; row < kRows; ++row) {
      const bool is_small = row % 2 == 0;
      const int scale = is_small ? small : large;
      scene.first().set_row(0, row, row);
      scene.first().pool().write_row(row, random, scale, scale);
      for (int dim = 1; dim < kKvRopeDims; ++dim) {
        const int bits = is_small ? small_rope : 0x4080;
        scene.first().pool().set_rope(row, dim, static_cast<uint16_t>(bits + (row * 7 + dim) % 64));
      }
      scene.first().pool().set_rope(row, 0, is_small ? 0x4080 : 0xC080);  // 4 and -4
    }
    std::fill(scene.q().begin(), scene.q().end(), static_cast<uint16_t>(0));
    for (std::size_t head = 0; head < 16; ++head) {
      scene.q()[head * kKvDims + kKvNopeDims] = head % 2 == 0 ? 0x42C8 : 0xC2C8;  // 100 and -100
    }
    scene.upload();
    for (const auto& [width, cluster] : {std::pair{8, 4}, {16, 4}, {8, 16}, {16, 16}}) {
      check_few(scene,
                width,
                cluster,
                text("scales ", small, " and ", large, ", small bf16 ", small_rope));
    }
  }
}

TEST_F(FewAttentionGpuSmall, TurnsTheOutputBack) {
  for (const auto& [width, cluster] : {std::pair{8, 16}, {8, 4}, {16, 4}, {16, 16}}) {
    SceneOptions options;
    options.heads = 16;
    options.queries = 2;
    options.first = {.length = 30};
    options.inverse_rope = true;
    AttentionScene scene(options);
    scene.upload();
    check_few(scene, width, cluster, "inverse rope");
  }
}

SceneOptions few_c4_scene(int32_t heads, int32_t queries) {
  SceneOptions options;
  options.heads = heads;
  options.queries = queries;
  options.first = {.length = 128, .rows_per_page = 256};
  options.second = {.length = 512, .rows_per_page = 64};
  return options;
}

TEST_F(FewAttentionGpu, EveryWidthAndCut) {
  for (const int32_t heads : {8, 16, 32, 64, 128}) {
    for (const int32_t cluster : {4, 8, 16}) {
      SceneOptions options = few_c4_scene(heads, 2);
      options.first = {.length = 64, .lengths = {64, 50}, .rows_per_page = 256};
      options.second.length = 40 * cluster - 64;
      options.second.capacity = options.second.length;
      options.inverse_rope = true;
      AttentionScene scene(options);
      scene.upload();
      for (const int32_t width : {8, 16}) {
        if (width <= heads) {
          check_few(scene, width, cluster, text("heads ", heads), heads / 8 + 1);
        }
      }
    }
  }
}

TEST_F(FewAttentionGpu, DenseEntries) {
  SceneOptions options;
  options.heads = 16;
  options.queries = 2;
  options.first = {.length = 192, .rows_per_page = 256, .missing_first = 40};
  options.second = {.length = 576, .lengths = {576, 201}, .rows_per_page = 128, .dense = true};
  AttentionScene scene(options);
  scene.upload();
  for (const int32_t width : {8, 16}) {
    check_few(scene, width, 16, "dense", 4);
  }
}

TEST_F(FewAttentionGpu, OtherRowsOfTheBatchChangeNothing) {
  SceneOptions options = few_c4_scene(32, 7);
  options.first.lengths = {128, 5, 77};
  options.second.lengths = {512, 64, 0, 65};
  const std::vector<int32_t> order = {3, 0, 6, 1, 5, 2, 4};
  AttentionScene scene(options);
  scene.upload();
  check_few(scene, 8, 16, "batch of 7", 5);
  expect_permuted_bits(scene, few_plan(scene, 8, 16), order);
}

/// heads_per_block * 100 + cluster of the plan for few queries, or 0: another form.
int32_t few_cut(int32_t queries,
                int32_t heads,
                int32_t first,
                int32_t second,
                int32_t num_multiprocessors = 132) {
  const SparseAttentionPlan plan = plan_sparse_attention(
      {.num_queries = queries, .heads = heads, .first_capacity = first, .second_capacity = second},
      AttentionMode::kFast,
      num_multiprocessors);
  return plan.few ? plan.heads_per_block * 100 + plan.cluster : 0;
}

TEST(FewAttentionPlanTest, IsTakenWhereItIsFaster) {
  EXPECT_EQ(few_cut(1, 16, 128, 512), 816);
  EXPECT_EQ(few_cut(1, 64, 128, 512), 1616);
  EXPECT_EQ(few_cut(1, 64, 192, 576), 1616);
  EXPECT_EQ(few_cut(1, 64, 192, 577), 0);  // more than 48 slots of a block
  EXPECT_EQ(few_cut(1, 64, 128, 0), 808);
  EXPECT_EQ(few_cut(64, 64, 128, 512), 0);  // more clusters than fit
  EXPECT_FALSE(plan_sparse_attention({.num_queries = 1, .heads = 64, .first_capacity = 128},
                                     AttentionMode::kInvariant,
                                     132)
                   .few);
}

TEST(FewAttentionPlanTest, ASmallerCardHoldsFewerClusters) {
  EXPECT_EQ(few_cut(1, 16, 128, 512, 64), 816);
  EXPECT_EQ(few_cut(1, 16, 128, 512, 63), 0);  // needs clusters of sixteen
  EXPECT_EQ(few_cut(1, 64, 128, 512, 64), 1616);
  EXPECT_EQ(few_cut(1, 16, 128, 0, 16), 804);  // two clusters share 16 multiprocessors
  EXPECT_EQ(few_cut(1, 64, 128, 512, 16), 0);
}

TEST_F(FewAttentionGpu, RepeatedLaunchesGiveEqualBits) {
  AttentionScene scene(few_c4_scene(64, 2));
  scene.upload();
  for (const int32_t width : {8, 16}) {
    const SparseAttentionPlan plan = few_plan(scene, width, 16);
    const SceneOutput first = run(scene, plan);
    for (int repeat = 0; repeat < 1000; ++repeat) {
      SparseAttentionParams params = scene.params(plan);
      params.programmatic = repeat % 2 != 0;
      launch_sparse_attention(params, stream());
      if (repeat % 100 == 99) {
        synchronize();
        ASSERT_TRUE(scene.output() == first) << "width " << width << " repeat " << repeat;
      }
    }
  }
}

}  // namespace
}  // namespace baleen::kernels
