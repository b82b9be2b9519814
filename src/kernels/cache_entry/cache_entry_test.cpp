#include <gtest/gtest.h>

#include "kernels/cache_entry/cache_entry_layout.h"

namespace baleen::kernels {
namespace {

// The same numbers as the cache's own layout test: a page written by one is read by the other.
TEST(CacheEntryLayoutTest, PagesHaveThePublishedBytes) {
  EXPECT_EQ(kv_page_bytes(256), 149760);
  EXPECT_EQ(kv_page_bytes(128), 74880);
  EXPECT_EQ(kv_page_bytes(64), 37440);
  EXPECT_EQ(kv_page_bytes(2), 1728);
  EXPECT_EQ(index_page_bytes(IndexKeyFormat::kFp4InFp8, 64), 8448);
  EXPECT_EQ(index_page_bytes(IndexKeyFormat::kFp8, 64), 8448);
  EXPECT_EQ(index_page_bytes(IndexKeyFormat::kFp4, 64), 4352);
}

TEST(CacheEntryLayoutTest, RowsLieBeforeTheirScales) {
  const KvPoolView kv{nullptr, 37440, 64};
  EXPECT_EQ(kv_value_offset(kv, 64 + 3), 37440 + 576 * 3);
  EXPECT_EQ(kv_scale_offset(kv, 64 + 3), 37440 + 576 * 64 + 8 * 3);
  const IndexPoolView keys{nullptr, 4352, 64, IndexKeyFormat::kFp4};
  EXPECT_EQ(index_value_offset(keys, 128 + 5), 2 * 4352 + 64 * 5);
  EXPECT_EQ(index_scale_offset(keys, 128 + 5), 2 * 4352 + 64 * 64 + 4 * 5);
}

TEST(CacheEntryLayoutTest, OffsetsPastTwoGigabytesAreExact) {
  const KvPoolView kv{nullptr, 149760, 256};
  EXPECT_EQ(kv_value_offset(kv, 256 * 40000 + 255), int64_t{149760} * 40000 + 576 * 255);
}

}  // namespace
}  // namespace baleen::kernels
