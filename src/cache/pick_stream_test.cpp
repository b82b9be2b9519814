#include "cache/pick_stream.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "cache/pick_codec.h"

namespace baleen::cache {
namespace {

ChoiceLayout stream_layout(int32_t topk, std::size_t layers) {
  ChoiceLayout layout;
  for (std::size_t i = 0; i < layers; ++i) {
    layout.picking_layers.push_back(static_cast<int32_t>(2 * i + 1));
  }
  layout.num_experts = 8;
  layout.experts_per_token = 2;
  layout.ratio = 4;
  layout.topk = topk;
  return layout;
}

std::vector<int32_t> random_set(int32_t visible, int32_t topk, std::mt19937& random) {
  std::vector<int32_t> all(static_cast<std::size_t>(visible));
  std::iota(all.begin(), all.end(), 0);
  std::vector<int32_t> set;
  std::sample(all.begin(), all.end(), std::back_inserter(set), topk, random);
  return set;
}

/// The set before with a few entries exchanged.
std::vector<int32_t> next_set(const std::vector<int32_t>& before,
                              int32_t visible,
                              int exchanged,
                              std::mt19937& random) {
  std::vector<int32_t> set = before;
  for (int i = 0; i < exchanged; ++i) {
    const auto entry = static_cast<int32_t>(random() % static_cast<uint32_t>(visible));
    if (std::find(set.begin(), set.end(), entry) == set.end()) {
      set[random() % set.size()] = entry;
    }
  }
  std::sort(set.begin(), set.end());
  return set;
}

/// Writes `tokens` positions from where `visible` entries are seen on and reads them back.
void expect_stream(int32_t topk, int32_t visible, int exchanged, uint32_t seed) {
  const ChoiceLayout layout = stream_layout(topk, 2);
  const int32_t first = 4 * visible - 1;
  constexpr int32_t kTokens = 9;
  std::mt19937 random(seed);
  std::vector<PicksByLayer> told;
  std::vector<uint8_t> bytes;
  int64_t bound = 0;
  PickStreamWriter writer(layout, first);
  for (int32_t t = 0; t < kTokens; ++t) {
    const int32_t sees = layout.visible_entries(first + t);
    PicksByLayer picks(2);
    for (std::size_t layer = 0; layer < 2; ++layer) {
      picks[layer] = t == 0 || exchanged < 0
                         ? random_set(sees, std::min(sees, topk), random)
                         : next_set(told.back()[layer], sees, exchanged, random);
      if (static_cast<int32_t>(picks[layer].size()) < std::min(sees, topk)) {
        picks[layer] = random_set(sees, std::min(sees, topk), random);
      }
    }
    writer.add(picks, bytes);
    told.push_back(picks);
    bound += 2 * coded_picks_bytes(sees, topk);
  }
  EXPECT_LE(static_cast<int64_t>(bytes.size()), bound) << "never more than sets of their own";
  if (exchanged >= 0 && exchanged < 3 && topk >= 64) {
    // A few changed entries instead of the whole set, but for the first.
    EXPECT_LT(static_cast<int64_t>(bytes.size()),
              2 * coded_picks_bytes(visible, topk) + 2 * kTokens * 24);
  }
  bytes.push_back(kChangedPicks);  // belongs to somebody else
  PickStreamReader reader(layout, first, bytes);
  PicksByLayer picks;
  for (int32_t t = 0; t < kTokens; ++t) {
    reader.next(picks);
    ASSERT_EQ(picks, told[static_cast<std::size_t>(t)])
        << topk << " of " << visible << ", token " << t;
  }
  EXPECT_EQ(reader.used(), bytes.size() - 1);
}

TEST(PickStreamTest, SetsOfAllContextsComeBack) {
  for (const int32_t topk : {1, 2, 3, 64, 512}) {
    for (const int32_t visible : {topk - 1, topk, topk + 1, 2 * topk + 3, 17 * topk, 262144}) {
      for (const int exchanged : {-1, 0, 1, 2, 40}) {
        ASSERT_NO_FATAL_FAILURE(
            expect_stream(topk, std::max(visible, 1), exchanged, static_cast<uint32_t>(topk)));
      }
    }
  }
}

TEST(PickStreamTest, ATrivialRangeIsEmpty) {
  const ChoiceLayout layout = stream_layout(512, 21);
  PickStreamWriter writer(layout, 0);
  std::vector<uint8_t> bytes;
  for (int32_t t = 0; t < 2051; ++t) {
    std::vector<int32_t> all(static_cast<std::size_t>((t + 1) / 4));
    std::iota(all.begin(), all.end(), 0);
    writer.add(PicksByLayer(21, all), bytes);
  }
  EXPECT_TRUE(bytes.empty());
}

TEST(PickStreamTest, BytesOfAKnownStream) {
  const ChoiceLayout layout = stream_layout(512, 1);
  std::vector<int32_t> set(512);
  std::iota(set.begin(), set.end(), 100);
  PickStreamWriter writer(layout, 4 * 4096 - 1);
  std::vector<uint8_t> bytes;
  writer.add({set}, bytes);
  const std::size_t whole = bytes.size();
  EXPECT_EQ(static_cast<int64_t>(whole), coded_picks_bytes(4096, 512));
  set.erase(set.begin());
  set.push_back(900);
  writer.add({set}, bytes);
  // Two entries changed: 100, and 900 which is 799 further than the next one: 31 and 6 * 128.
  EXPECT_EQ(std::vector<uint8_t>(bytes.begin() + static_cast<std::ptrdiff_t>(whole), bytes.end()),
            (std::vector<uint8_t>{3, 2, 100, 0x80 + 31, 6}));
}

TEST(PickStreamTest, BytesThatAreNoStreamAreRefused) {
  const ChoiceLayout layout = stream_layout(4, 1);
  const std::vector<uint8_t> first = [&] {
    std::vector<uint8_t> bytes;
    PickStreamWriter(layout, 79).add({{0, 5, 7, 19}}, bytes);
    return bytes;
  }();
  const auto second = [&](std::vector<uint8_t> more) {
    std::vector<uint8_t> bytes = first;
    bytes.insert(bytes.end(), more.begin(), more.end());
    PickStreamReader reader(layout, 79, bytes);
    PicksByLayer picks;
    reader.next(picks);
    reader.next(picks);
    return picks[0];
  };
  EXPECT_EQ(second({3, 0}), (std::vector<int32_t>{0, 5, 7, 19}));
  EXPECT_EQ(second({3, 2, 0, 0}), (std::vector<int32_t>{1, 5, 7, 19}));
  EXPECT_THROW(second({3, 1, 0}), Error);      // three entries are left
  EXPECT_THROW(second({3, 2, 0, 19}), Error);  // entry 20 of 20
  EXPECT_THROW(second({3, 9}), Error);         // more changes than two sets hold
  EXPECT_THROW(second({3, 2, 0}), Error);      // ends
  EXPECT_THROW(second({3, 255, 255, 255, 255, 255}), Error);
  EXPECT_THROW(second({}), Error);
  const std::vector<uint8_t> no_first = {3, 0};
  PickStreamReader reader(layout, 79, no_first);
  PicksByLayer picks;
  EXPECT_THROW(reader.next(picks), Error) << "nothing stands before the first";
}

TEST(PickStreamTest, HashesTellSetsApart) {
  ChoiceLayout layout = stream_layout(3, 2);
  layout.num_experts = 0;
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
