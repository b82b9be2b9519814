#include "cache/choice_records.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "cache/pick_codec.h"

namespace baleen::cache {
namespace {

ChoiceLayout two_layers() {
  ChoiceLayout layout;
  layout.routed_layers = {1, 2};
  layout.picking_layers = {1, 3};
  layout.num_experts = 300;
  layout.experts_per_token = 2;
  layout.ratio = 4;
  layout.topk = 3;
  return layout;
}

int32_t expert_of(int32_t position, std::size_t layer, std::size_t slot, int32_t salt) {
  return (position * 7 + static_cast<int32_t>(layer * 40 + slot * 100) + salt) % 300;
}

/// The three entries from some place on.
std::vector<int32_t> picks_at(int32_t position, std::size_t layer, int32_t salt) {
  const int32_t visible = (position + 1) / 4;
  std::vector<int32_t> picks(static_cast<std::size_t>(std::min(visible, 3)));
  const int32_t last_begin = std::max(visible - 3, 0);
  std::iota(picks.begin(),
            picks.end(),
            last_begin == 0 ? 0 : (position + salt + static_cast<int32_t>(layer)) % last_begin);
  return picks;
}

ChoiceRecords some_records(int32_t first, int32_t end, int32_t salt) {
  const ChoiceLayout layout = two_layers();
  ChoiceRecords records;
  records.first_position = first;
  records.count = end - first;
  for (int32_t position = first; position < end; ++position) {
    for (std::size_t layer = 0; layer < 2; ++layer) {
      for (std::size_t slot = 0; slot < 2; ++slot) {
        const int32_t expert = expert_of(position, layer, slot, salt);
        records.routes.push_back(static_cast<uint8_t>(expert % 256));
        records.routes.push_back(static_cast<uint8_t>(expert / 256));
      }
    }
    for (std::size_t layer = 0; layer < 2; ++layer) {
      encode_picks(picks_at(position, layer, salt),
                   layout.visible_entries(position),
                   layout.topk,
                   records.picks);
    }
  }
  return records;
}

TEST(ChoiceRecordsTest, PartsGiveTheWholeAndTheFirstRecordStays) {
  const ChoiceLayout layout = two_layers();
  for (const int32_t first : {0, 5}) {
    ChoiceRecords known;
    known.first_position = first;
    take_choices(known, some_records(first, first + 7, 0), first + 7, layout);
    take_choices(known, some_records(0, first + 7, 9), first + 7, layout);  // run again
    take_choices(known, some_records(2, 30, 0), 25, layout);  // overlapping, last ones refused
    take_choices(known, some_records(25, 60, 0), 60, layout);
    EXPECT_EQ(known, some_records(first, 60, 0));
  }
}

TEST(ChoiceRecordsTest, NothingIsTakenBeforeTheFirstWantedPosition) {
  ChoiceRecords known;
  known.first_position = 20;
  take_choices(known, some_records(0, 15, 0), 15, two_layers());
  EXPECT_EQ(known.count, 0);
  take_choices(known, some_records(15, 24, 0), 24, two_layers());
  EXPECT_EQ(known, some_records(20, 24, 0));
}

TEST(ChoiceRecordsTest, EveryPositionIsReadBack) {
  const ChoiceLayout layout = two_layers();
  const ChoiceRecords records = some_records(3, 90, 4);
  const ChoiceReader reader(layout, records);
  for (int32_t position = 3; position < 90; ++position) {
    for (std::size_t layer = 0; layer < 2; ++layer) {
      EXPECT_EQ(reader.experts(position, layer),
                (std::vector<int32_t>{expert_of(position, layer, 0, 4),
                                      expert_of(position, layer, 1, 4)}));
      EXPECT_EQ(reader.picks(position, layer), picks_at(position, layer, 4));
    }
  }
}

TEST(ChoiceRecordsTest, OneByteHoldsUpTo256Experts) {
  ChoiceLayout layout = two_layers();
  layout.num_experts = 256;
  layout.picking_layers.clear();
  ChoiceRecords records;
  records.count = 1;
  records.routes = {1, 255, 0, 7};
  const ChoiceReader reader(layout, records);
  EXPECT_EQ(reader.experts(0, 0), (std::vector<int32_t>{1, 255}));
  EXPECT_EQ(reader.experts(0, 1), (std::vector<int32_t>{0, 7}));
}

TEST(ChoiceRecordsTest, BytesThatDoNotFitAreRefused) {
  const ChoiceLayout layout = two_layers();
  ChoiceRecords records = some_records(0, 20, 0);
  records.routes.pop_back();
  EXPECT_THROW(ChoiceReader(layout, records), Error);
  records = some_records(0, 20, 0);
  records.picks.push_back(0);
  EXPECT_THROW(ChoiceReader(layout, records), Error);
  records = some_records(0, 1, 0);
  records.routes[1] = 2;  // expert 512 and more
  EXPECT_THROW(ChoiceReader(layout, records).experts(0, 0), Error);
}

TEST(ChoiceRecordsDeathTest, GapsAbort) {
  ChoiceRecords known;
  EXPECT_DEATH(take_choices(known, some_records(3, 5, 0), 5, two_layers()),
               "choices from position 3 behind those up to 0");
}

}  // namespace
}  // namespace baleen::cache
