#include "cache/choice_table.h"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "cache/pick_codec.h"

namespace baleen::cache {
namespace {

/// Two routed layers of three experts, two picking layers of the four best entries of ratio 4.
ChoiceLayout small_layout() {
  ChoiceLayout layout;
  layout.routed_layers = {1, 2};
  layout.picking_layers = {1, 3};
  layout.num_experts = 300;
  layout.experts_per_token = 3;
  layout.ratio = 4;
  layout.topk = 4;
  return layout;
}

std::vector<uint8_t> some_bytes(int64_t count, int32_t salt) {
  std::vector<uint8_t> bytes;
  for (int64_t i = 0; i < count; ++i) {
    bytes.push_back(static_cast<uint8_t>(31 * i + 7 * salt + 1));
  }
  return bytes;
}

struct Record {
  std::vector<uint8_t> routes, picks;
  bool operator==(const Record&) const = default;
};

Record record_of(const ChoiceLayout& layout, int32_t position, int32_t salt) {
  return {some_bytes(layout.route_bytes(), position + salt),
          some_bytes(layout.pick_bytes(position), position + salt + 5)};
}

void write(ChoiceTable& table, int32_t page, int32_t position, int32_t salt) {
  const Record record = record_of(table.layout(), position, salt);
  table.write(FullPage(page), position, record.routes, record.picks);
}

Record read(const ChoiceTable& table, int32_t page, int32_t position) {
  Record record;
  table.read(FullPage(page), position, record.routes, record.picks);
  return record;
}

TEST(ChoiceLayoutTest, SizesFollowTheConfiguration) {
  ModelConfig config;
  config.n_routed_experts = 256;
  config.num_experts_per_tok = 6;
  config.index_topk = 512;
  config.num_hidden_layers = 5;
  config.layers = {{LayerKind::kSwa, 0, true},
                   {LayerKind::kC4, 4, true},
                   {LayerKind::kC128, 128, false},
                   {LayerKind::kC4, 4, false},
                   {LayerKind::kC128, 128, false},
                   {LayerKind::kSwa, 0, false}};  // the draft layer
  const ChoiceLayout layout = choice_layout(config);
  EXPECT_EQ(layout.routed_layers, (std::vector<int32_t>{2, 3, 4}));
  EXPECT_EQ(layout.picking_layers, (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(layout.route_bytes(), 3 * 6);
  EXPECT_EQ(layout.pick_bytes(2050), 0);  // 512 entries: all of them
  EXPECT_EQ(layout.pick_bytes(2051), 2 * (1 + 65));
  EXPECT_EQ(layout.pick_bytes(2049, 2053), 4 * (1 + 65));
  config.n_routed_experts = 257;
  EXPECT_EQ(choice_layout(config).route_bytes(), 3 * 6 * 2);
  config.layers.assign(6, {LayerKind::kSwa, 0, true});
  EXPECT_EQ(choice_layout(config).route_bytes(), 0);
  EXPECT_EQ(choice_layout(config).pick_bytes(100000), 0);
}

TEST(ChoiceTableTest, RecordsOfAllPositionsOfAPageComeBack) {
  ChoiceTable table(small_layout(), 3);
  EXPECT_EQ(table.bytes(), 0);
  for (const int32_t block : {0, 1, 7}) {
    for (int32_t position = 256 * block; position < 256 * (block + 1); ++position) {
      write(table, 2, position, block);
    }
    for (int32_t position = 256 * block; position < 256 * (block + 1); ++position) {
      ASSERT_EQ(read(table, 2, position), record_of(table.layout(), position, block)) << position;
    }
  }
  EXPECT_GT(table.bytes(), 0);
}

TEST(ChoiceTableTest, TakesThePlannedBytes) {
  const ChoiceLayout layout = small_layout();
  int64_t most = 0;
  for (const int32_t block : {0, 1, 7, 30}) {
    ChoiceTable table(layout, 3);
    write(table, 1, 256 * block, 0);  // all of a page's memory comes with its first record
    EXPECT_EQ(table.bytes(), ChoiceTable::page_bytes(layout, block)) << block;
    for (int32_t position = 256 * block; position < 256 * (block + 1); ++position) {
      write(table, 2, position, block);
    }
    EXPECT_EQ(table.bytes(), 2 * ChoiceTable::page_bytes(layout, block)) << block;
    most = std::max(most, ChoiceTable::page_bytes(layout, block));
  }
  EXPECT_GE(ChoiceTable::most_page_bytes(layout, 31 * 256), most);
  EXPECT_EQ(ChoiceTable::most_page_bytes(layout, 1), ChoiceTable::page_bytes(layout, 0));
  EXPECT_EQ(ChoiceTable::most_page_bytes(layout, 257),
            std::max(ChoiceTable::page_bytes(layout, 0), ChoiceTable::page_bytes(layout, 1)));
}

TEST(ChoiceTableTest, ARecordIsReplacedByItsPositionsNextOne) {
  ChoiceTable table(small_layout(), 3);
  for (int32_t position = 0; position < 40; ++position) {
    write(table, 1, position, 0);
  }
  write(table, 1, 39, 9);  // a refused draft's row, run again
  EXPECT_EQ(read(table, 1, 38), record_of(table.layout(), 38, 0));
  EXPECT_EQ(read(table, 1, 39), record_of(table.layout(), 39, 9));
}

TEST(ChoiceTableTest, ACopyTakesTheFirstRecordsAndGoesOnByItself) {
  ChoiceTable table(small_layout(), 4);
  for (int32_t position = 256; position < 400; ++position) {
    write(table, 1, position, 0);
  }
  for (int32_t position = 0; position < 256; ++position) {
    write(table, 3, position, 4);  // the target held another block
  }
  table.copy(1, FullPage(1), FullPage(3), 100);
  for (int32_t position = 356; position < 380; ++position) {
    write(table, 3, position, 2);
  }
  EXPECT_EQ(read(table, 3, 355), record_of(table.layout(), 355, 0));
  EXPECT_EQ(read(table, 3, 356), record_of(table.layout(), 356, 2));
  EXPECT_EQ(read(table, 1, 356), record_of(table.layout(), 356, 0));
}

TEST(ChoiceTableDeathTest, RecordsThatWereNotWrittenAreRefused) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  ChoiceTable table(small_layout(), 3);
  write(table, 1, 0, 0);
  write(table, 1, 1, 0);
  EXPECT_DEATH(read(table, 1, 2), "no record of position 2 in page 1");
  EXPECT_DEATH(read(table, 2, 0), "no record of position 0 in page 2");
  table.copy(0, FullPage(1), FullPage(2), 1);
  EXPECT_DEATH(read(table, 2, 1), "no record of position 1 in page 2");
  write(table, 1, 0, 1);  // the page begins anew
  EXPECT_DEATH(read(table, 1, 1), "no record of position 1 in page 1");
  EXPECT_DEATH(read(table, 0, 0), "page 0 of 4");
  EXPECT_DEATH(table.write(FullPage(1), 1, {}, {}), "0 bytes of routes for 12");
}

}  // namespace
}  // namespace baleen::cache
