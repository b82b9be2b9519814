#include "cache/pick_hashes.h"

#include <cstddef>
#include <vector>

#include <gtest/gtest.h>

#include "cache/pick_codec.h"

namespace baleen::cache {
namespace {

TEST(PickHashesTest, TellSetsApart) {
  ChoiceLayout layout;
  layout.picking_layers = {1, 3};
  layout.ratio = 4;
  layout.topk = 3;
  ChoiceRecords records;
  records.first_position = 10;
  records.count = 10;
  for (int32_t position = 10; position < 20; ++position) {
    const int32_t visible = layout.visible_entries(position);
    for (int layer = 0; layer < 2; ++layer) {
      std::vector<int32_t> set = {0, 1, visible - 1 - layer};
      if (visible <= 3) {
        set = {0, 1, 2};
        set.resize(static_cast<std::size_t>(visible));
      }
      encode_picks(set, visible, 3, records.picks);
    }
  }
  const std::vector<uint32_t> hashes = pick_hashes(layout, records);
  ASSERT_EQ(hashes.size(), 20U);
  for (std::size_t t = 0; t < 10; ++t) {
    const int32_t visible = layout.visible_entries(10 + static_cast<int32_t>(t));
    for (std::size_t layer = 0; layer < 2; ++layer) {
      const uint32_t expected =
          visible <= 3
              ? 0
              : pick_hash(std::vector<int32_t>{0, 1, visible - 1 - static_cast<int32_t>(layer)});
      EXPECT_EQ(hashes[t * 2 + layer], expected);
    }
  }
  EXPECT_NE(pick_hash(std::vector<int32_t>{0, 1, 3}), pick_hash(std::vector<int32_t>{0, 1, 2}));
  // XXH3-64 of no bytes is a published value.
  EXPECT_EQ(pick_hash({}), 0x38D394C2U);
}

}  // namespace
}  // namespace baleen::cache
