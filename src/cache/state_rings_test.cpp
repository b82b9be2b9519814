#include "cache/state_rings.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "cache/cache_test_options.h"

namespace baleen::cache {
namespace {

std::string message_of(const StateRings& rings, int32_t verified) {
  try {
    rings.validate(CacheGeometry{}, verified);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return {};
}

TEST(StateRingsTest, RefusesMoreVerifiedTokensThanARingBears) {
  EXPECT_EQ(message_of({.c4_rows = 16, .c128_rows = 136}, 10), "");
  EXPECT_NE(message_of({.c4_rows = 16, .c128_rows = 136}, 11).find("c4_ring_rows = 16"),
            std::string::npos);
  EXPECT_NE(message_of({.c4_rows = 32, .c128_rows = 136}, 11).find("c128_ring_rows = 136"),
            std::string::npos);
  EXPECT_EQ(message_of({.c4_rows = 8, .c128_rows = 128}, 1), "");
  EXPECT_NE(message_of({.c4_rows = 8, .c128_rows = 128}, 3).find("c4_ring_rows = 8"),
            std::string::npos);
  EXPECT_NE(message_of({.c4_rows = 12, .c128_rows = 128}, 1).find("divide a page"),
            std::string::npos);
}

TEST(StateRingsTest, RowsFollowThePageOrTheRequest) {
  EXPECT_EQ(c4_state_slot(SwaPage(3), TokenPos(256 + 17), 16).value(), 3 * 16 + 1);
  EXPECT_EQ(c128_state_slot(RequestSlot(0), TokenPos(0), 136).value(), 136);
  EXPECT_EQ(c128_state_slot(RequestSlot(2), TokenPos(137), 136).value(), 3 * 136 + 1);
  const CacheGeometry geometry;
  EXPECT_EQ(c4_slot(FullPage(5), TokenPos(256 + 2), geometry).value(), 0);
  EXPECT_EQ(c4_slot(FullPage(5), TokenPos(256 + 3), geometry).value(), 5 * 64);
  EXPECT_EQ(c4_slot(FullPage(5), TokenPos(511), geometry).value(), 5 * 64 + 63);
  EXPECT_EQ(c128_slot(FullPage(5), TokenPos(126), geometry).value(), 0);
  EXPECT_EQ(c128_slot(FullPage(5), TokenPos(127), geometry).value(), 10);
  EXPECT_EQ(c128_slot(FullPage(5), TokenPos(255), geometry).value(), 11);
}

TEST(StateRingsTest, KeepsTheRowsAtPageEndsInsideALongPass) {
  const CacheGeometry geometry;
  for (int32_t pos = 0; pos < 1000; ++pos) {
    const bool page_end = pos % 256 >= 252;
    EXPECT_EQ(keeps_c4_row(pos, 1000, 0, geometry), page_end || pos >= 996) << pos;
    EXPECT_EQ(keeps_c128_row(pos, 1000, 0, geometry), pos >= 896) << pos;
  }
  // 1001 ends inside a group, which needs the group before it as well.
  EXPECT_TRUE(keeps_c4_row(996, 1001, 0, geometry));
  EXPECT_FALSE(keeps_c4_row(995, 1001, 0, geometry));
  EXPECT_TRUE(keeps_c4_row(992, 1001, 3, geometry));  // the length may turn out to be 998
}

// Every ring row that a pass reads is the right one, whatever was accepted, with as many verified
// tokens as the ring bears; with one more, some row is not.
std::string run_drafts(const StateRings& rings, int32_t verified, int32_t steps) {
  WorkloadOptions options = full_size(64, 24);
  options.cache.rings = rings;
  CacheWorkload work(options);
  const int a = work.admit(some_ids(131));
  work.run(a, 131, 0);
  uint64_t random = 7;
  for (int32_t step = 0; step < steps && work.fault().empty(); ++step) {
    random = random * 6364136223846793005ULL + 1442695040888963407ULL;
    const auto accepted =
        1 + static_cast<int32_t>((random >> 33) % static_cast<uint64_t>(verified));
    work.submit({{a, accepted, verified - accepted}});
    work.process();
  }
  return work.fault();
}

TEST(StateRingsTest, RefusedDraftsNeverReachAGroup) {
  EXPECT_EQ(run_drafts({.c4_rows = 16, .c128_rows = 136}, 10, 1500), "");
  EXPECT_EQ(run_drafts({.c4_rows = 16, .c128_rows = 136}, 4, 1500), "");
  EXPECT_EQ(run_drafts({.c4_rows = 16, .c128_rows = 256}, 10, 1500), "");
}

TEST(StateRingsTest, OneTokenMoreThanTheMarginWouldBreakARing) {
  EXPECT_NE(run_drafts({.c4_rows = 16, .c128_rows = 256}, 11, 1500), "");
  EXPECT_NE(run_drafts({.c4_rows = 32, .c128_rows = 136}, 11, 3000), "");
}

}  // namespace
}  // namespace baleen::cache
