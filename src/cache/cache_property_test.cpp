// More than a million random events against a model that stores everything: every row that a pass
// reads is compared with a cold run's, all bookkeeping is recomputed after every event. Seeds are
// fixed; a failing story shrinks to the events that matter.

#include <algorithm>
#include <cstdio>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "base/test_share.h"
#include "cache/cache_story.h"
#include "cache/cache_test_options.h"

namespace baleen::cache {
namespace {

struct Seen {
  CacheStats sum;
  int64_t events = 0;

  void add(const CacheStats& s, int64_t num_events) {
    events += num_events;
    sum.hits_live += s.hits_live;
    sum.hits_point += s.hits_point;
    sum.admissions_refused += s.admissions_refused;
    sum.pages_deduplicated += s.pages_deduplicated;
    sum.windows_adopted += s.windows_adopted;
    sum.evicted_pages += s.evicted_pages;
    sum.evicted_windows += s.evicted_windows;
    sum.evicted_points += s.evicted_points;
    sum.late_events += s.late_events;
    for (size_t i = 0; i < sum.captures.size(); ++i) {
      sum.captures[i] += s.captures[i];
    }
    for (size_t i = 0; i < sum.captures_skipped.size(); ++i) {
      sum.captures_skipped[i] += s.captures_skipped[i];
    }
    for (size_t i = 0; i < sum.cut_hits.size(); ++i) {
      sum.cut_hits[i] += s.cut_hits[i];
    }
  }
};

/// Tells `num_stories` stories of `num_events` events.
Seen tell_stories(const WorkloadOptions& options, int num_stories, int num_events, uint64_t seed) {
  Seen seen;
  rc::detail::TestParams params;
  params.seed = seed;
  params.maxSuccess = std::max(1, num_stories / kTestShare);
  rc::detail::TestMetadata metadata;
  metadata.id = "CacheProperty";
  const auto event = rc::gen::resize(rc::kNominalSize, rc::gen::inRange<uint32_t>(0, 0xFFFFFFFFU));
  const auto result = rc::detail::checkTestable(
      [&] {
        const auto events =
            *rc::gen::container<std::vector<uint32_t>>(static_cast<size_t>(num_events), event);
        CacheStory story(options);
        for (size_t i = 0; i < events.size(); ++i) {
          story.tell(events[i]);
          if (!story.fault().empty()) {
            RC_FAIL("event " + std::to_string(i) + ": " + story.fault());
          }
        }
        story.end();
        seen.add(story.stats(), num_events);
        if (!story.fault().empty()) {
          RC_FAIL("at the end: " + story.fault());
        }
      },
      metadata,
      params);
  if (!result.template is<rc::detail::SuccessResult>()) {
    std::ostringstream text;
    rc::detail::printResultMessage(result, text);
    ADD_FAILURE() << text.str();
  }
  EXPECT_GE(seen.events, int64_t{params.maxSuccess} * num_events);
  std::printf("[  EVENTS  ] %lld random events\n", static_cast<long long>(seen.events));
  return seen;
}

TEST(CachePropertyTest, RandomStoriesOnSmallPagesReadWhatColdRunsWrote) {
  const Seen seen = tell_stories(small_size(), 900, 1000, 1);
  // The stories were about what they should be about.
  EXPECT_GE(seen.events * kTestShare, 900'000);
  EXPECT_GT(seen.sum.hits_live, 100);
  EXPECT_GT(seen.sum.hits_point, 100);
  EXPECT_GT(seen.sum.admissions_refused, 10);
  EXPECT_GT(seen.sum.pages_deduplicated, 100);
  EXPECT_GT(seen.sum.windows_adopted, 20);
  EXPECT_GT(seen.sum.evicted_pages, 100);
  EXPECT_GT(seen.sum.evicted_windows, 100);
  EXPECT_GT(seen.sum.evicted_points, 100);
  EXPECT_GT(seen.sum.late_events, 100);
  for (const int64_t captures : seen.sum.captures) {
    EXPECT_GT(captures, 20);
  }
  for (const int64_t skipped : seen.sum.captures_skipped) {
    EXPECT_GT(skipped, 0);
  }
  for (const int64_t cut : seen.sum.cut_hits) {
    EXPECT_GT(cut, 5);
  }
}

TEST(CachePropertyRoomyTest, RandomStoriesWithRoomForMorePoints) {
  WorkloadOptions options = small_size(48, 30);
  options.cache.sizes.checkpoint_slots = 40;
  options.cache.sizes.open_group_blocks = 24;
  const Seen seen = tell_stories(options, 200, 1000, 2);
  EXPECT_GT(seen.sum.hits_point, 100);
}

TEST(CachePropertyTightTest, RandomStoriesWithHardlyAnyRoom) {
  WorkloadOptions options = small_size(7, 5);
  options.cache.sizes.checkpoint_slots = 2;
  options.cache.sizes.open_group_blocks = 1;
  const Seen seen = tell_stories(options, 200, 1000, 3);
  EXPECT_GT(seen.sum.admissions_refused, 100);
}

TEST(CachePropertyPageOfFourTest, RandomStoriesWhereAWindowSpansPages) {
  WorkloadOptions options = small_size(60, 40);
  options.cache.geometry = {.page_tokens = 4,
                            .window = 8,
                            .c4_ratio = 2,
                            .c128_ratio = 4,
                            .resume_step = 2,
                            .prompt_step = 4,
                            .open_group_rows = 2};
  options.cache.rings = {.c4_rows = 4, .c128_rows = 12};
  const Seen seen = tell_stories(options, 200, 1000, 4);
  EXPECT_GT(seen.sum.hits_live + seen.sum.hits_point, 100);
}

TEST(CachePropertyPageOfOneTest, RandomStoriesWhereEveryTokenIsAPage) {
  WorkloadOptions options = small_size(150, 100);
  options.cache.geometry = {.page_tokens = 1,
                            .window = 3,
                            .c4_ratio = 1,
                            .c128_ratio = 1,
                            .resume_step = 1,
                            .prompt_step = 1,
                            .open_group_rows = 1};
  options.cache.rings = {.c4_rows = 1, .c128_rows = 1};
  const Seen seen = tell_stories(options, 60, 1000, 6);
  EXPECT_GT(seen.sum.hits_live, 30);
}

TEST(CachePropertyFullSizeTest, RandomStoriesWithRealLengths) {
  WorkloadOptions options = full_size(4, 4);
  options.cache.sizes.checkpoint_slots = 6;
  options.cache.sizes.open_group_blocks = 16;
  const Seen seen = tell_stories(options, 60, 300, 5);
  EXPECT_GT(seen.sum.hits_point, 3);
}

}  // namespace
}  // namespace baleen::cache
