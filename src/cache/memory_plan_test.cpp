#include "cache/memory_plan.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace baleen::cache {
namespace {

constexpr double kMib = 1048576.0;
constexpr double kGib = 1073741824.0;

/// Only what the cache looks at.
ModelConfig model(int64_t hidden, const std::vector<int64_t>& ratios) {
  ModelConfig config;
  config.hidden_size = hidden;
  config.num_hidden_layers = static_cast<int64_t>(ratios.size()) - 1;
  config.num_nextn_predict_layers = 1;
  config.head_dim = 512;
  config.qk_rope_head_dim = 64;
  config.index_head_dim = 128;
  config.sliding_window = 128;
  config.hc_mult = 4;
  for (const int64_t ratio : ratios) {
    config.layers.push_back({ratio == 0   ? LayerKind::kSwa
                             : ratio == 4 ? LayerKind::kC4
                                          : LayerKind::kC128,
                             ratio,
                             false});
  }
  return config;
}

std::vector<int64_t> ratios(int64_t first, int64_t layers) {
  std::vector<int64_t> out = {first, first};
  for (int64_t i = 2; i < layers; ++i) {
    out.push_back(i % 2 == 0 ? 4 : 128);
  }
  out.push_back(0);
  return out;
}

CacheShape flash(C128Storage storage = C128Storage::kShared,
                 IndexFormat index = IndexFormat::kFp8) {
  CacheFormats formats;
  formats.c128 = storage;
  formats.index = index;
  return cache_shape(model(4096, ratios(0, 43)), formats);
}
CacheShape pro(C128Storage storage = C128Storage::kShared) {
  CacheFormats formats;
  formats.c128 = storage;
  return cache_shape(model(7168, ratios(128, 61)), formats);
}

TEST(MemoryPlanTest, LayersOfThePublishedModels) {
  EXPECT_EQ(flash().num_c4, 21);
  EXPECT_EQ(flash().num_c128, 20);
  EXPECT_EQ(pro().num_c4, 30);
  EXPECT_EQ(pro().num_c128, 31);
}

struct ReferenceRow {
  bool pro;
  double ratio;
  bool drafts;
  bool per_request;
  double swa, c4, c128, indexer, c4_state, c128_state, indexer_state, total;
};

TEST(MemoryPlanTest, ReferenceBytesPerFullToken) {
  // Known to one decimal, totals to an integer (9,049.45 is known as 9,050).
  const ReferenceRow rows[] = {
      {false, 0.1, false, false, 2511.2, 3066.0, 91.2, 693.0, 1075.2, 8192.0, 268.8, 15897},
      {false, 0.1, true, false, 2511.2, 3066.0, 91.2, 693.0, 2150.4, 16384.0, 537.6, 25433},
      {false, 0.1, true, true, 2511.2, 3066.0, 91.2, 693.0, 2150.4, 0, 537.6, 9050},
      {false, 0.01, true, true, 251.1, 3066.0, 91.2, 693.0, 215.0, 0, 53.8, 4370},
      {true, 0.1, false, false, 3562.4, 4380.0, 141.4, 990.0, 1536.0, 12697.6, 384.0, 23691},
      {true, 0.1, true, false, 3562.4, 4380.0, 141.4, 990.0, 3072.0, 25395.2, 768.0, 38309},
      {true, 0.1, true, true, 3562.4, 4380.0, 141.4, 990.0, 3072.0, 0, 768.0, 12914},
      {true, 0.01, true, true, 356.2, 4380.0, 141.4, 990.0, 307.2, 0, 76.8, 6252},
  };
  for (const ReferenceRow& row : rows) {
    ReferenceOptions options;
    options.swa_full_tokens_ratio = row.ratio;
    options.c4_ring_rows = row.drafts ? 16 : 8;
    options.c128_ring_rows = row.drafts ? 256 : 128;
    options.c128_state_per_request = row.per_request;
    const ReferenceBytes bytes = reference_bytes_per_token(row.pro ? pro() : flash(), options);
    EXPECT_NEAR(bytes.swa, row.swa, 0.0501);
    EXPECT_NEAR(bytes.c4, row.c4, 0.0501);
    EXPECT_NEAR(bytes.c128, row.c128, 0.0501);
    EXPECT_NEAR(bytes.indexer, row.indexer, 0.0501);
    EXPECT_NEAR(bytes.c4_state, row.c4_state, 0.0501);
    EXPECT_NEAR(bytes.c128_state, row.c128_state, 0.0501);
    EXPECT_NEAR(bytes.indexer_state, row.indexer_state, 0.0501);
    EXPECT_NEAR(bytes.total(), row.total, 0.6);
  }
  ReferenceOptions with_draft;
  with_draft.c4_ring_rows = 16;
  with_draft.c128_ring_rows = 256;
  with_draft.count_draft_layers = true;
  EXPECT_NEAR(reference_bytes_per_token(flash(), with_draft).total(), 25492, 0.501);
  EXPECT_NEAR(reference_bytes_per_token(pro(), with_draft).total(), 38367, 0.501);
  ReferenceOptions shrunk;
  shrunk.c4_shrink = 2.0;
  EXPECT_NEAR(reference_bytes_per_token(flash(), shrunk).c4, 1533.0, 1e-9);
}

TEST(MemoryPlanTest, RetainedBytesWithOneC128BlockPerPage) {
  const RetainedBytes f = retained_bytes_per_token(flash(C128Storage::kPerPage));
  EXPECT_NEAR(f.c4, 3071, 0.5);
  EXPECT_NEAR(f.c128, 135, 0.5);
  EXPECT_NEAR(f.indexer, 693, 0.5);
  EXPECT_NEAR(f.total(), 3899, 0.5);
  EXPECT_NEAR(f.total() * 1048576 / kGib, 3.81, 0.005);
  EXPECT_NEAR(f.tokens_per_gib() / 1000, 275, 0.5);
  const RetainedBytes p = retained_bytes_per_token(pro(C128Storage::kPerPage));
  EXPECT_NEAR(p.c4, 4388, 0.501);  // 4,387.5
  EXPECT_NEAR(p.c128, 209, 0.5);
  EXPECT_NEAR(p.indexer, 990, 0.5);
  EXPECT_NEAR(p.total(), 5587, 0.5);
  EXPECT_NEAR(p.total() * 1048576 / kGib, 5.46, 0.005);
  EXPECT_NEAR(p.tokens_per_gib() / 1000, 192, 0.5);
}

TEST(MemoryPlanTest, RetainedBytesWithSharedC128Blocks) {
  const RetainedBytes f = retained_bytes_per_token(flash());
  EXPECT_NEAR(f.c4, 3071.3, 0.0501);
  EXPECT_NEAR(f.c128, 91.4, 0.05);
  EXPECT_NEAR(f.indexer, 693.0, 0.05);
  EXPECT_NEAR(f.total(), 3855.7, 0.05);
  EXPECT_NEAR(f.total() * 1048576 / kGib, 3.77, 0.005);
  EXPECT_NEAR(f.tokens_per_gib() / 1000, 278, 0.5);
  const RetainedBytes p = retained_bytes_per_token(pro());
  EXPECT_NEAR(p.c4, 4387.5, 0.05);
  EXPECT_NEAR(p.c128, 141.7, 0.05);
  EXPECT_NEAR(p.indexer, 990.0, 0.05);
  EXPECT_NEAR(p.total(), 5519.2, 0.05);
  EXPECT_NEAR(p.total() * 1048576 / kGib, 5.39, 0.005);
  EXPECT_NEAR(p.tokens_per_gib() / 1000, 195, 0.5);
}

TEST(MemoryPlanTest, LivePagesAndResumePoints) {
  const LivePageBytes f8 = live_page_bytes(flash(), 8, 128);
  const LivePageBytes f16 = live_page_bytes(flash(), 16, 256);
  const LivePageBytes p8 = live_page_bytes(pro(), 8, 128);
  const LivePageBytes p16 = live_page_bytes(pro(), 16, 256);
  EXPECT_NEAR(static_cast<double>(f8.window) / kMib, 6.14, 0.005);
  EXPECT_NEAR(static_cast<double>(p8.window) / kMib, 8.71, 0.005);
  EXPECT_NEAR(static_cast<double>(f8.c4_rings) / kMib, 1.64, 0.005);
  EXPECT_NEAR(static_cast<double>(f16.c4_rings) / kMib, 3.28, 0.005);
  EXPECT_NEAR(static_cast<double>(p8.c4_rings) / kMib, 2.34, 0.005);
  EXPECT_NEAR(static_cast<double>(p16.c4_rings) / kMib, 4.69, 0.005);
  EXPECT_NEAR(static_cast<double>(f8.c128_rings) / kMib, 10.0, 0.05);
  EXPECT_NEAR(static_cast<double>(f16.c128_rings) / kMib, 20.0, 0.05);
  EXPECT_NEAR(static_cast<double>(p8.c128_rings) / kMib, 15.5, 0.05);
  EXPECT_NEAR(static_cast<double>(p16.c128_rings) / kMib, 31.0, 0.05);
  EXPECT_NEAR(static_cast<double>(f16.total()) / kMib, 29.4, 0.05);
  EXPECT_NEAR(static_cast<double>(p16.total()) / kMib, 44.4, 0.05);
  EXPECT_EQ(flash().checkpoint_slot_bytes(), 3757568);
  EXPECT_EQ(pro().checkpoint_slot_bytes(), 5314304);
  EXPECT_NEAR(static_cast<double>(flash().checkpoint_slot_bytes()) / kMib, 3.58, 0.005);
  EXPECT_NEAR(static_cast<double>(pro().checkpoint_slot_bytes()) / kMib, 5.07, 0.005);
  EXPECT_EQ(flash().open_group_block_bytes(), 16 * 4096 * 20);
  EXPECT_EQ(pro().open_group_block_bytes(), 16 * 4096 * 31);
}

TEST(MemoryPlanTest, EveryTermOfTheSizing) {
  CacheSizes sizes;
  sizes.full_pages = 1000;
  sizes.swa_pages = 300;
  sizes.request_slots = 64;
  sizes.checkpoint_slots = 17;
  sizes.open_group_blocks = 5;
  sizes.c4_ring_rows = 16;
  sizes.c128_ring_rows = 136;
  const CacheBytes bytes = cache_bytes(flash(), sizes);
  EXPECT_EQ(bytes.c4, int64_t{1001} * 37440 * 21);
  EXPECT_EQ(bytes.indexer, int64_t{1001} * 8448 * 21);
  EXPECT_EQ(bytes.c128, int64_t{16} * 74880 * 20);  // 2,002 rows in blocks of 128
  EXPECT_EQ(bytes.swa, int64_t{301} * 149760 * 44);
  EXPECT_EQ(bytes.c4_state + bytes.indexer_state, int64_t{301 * 16 + 1} * (8192 + 2048) * 21);
  EXPECT_EQ(bytes.c128_state, int64_t{65} * 136 * 4096 * 20);
  EXPECT_EQ(bytes.checkpoints, int64_t{17} * 3757568);
  EXPECT_EQ(bytes.open_groups, int64_t{5} * 16 * 4096 * 20);
  EXPECT_EQ(cache_bytes(flash(C128Storage::kShared, IndexFormat::kFp4), sizes).indexer,
            int64_t{1001} * 4352 * 21);
  EXPECT_EQ(cache_bytes(flash(C128Storage::kPerPage), sizes).c128, int64_t{1001} * 1728 * 20);
}

TEST(MemoryPlanTest, FillsTheBudgetAndNotOneByteMore) {
  for (const bool drafts : {false, true}) {
    for (const double gib : {20.0, 33.3, 80.0}) {
      const auto budget = static_cast<int64_t>(gib * kGib);
      CachePlanOptions options;
      options.max_running_requests = 64;
      options.drafts = drafts;
      const CacheShape shape = flash();
      const CacheSizes sizes = fit_cache(shape, budget, options);
      const CacheBytes bytes = cache_bytes(shape, sizes);
      EXPECT_LE(bytes.total(), budget);
      CacheSizes more = sizes;
      more.full_pages += 1;
      more.swa_pages = 2 * 64 + 2 * 32 + 2 + more.full_pages / 10;
      EXPECT_GT(cache_bytes(shape, more).total(), budget);
      EXPECT_EQ(sizes.swa_pages, 2 * 64 + 2 * 32 + 2 + sizes.full_pages / 10);
      EXPECT_EQ(sizes.c4_ring_rows, drafts ? 16 : 8);
      EXPECT_EQ(sizes.c128_ring_rows, drafts ? 136 : 128);
      const double share =
          static_cast<double>(bytes.checkpoints + bytes.open_groups) / static_cast<double>(budget);
      EXPECT_NEAR(share, 0.1, 0.001);
      EXPECT_NEAR(
          static_cast<double>(bytes.open_groups) / static_cast<double>(budget), 0.025, 0.001);
    }
  }
}

TEST(MemoryPlanTest, RefusesWhatCannotFitAndWrongOptions) {
  EXPECT_THROW(fit_cache(flash(), 1 << 20, {}), ConfigError);
  EXPECT_THROW(fit_cache(flash(), 0, {}), ConfigError);
  CachePlanOptions options;
  options.swa_full_tokens_ratio = 1.5;
  EXPECT_THROW(fit_cache(flash(), int64_t{1} << 36, options), ConfigError);
  options = {};
  options.checkpoint_memory_fraction = -0.1;
  EXPECT_THROW(fit_cache(flash(), int64_t{1} << 36, options), ConfigError);
  options = {};
  options.max_running_requests = 0;
  EXPECT_THROW(fit_cache(flash(), int64_t{1} << 36, options), ConfigError);
  options = {};
  options.chunk_tokens = 0;
  EXPECT_THROW(fit_cache(flash(), int64_t{1} << 36, options), ConfigError);
}

TEST(MemoryPlanTest, OtherShapes) {
  // Window only: no compressed pools at all.
  const CacheShape window_only = cache_shape(model(64, {0, 0, 0}), {});
  EXPECT_EQ(retained_bytes_per_token(window_only).total(), 0.0);
  CachePlanOptions options;
  options.max_running_requests = 2;
  options.chunk_tokens = 256;
  const CacheSizes sizes = fit_cache(window_only, 100 << 20, options);
  EXPECT_LE(cache_bytes(window_only, sizes).total(), 100 << 20);
  EXPECT_EQ(sizes.open_group_blocks, 0);
  options.swa_full_tokens_ratio = 0.0;
  EXPECT_EQ(fit_cache(window_only, 100 << 20, options).full_pages, 1);

  ModelConfig mixed = model(64, {4, 128, 0});
  mixed.layers[1].ratio = 16;
  EXPECT_EQ(cache_shape(mixed, {}).c128_rows_per_page(), 16);
  mixed.layers[1].ratio = 24;
  EXPECT_THROW(cache_shape(mixed, {}), ConfigError);
  ModelConfig two = model(64, {128, 128, 0});
  two.layers[1].ratio = 64;
  EXPECT_THROW(cache_shape(two, {}), ConfigError);

  CacheFormats doubles;
  doubles.kv = KvFormat::kRawF64;
  doubles.index = IndexFormat::kRawF64;
  doubles.state_element_bytes = 8;
  doubles.stream_element_bytes = 8;
  const CacheShape raw = cache_shape(model(64, {4, 128, 0}), doubles);
  EXPECT_EQ(raw.swa_block.block_bytes, 256 * 512 * 8);
  EXPECT_EQ(raw.c4_state_row_bytes, 4 * 512 * 8);
  EXPECT_EQ(raw.streams_bytes, 4 * 64 * 8);
}

}  // namespace
}  // namespace baleen::cache
