#include "cache/pick_codec.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "numerics/pick_shape.h"

namespace baleen::cache {
namespace {

std::vector<int32_t> random_picks(int32_t visible, int32_t topk, std::mt19937& random) {
  std::vector<int32_t> all(static_cast<std::size_t>(visible));
  std::iota(all.begin(), all.end(), 0);
  std::shuffle(all.begin(), all.end(), random);
  all.resize(static_cast<std::size_t>(std::min(visible, topk)));
  std::sort(all.begin(), all.end());
  return all;
}

void expect_round_trip(const std::vector<int32_t>& picks, int32_t visible, int32_t topk) {
  std::vector<uint8_t> bytes = {77};  // what stands before stays
  encode_picks(picks, visible, topk, bytes);
  ASSERT_EQ(static_cast<int64_t>(bytes.size()), 1 + coded_picks_bytes(visible, topk));
  EXPECT_EQ(bytes[0], 77);
  bytes.push_back(255);  // and what stands behind is not read
  std::vector<int32_t> found = {9, 9};
  EXPECT_EQ(decode_picks(std::span(bytes).subspan(1), visible, topk, found), bytes.size() - 2);
  EXPECT_EQ(found, picks) << topk << " of " << visible;
}

TEST(PickCodecTest, EverySetOfSmallNumbersComesBack) {
  for (int32_t visible = 0; visible <= 10; ++visible) {
    for (uint32_t mask = 0; mask < 1U << visible; ++mask) {
      std::vector<int32_t> picks;
      for (int32_t e = 0; e < visible; ++e) {
        if ((mask >> e & 1U) != 0) {
          picks.push_back(e);
        }
      }
      const auto topk = static_cast<int32_t>(picks.size());
      ASSERT_NO_FATAL_FAILURE(expect_round_trip(picks, visible, topk));
      if (topk == visible) {
        ASSERT_NO_FATAL_FAILURE(expect_round_trip(picks, visible, topk + 3));
      }
    }
  }
}

TEST(PickCodecTest, TheLargestSetOfAContextIsThatOfSomeNumberOfEntries) {
  for (const int32_t topk : {1, 2, 7, 64, 100}) {
    int64_t most = 0;
    for (int32_t visible = 0; visible <= 40 * topk + 9; ++visible) {
      most = std::max(most, coded_picks_bytes(visible, topk));
      ASSERT_EQ(numerics::most_pick_bytes(visible, topk), most) << topk << " of " << visible;
    }
  }
}

TEST(PickCodecTest, RandomAndExtremeSetsComeBack) {
  std::mt19937 random(5);
  for (const int32_t topk : {1, 2, 7, 16, 64, 512}) {
    for (const int32_t visible : {topk - 1,
                                  topk,
                                  topk + 1,
                                  2 * topk - 1,
                                  2 * topk,
                                  2 * topk + 1,
                                  4 * topk,
                                  16 * topk + 3,
                                  500 * topk + 1}) {
      for (int round = 0; round < 3; ++round) {
        ASSERT_NO_FATAL_FAILURE(
            expect_round_trip(random_picks(visible, topk, random), visible, topk));
      }
      if (visible > topk) {
        std::vector<int32_t> run(static_cast<std::size_t>(topk));
        std::iota(run.begin(), run.end(), 0);
        ASSERT_NO_FATAL_FAILURE(expect_round_trip(run, visible, topk));
        std::iota(run.begin(), run.end(), visible - topk);
        ASSERT_NO_FATAL_FAILURE(expect_round_trip(run, visible, topk));
      }
    }
  }
}

TEST(PickCodecTest, SizesOfThePublishedModel) {
  EXPECT_EQ(coded_picks_bytes(512, 512), 0);
  EXPECT_EQ(coded_picks_bytes(513, 512), 1 + 65);
  EXPECT_EQ(coded_picks_bytes(2048, 512), 1 + 256);    // 8K tokens: the bitmap
  EXPECT_EQ(coded_picks_bytes(8192, 512), 1 + 384);    // 32K tokens
  EXPECT_EQ(coded_picks_bytes(32768, 512), 1 + 512);   // 128K tokens
  EXPECT_EQ(coded_picks_bytes(262144, 512), 1 + 704);  // 1M tokens
}

TEST(PickCodecTest, BytesOfAKnownSet) {
  std::vector<uint8_t> bytes;
  encode_picks(std::vector<int32_t>{0, 3, 9}, 10, 3, bytes);
  // One low bit each (0, 1, 1), then the halves 0, 1, 4 at bits 0, 2, 6: two bytes, as the bitmap.
  EXPECT_EQ(bytes, (std::vector<uint8_t>{1, 0b00001001, 0b00000010}));
  bytes.clear();
  encode_picks(std::vector<int32_t>{1, 30}, 40, 2, bytes);
  // v / k = 20: four low bits each (1, 14), then 0 and 1 at bits 0 and 2.
  EXPECT_EQ(bytes, (std::vector<uint8_t>{2, 0xE1, 0b00000101}));
}

TEST(PickCodecTest, BytesThatAreNoSetAreRefused) {
  std::vector<int32_t> picks;
  const auto refused = [&](const std::vector<uint8_t>& bytes, int32_t visible, int32_t topk) {
    EXPECT_THROW(decode_picks(bytes, visible, topk, picks), Error);
  };
  refused({}, 10, 3);
  refused({1, 0b00001001}, 10, 3);              // short
  refused({2, 0b00001001, 0b00000010}, 10, 3);  // another code
  refused({1, 0b00001001, 0b00000000}, 10, 3);  // too few
  refused({1, 0b00001111, 0b00000000}, 10, 3);  // too many
  refused({1, 0b00001001, 0b00000100}, 10, 3);  // entry 10 of 10
  refused({2, 0xE1, 0b00000001}, 40, 2);        // too few
  refused({2, 0xE1, 0b00000111}, 40, 2);        // too many
  refused({2, 0x1E, 0b00000011}, 40, 2);        // descending: 14, 1
  refused({2, 0x11, 0b00000011}, 40, 2);        // the same twice
  refused({2, 0xE1, 0b00010001}, 40, 2);        // entry 62 of 40
}

TEST(PickCodecDeathTest, SetsThatNoQueryHasAbort) {
  std::vector<uint8_t> bytes;
  EXPECT_DEATH(encode_picks(std::vector<int32_t>{1, 2}, 10, 3, bytes), "2 picks of 10");
  EXPECT_DEATH(encode_picks(std::vector<int32_t>{1, 1, 2}, 10, 3, bytes), "pick 1 behind 1");
  EXPECT_DEATH(encode_picks(std::vector<int32_t>{1, 2, 10}, 10, 3, bytes), "pick 10 behind 2");
}

}  // namespace
}  // namespace baleen::cache
