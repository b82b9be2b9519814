#include "cache/pool_layout.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cache/cache_shape.h"
#include "cache/pool.h"

namespace baleen::cache {
namespace {

TEST(PoolLayoutTest, PackedBlocksOfThePublishedShape) {
  struct Case {
    int64_t rows, used, stride;
  };
  for (const Case& c : {Case{256, 149504, 149760},
                        Case{128, 74752, 74880},
                        Case{64, 37376, 37440},
                        Case{2, 1168, 1728}}) {
    const BlockLayout block = kv_block(KvFormat::kPacked, 512, 64, c.rows);
    EXPECT_EQ(block.value_row_bytes, 576);
    EXPECT_EQ(block.scale_row_bytes, 8);
    EXPECT_EQ(block.entry_bytes(), 584);
    EXPECT_EQ(block.rows * block.entry_bytes(), c.used);
    EXPECT_EQ(block.block_bytes, c.stride);
    EXPECT_EQ(block.value_offset(3, 1), 3 * c.stride + 576);
    EXPECT_EQ(block.scale_offset(3, 1), 3 * c.stride + 576 * c.rows + 8);
  }
}

TEST(PoolLayoutTest, IndexKeys) {
  const BlockLayout fp8 = index_block(IndexFormat::kFp8, 128, 64);
  EXPECT_EQ(fp8.block_bytes, 8448);
  EXPECT_EQ(fp8.value_offset(0, 5), 128 * 5);
  EXPECT_EQ(fp8.scale_offset(0, 5), 128 * 64 + 4 * 5);
  const BlockLayout fp4 = index_block(IndexFormat::kFp4, 128, 64);
  EXPECT_EQ(fp4.block_bytes, 4352);
  EXPECT_EQ(fp4.entry_bytes(), 68);
  EXPECT_EQ(index_block(IndexFormat::kFp4, 16, 64).entry_bytes(), 8 + 1) << "a short scale block";
  EXPECT_EQ(index_block(IndexFormat::kFp8, 32, 64).entry_bytes(), 32 + 4);
}

TEST(PoolLayoutTest, OtherHeadWidthsAndRawForms) {
  const BlockLayout tiny = kv_block(KvFormat::kPacked, 64, 32, 64);
  EXPECT_EQ(tiny.value_row_bytes, 32 + 64);
  EXPECT_EQ(tiny.scale_row_bytes, 8);
  EXPECT_EQ(tiny.block_bytes % tiny.value_row_bytes, 0);
  EXPECT_GE(tiny.block_bytes, 64 * tiny.entry_bytes());
  EXPECT_EQ(kv_block(KvFormat::kPacked, 1024, 64, 1).scale_row_bytes, 16) << "15 scales, padded";
  EXPECT_EQ(kv_block(KvFormat::kPacked, 160, 64, 1).scale_row_bytes, 8) << "96 dims: 64 and 32";
  for (const auto& [format, bytes] : std::vector<std::pair<KvFormat, int64_t>>{
           {KvFormat::kRawF64, 8}, {KvFormat::kRawF32, 4}, {KvFormat::kRawBf16, 2}}) {
    const BlockLayout raw = kv_block(format, 16, 8, 256);
    EXPECT_EQ(raw.entry_bytes(), 16 * bytes);
    EXPECT_EQ(raw.block_bytes, 256 * 16 * bytes);
  }
  EXPECT_EQ(index_block(IndexFormat::kRawF64, 16, 64).block_bytes, 64 * 16 * 8);
  EXPECT_EQ(index_block(IndexFormat::kRawF32, 16, 64).block_bytes, 64 * 16 * 4);
  EXPECT_EQ(index_block(IndexFormat::kRawBf16, 16, 64).block_bytes, 64 * 16 * 2);
}

TEST(PoolLayoutTest, RowsNeverOverlapNorLeaveTheBlock) {
  for (const int64_t head : {16, 64, 160, 512}) {
    for (const int64_t rows : {1, 2, 16, 64, 128, 256}) {
      const BlockLayout block = kv_block(KvFormat::kPacked, head, head / 8 * 2, rows);
      std::vector<int> owner(static_cast<std::size_t>(block.block_bytes), 0);
      const auto claim = [&](int64_t begin, int64_t bytes) {
        for (int64_t i = begin; i < begin + bytes; ++i) {
          ASSERT_LT(i, block.block_bytes);
          EXPECT_EQ(owner[static_cast<std::size_t>(i)]++, 0);
        }
      };
      for (int64_t row = 0; row < rows; ++row) {
        claim(block.value_offset(0, row), block.value_row_bytes);
        claim(block.scale_offset(0, row), block.scale_row_bytes);
      }
    }
  }
}

TEST(PoolLayoutTest, RingRows) {
  EXPECT_EQ(overlap_ring_row_bytes(512), 8192);
  EXPECT_EQ(overlap_ring_row_bytes(128), 2048);
  EXPECT_EQ(plain_ring_row_bytes(512), 4096);
  EXPECT_EQ(carry_row_bytes(512), 4096);
  EXPECT_EQ(carry_row_bytes(128), 1024);
  EXPECT_EQ(plain_ring_row_bytes(16, 8), 256);
}

TEST(PoolLayoutTest, EveryPoolHasItsName) {
  std::vector<std::string> names;
  for (int pool = 0; pool < kNumPools; ++pool) {
    names.emplace_back(pool_name(static_cast<Pool>(pool)));
    EXPECT_NE(names.back(), "unknown");
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
}

}  // namespace
}  // namespace baleen::cache
