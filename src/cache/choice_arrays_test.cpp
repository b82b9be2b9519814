#include "cache/choice_arrays.h"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "cache/pick_codec.h"

namespace baleen::cache {
namespace {

/// Layer 0 by token id, 1 and 3 by score, 2 by token id again; 3 picks.
ChoiceLayout mixed_layout(int32_t num_experts) {
  ChoiceLayout layout;
  layout.routed_layers = {1, 3};
  layout.picking_layers = {3};
  layout.num_experts = num_experts;
  layout.experts_per_token = 2;
  layout.ratio = 4;
  layout.topk = 2;
  return layout;
}

TokenRoutes some_token_routes() {
  TokenRoutes routes;
  routes.layers = {0, 2};
  routes.vocab_size = 3;
  routes.experts_per_token = 2;
  routes.experts = {1, 2, 3, 4, 5, 6, 11, 12, 13, 14, 15, 16};
  return routes;
}

TEST(ChoiceArraysTest, LayersThatChooseByTokenAreFilledIn) {
  const TokenRoutes by_token = some_token_routes();
  ChoiceRecords records;
  records.first_position = 7;
  records.count = 2;
  records.routes = {20, 21, 30, 31, 22, 23, 32, 33};
  const std::vector<int32_t> ids = {2, 0};
  EXPECT_EQ(expert_array(mixed_layout(40), records, &by_token, ids),
            (std::vector<int32_t>{5, 6, 20, 21, 15, 16, 30, 31, 1, 2, 22, 23, 11, 12, 32, 33}));
  records.routes.pop_back();
  EXPECT_THROW(expert_array(mixed_layout(40), records, &by_token, ids), Error);
}

TEST(ChoiceArraysTest, ExpertsAbove255HaveTwoBytes) {
  const TokenRoutes by_token = some_token_routes();
  ChoiceRecords records;
  records.count = 1;
  records.routes = {1, 1, 255, 1, 0, 0, 7, 0};
  const std::vector<int32_t> ids = {1};
  EXPECT_EQ(expert_array(mixed_layout(512), records, &by_token, ids),
            (std::vector<int32_t>{3, 4, 257, 511, 13, 14, 0, 7}));
}

TEST(ChoiceArraysTest, PicksArePaddedAndWholeSetsAreWrittenOut) {
  const ChoiceLayout layout = mixed_layout(40);
  ChoiceRecords records;
  records.first_position = 2;  // sees 0 entries; 3 .. 6 see 1; 7 .. 10 see 2; 11 sees 3
  records.count = 10;
  encode_picks(std::vector<int32_t>{0, 2}, 3, 2, records.picks);
  const std::vector<int32_t> array = pick_array(layout, records);
  ASSERT_EQ(array.size(), 20U);
  EXPECT_EQ(array[0], -1);
  EXPECT_EQ(array[1], -1);
  EXPECT_EQ(array[2], 0);
  EXPECT_EQ(array[3], -1);
  EXPECT_EQ(array[10], 0);  // position 7
  EXPECT_EQ(array[11], 1);
  EXPECT_EQ(array[18], 0);  // position 11
  EXPECT_EQ(array[19], 2);
  records.picks.push_back(0);
  EXPECT_THROW(pick_array(layout, records), Error);
}

}  // namespace
}  // namespace baleen::cache
