// The pools allocate what the planner says, and no two rows share a byte.

#include "cache/pool_memory.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace baleen::cache {
namespace {

ModelConfig config() {
  ModelConfig config;
  config.hidden_size = 24;
  config.hc_mult = 4;
  config.num_hidden_layers = 5;
  config.num_nextn_predict_layers = 1;
  config.head_dim = 72;
  config.qk_rope_head_dim = 8;
  config.index_head_dim = 32;
  config.sliding_window = 128;
  config.layers = {{LayerKind::kSwa, 0, false},
                   {LayerKind::kC4, 4, false},
                   {LayerKind::kC128, 128, false},
                   {LayerKind::kC4, 4, false},
                   {LayerKind::kC128, 128, false},
                   {LayerKind::kSwa, 0, false}};
  return config;
}

CacheSizes sizes() {
  CacheSizes sizes;
  sizes.full_pages = 70;  // more than one shared kC128 block
  sizes.swa_pages = 3;
  sizes.request_slots = 2;
  sizes.checkpoint_slots = 2;
  sizes.open_group_blocks = 3;
  sizes.c4_ring_rows = 8;
  sizes.c128_ring_rows = 136;
  return sizes;
}

PoolMemory make(bool paint, const CacheFormats& formats = {}) {
  const ModelConfig model = config();
  return PoolMemory(
      cache_shape(model, formats),
      formats,
      {.kv = EntryCodec::kv(formats.kv, model.head_dim, model.qk_rope_head_dim),
       .index = EntryCodec::index(formats.index, model.index_head_dim, IndexRounding::kE2m1)},
      sizes(),
      paint);
}

TEST(PoolMemoryTest, AllocatesWhatThePlannerCounts) {
  for (const C128Storage storage : {C128Storage::kShared, C128Storage::kPerPage}) {
    CacheFormats formats;
    formats.c128 = storage;
    const PoolMemory pools = make(false, formats);
    EXPECT_EQ(pools.bytes(), cache_bytes(pools.shape(), sizes()).total());
  }
}

TEST(PoolMemoryTest, NoTwoRowsShareAByte) {
  PoolMemory pools = make(false);
  std::map<uint8_t*, std::pair<int64_t, std::string>> pieces;  // begin -> length, name
  const auto note = [&](uint8_t* begin, int64_t length, const std::string& name) {
    if (begin != nullptr) {
      EXPECT_TRUE(pieces.emplace(begin, std::pair(length, name)).second) << name;
    }
  };
  const auto note_row = [&](RowPlace row, const BlockLayout& layout, const std::string& name) {
    note(row.value, layout.value_row_bytes, name);
    note(row.scales, layout.scale_row_bytes, name + " scales");
  };
  const CacheShape& shape = pools.shape();
  for (int32_t page = 0; page <= sizes().swa_pages; ++page) {
    for (int64_t layer = 0; layer < 6; ++layer) {
      for (int64_t row = 0; row < kPageTokens; ++row) {
        note_row(pools.swa(layer, SwaPage(page), row), shape.swa_block, "swa");
      }
    }
    for (int64_t layer = 0; layer < 2; ++layer) {
      for (int64_t row = 0; row < sizes().c4_ring_rows; ++row) {
        note(pools.c4_state(layer, SwaPage(page), row).value, shape.c4_state_row_bytes, "c4 state");
        note(pools.index_state(layer, SwaPage(page), row).value,
             shape.index_state_row_bytes,
             "index state");
      }
    }
  }
  for (int32_t page = 0; page <= sizes().full_pages; ++page) {
    for (int64_t layer = 0; layer < 2; ++layer) {
      for (int64_t row = 0; row < kPageTokens / 4; ++row) {
        note_row(pools.c4(layer, FullPage(page), row), shape.c4_block, "c4");
        note_row(pools.index(layer, FullPage(page), row), shape.index_block, "index");
      }
      for (int64_t row = 0; row < kPageTokens / 128; ++row) {
        note_row(pools.c128(layer, FullPage(page), row), shape.c128_block, "c128");
      }
    }
  }
  for (int32_t slot = -1; slot < sizes().request_slots; ++slot) {  // -1: the sink
    for (int64_t layer = 0; layer < 2; ++layer) {
      for (int64_t row = 0; row < sizes().c128_ring_rows; ++row) {
        note(pools.c128_state(layer, RequestSlot(slot), row).value,
             shape.c128_state_row_bytes,
             "c128 state");
      }
    }
  }
  for (int64_t slot = 0; slot < sizes().checkpoint_slots; ++slot) {
    note(pools.checkpoint(slot), shape.checkpoint_slot_bytes(), "checkpoint");
  }
  for (int64_t block = 0; block < sizes().open_group_blocks; ++block) {
    note(pools.open_group(block), shape.open_group_block_bytes(), "open group");
  }
  uint8_t* end = nullptr;
  std::string last;
  for (const auto& [begin, piece] : pieces) {
    ASSERT_GE(begin, end) << piece.second << " runs into " << last;
    end = begin + piece.first;
    last = piece.second;
    std::fill_n(begin, piece.first, uint8_t{0});  // the sanitizer sees a place outside its region
  }
}

TEST(PoolMemoryTest, TheTwoKC128EntriesOfAPageAreAdjacent) {
  PoolMemory pools = make(false);
  for (const int32_t page : {0, 1, 63, 64, 70}) {
    const RowPlace first = pools.c128(1, FullPage(page), 0);
    const RowPlace second = pools.c128(1, FullPage(page), 1);
    EXPECT_EQ(second.value - first.value, pools.shape().c128_block.value_row_bytes);
    EXPECT_EQ(second.scales - first.scales, pools.shape().c128_block.scale_row_bytes);
  }
}

TEST(PoolMemoryTest, PaintCoversAPageInEveryLayerAndNothingElse) {
  PoolMemory pools = make(true);
  const auto fill = [&](RowPlace row, uint8_t byte) {
    *row.value = byte;
    if (row.scales != nullptr) {
      *row.scales = byte;
    }
  };
  const auto each = [&](int32_t page, auto&& use) {
    for (int64_t layer = 0; layer < 6; ++layer) {
      use(pools.swa(layer, SwaPage(page), 255), true);
    }
    for (int64_t layer = 0; layer < 2; ++layer) {
      use(pools.c4_state(layer, SwaPage(page), 7), true);
      use(pools.index_state(layer, SwaPage(page), 7), true);
      use(pools.c4(layer, FullPage(page), 63), false);
      use(pools.index(layer, FullPage(page), 63), false);
      use(pools.c128(layer, FullPage(page), 1), false);
    }
  };
  for (int32_t page = 0; page <= 3; ++page) {
    each(page, [&](RowPlace row, bool) { fill(row, 1); });
  }
  pools.paint_swa_page(SwaPage(2));
  for (int32_t page = 0; page <= 3; ++page) {
    each(page, [&](RowPlace row, bool window) {
      EXPECT_EQ(*row.value, page == 2 && window ? 0xFF : 1) << page;
    });
  }
  pools.paint_full_page(FullPage(2));
  for (int32_t page = 0; page <= 3; ++page) {
    each(page, [&](RowPlace row, bool) { EXPECT_EQ(*row.value, page == 2 ? 0xFF : 1) << page; });
  }
}

}  // namespace
}  // namespace baleen::cache
