#include "cache/shadow_radix.h"

#include <map>

#include <gtest/gtest.h>

#include "cache/cache_test_options.h"

namespace baleen::cache {
namespace {

#define EXPECT_SOUND(work) EXPECT_EQ((work).fault(), "")

/// Runs a prompt to its end and lets it go; the capture of its end is carried out.
void run_once(CacheWorkload& work, const std::vector<int32_t>& prompt) {
  const int a = work.admit(prompt);
  ASSERT_GE(a, 0);
  work.run(a, 256, 0);
  work.finish(a);
  work.submit({});
  work.process_all();
  EXPECT_SOUND(work);
}

PrefixMatch peek(CacheWorkload& work, const std::vector<int32_t>& ids, int32_t limit = -1) {
  return work.cache().peek({.ids = ids, .reuse_limit = limit});
}

TEST(ShadowRadixTest, EvictsTheLeastRecentlyUsedLeafFirst) {
  WorkloadOptions options = full_size(8, 8);
  options.cache.capture = {.interval = 0, .prompt = false, .branch = false, .turn = false};
  CacheWorkload work(options);
  const std::vector<int32_t> a = some_ids(513, 1);
  const std::vector<int32_t> b = some_ids(513, 2);
  const std::vector<int32_t> c = some_ids(513, 3);
  run_once(work, a);
  run_once(work, b);
  run_once(work, c);
  run_once(work, a);  // used again: b is the oldest now
  EXPECT_EQ(work.cache().budget().free_full, 2);
  EXPECT_TRUE(work.cache().make_room(3, 0));
  EXPECT_EQ(peek(work, b).hit, 256) << "its second page went";
  EXPECT_TRUE(work.cache().make_room(4, 0));
  EXPECT_EQ(peek(work, b).hit, 0);
  EXPECT_EQ(peek(work, a).hit, 512);
  EXPECT_EQ(peek(work, c).hit, 512);
  EXPECT_TRUE(work.cache().make_room(5, 0));
  EXPECT_EQ(peek(work, c).hit, 256);
  EXPECT_EQ(peek(work, a).hit, 512);
  EXPECT_SOUND(work);
}

TEST(ShadowRadixTest, WindowPressureTakesPagesNearTheRootFirstAndKeepsEntries) {
  WorkloadOptions options = full_size();
  options.cache.capture = {.interval = 0, .prompt = false, .branch = false, .turn = false};
  CacheWorkload work(options);
  const std::vector<int32_t> a = some_ids(1025, 1);
  run_once(work, a);
  const int32_t free = work.cache().budget().free_swa;
  EXPECT_TRUE(work.cache().make_room(0, free + 3));
  EXPECT_EQ(peek(work, a).hit, 1024) << "the last window is still there";
  EXPECT_EQ(peek(work, first_of(a, 900)).hit, 0);
  EXPECT_EQ(peek(work, first_of(a, 900)).common, 896);
  EXPECT_EQ(peek(work, first_of(a, 900)).reason, CutReason::kWindowGone);
  // The last window makes the whole path useless: nobody could continue anywhere on it.
  EXPECT_TRUE(work.cache().make_room(0, free + 4));
  EXPECT_EQ(work.cache().radix().tree().num_nodes(), 0);
  EXPECT_SOUND(work);
}

TEST(ShadowRadixTest, ALeafWithAResumePointOutlivesItsWindow) {
  CacheWorkload work(full_size());
  const std::vector<int32_t> a = some_ids(516, 1);
  run_once(work, a);
  const PageBudget budget = work.cache().budget();
  EXPECT_TRUE(work.cache().make_room(0, budget.swa()));
  EXPECT_EQ(work.cache().radix().tree().num_nodes(), 2);
  EXPECT_EQ(peek(work, joined(a, {7, 8, 9})).hit, 516);
  EXPECT_TRUE(peek(work, joined(a, {7, 8, 9})).point.valid());
  // With its last resume point it goes.
  EXPECT_TRUE(work.cache().make_room(work.cache().budget().full(), 0));
  EXPECT_EQ(work.cache().radix().tree().num_nodes(), 0);
  EXPECT_EQ(work.cache().budget().free_full, 64);
  EXPECT_SOUND(work);
}

TEST(ShadowRadixTest, AMatchNeverEndsBehindAMissingWindow) {
  // Interior windows go in every combination; what is matched must be continued correctly.
  WorkloadOptions options = full_size(16, 12);
  options.cache.capture = {.interval = 0, .prompt = false, .branch = false, .turn = false};
  for (int32_t taken = 1; taken <= 5; ++taken) {
    CacheWorkload work(options);
    const std::vector<int32_t> a = some_ids(1400, 1);
    run_once(work, a);
    EXPECT_TRUE(work.cache().make_room(0, work.cache().budget().free_swa + taken));
    for (int32_t length = 100; length <= 1400; length += 130) {
      const PrefixMatch match = peek(work, joined(first_of(a, length), {1, 2}));
      EXPECT_TRUE(match.hit == 0 || match.hit / 256 > taken) << match.hit << " " << taken;
      EXPECT_LE(match.hit, length);
    }
    const int b = work.admit(joined(first_of(a, 1290), some_ids(50, 9)));
    ASSERT_GE(b, 0);
    work.run(b, 64, 10);
    EXPECT_SOUND(work);
  }
}

TEST(ShadowRadixTest, ARunningSequencePinsOneWindowPageOfALongPrefix) {
  WorkloadOptions options = full_size(64, 40);
  options.cache.capture = {.interval = 0, .prompt = false, .branch = false, .turn = false};
  CacheWorkload work(options);
  const std::vector<int32_t> a = some_ids(8193, 1);
  const int x = work.admit(a);
  work.run(x, 8193, 0);  // one chunk of 32 pages
  const PageBudget budget = work.cache().budget();
  EXPECT_EQ(budget.swa(), 40 - 2) << "the last page of the prefix and the one being filled";
  EXPECT_EQ(budget.full(), 64 - 33);
  EXPECT_TRUE(work.cache().make_room(0, budget.swa()));
  work.run(x, 1, 200);
  EXPECT_EQ(work.cache().budget().swa(), 40 - 1) << "the window has left the prefix";
  EXPECT_SOUND(work);
}

TEST(ShadowRadixTest, AHitKeepsOnlyTheWindowItContinuesBehindFresh) {
  WorkloadOptions options = full_size();
  options.cache.capture = {.interval = 0, .prompt = false, .branch = false, .turn = false};
  CacheWorkload work(options);
  const std::vector<int32_t> a = some_ids(769, 1);
  const std::vector<int32_t> b = some_ids(769, 2);
  run_once(work, a);
  run_once(work, b);
  run_once(work, a);
  const int32_t free = work.cache().budget().free_swa;
  // The two older windows of `a` and all of `b` go before the one that the last hit used.
  EXPECT_TRUE(work.cache().make_room(0, free + 5));
  EXPECT_EQ(peek(work, a).hit, 768);
  EXPECT_EQ(peek(work, b).hit, 0);
  EXPECT_SOUND(work);
}

TEST(ShadowRadixTest, SaysWhyAHitIsShorterThanWhatIsShared) {
  WorkloadOptions options = full_size();
  options.cache.capture = {.interval = 0, .prompt = false, .branch = false, .turn = false};
  CacheWorkload work(options);
  const std::vector<int32_t> a = some_ids(1024, 1);
  run_once(work, a);
  EXPECT_EQ(peek(work, joined(a, {5})).reason, CutReason::kNone);
  EXPECT_EQ(peek(work, a).reason, CutReason::kNoPoint)
      << "only the last page border is behind n - 1";
  EXPECT_EQ(peek(work, a).hit, 768);
  EXPECT_EQ(peek(work, a).branch, 1024);
  const PrefixMatch inside = peek(work, joined(first_of(a, 700), some_ids(100, 3)));
  EXPECT_EQ(inside.hit, 512);
  EXPECT_EQ(inside.common, 640);
  EXPECT_EQ(inside.branch, 640);
  EXPECT_EQ(inside.reason, CutReason::kNoPoint);
  EXPECT_EQ(peek(work, joined(a, {5}), 300).hit, 256);
  EXPECT_EQ(peek(work, joined(a, {5}), 300).reason, CutReason::kLimit);
  EXPECT_EQ(peek(work, some_ids(700, 8)).reason, CutReason::kNone);
  const int b = work.admit(joined(first_of(a, 700), some_ids(100, 3)));
  ASSERT_GE(b, 0);
  const CacheStats& stats = work.cache().stats();
  EXPECT_EQ(stats.lost_tokens[static_cast<size_t>(CutReason::kNoPoint)], 128);
  EXPECT_EQ(stats.cut_hits[static_cast<size_t>(CutReason::kNoPoint)], 1);
  EXPECT_EQ(stats.cached_tokens, 512);
  for (int32_t reason = 0; reason < kNumCutReasons; ++reason) {
    EXPECT_STRNE(cut_reason_name(static_cast<CutReason>(reason)), "?");
  }
  for (int32_t reason = 0; reason < kNumCaptureSkips; ++reason) {
    EXPECT_STRNE(capture_skip_name(static_cast<CaptureSkip>(reason)), "?");
  }
}

TEST(ShadowRadixTest, FindsItsWayAmongManyChildrenOfOneNode) {
  WorkloadOptions options = full_size(64, 64);
  options.cache.capture = {.interval = 0, .prompt = false, .branch = false, .turn = false};
  CacheWorkload work(options);
  const std::vector<int32_t> common = some_ids(256, 1);
  for (int32_t i = 0; i < 40; ++i) {
    run_once(work, joined(common, joined(first_of(some_ids(256, 2), 200), some_ids(57, 100 + i))));
  }
  for (int32_t i = 0; i < 40; ++i) {
    const std::vector<int32_t> rest =
        joined(first_of(some_ids(256, 2), 200), some_ids(57, 100 + i));
    EXPECT_EQ(peek(work, joined(common, rest)).hit, 512);
    EXPECT_EQ(peek(work, joined(common, first_of(rest, 256))).common, 512);
  }
  EXPECT_EQ(peek(work, joined(common, some_ids(300, 2))).common, 384) << "half a block agrees";
  EXPECT_EQ(peek(work, joined(common, some_ids(300, 3))).common, 256);
}

/// The blocks a router would believe in after reading the events.
void follow(std::map<uint64_t, CacheEvent>& held, const std::vector<CacheEvent>& events) {
  for (const CacheEvent& event : events) {
    switch (event.kind) {
      case CacheEvent::Kind::kStored:
        EXPECT_TRUE(held.emplace(event.block_hash, event).second) << "stored twice";
        break;
      case CacheEvent::Kind::kRemoved:
        EXPECT_EQ(held.erase(event.block_hash), 1U) << "removed without being stored";
        break;
      case CacheEvent::Kind::kCleared:
        held.clear();
        break;
    }
  }
}

TEST(ShadowRadixTest, EventsTellARouterWhatIsHeld) {
  for (const int32_t capacity : {1000, 3}) {  // the short queue overflows again and again
    WorkloadOptions options = full_size(12, 12);
    options.cache.sizes.event_capacity = capacity;
    CacheWorkload work(options);
    std::map<uint64_t, CacheEvent> held;
    for (int32_t i = 0; i < 12; ++i) {
      run_once(work, joined(some_ids(512, i % 3), some_ids(300, i)));
      if (i % 2 == 0) {
        follow(held, work.cache().take_events());
      }
    }
    follow(held, work.cache().take_events());
    const RadixTree& tree = work.cache().radix().tree();
    EXPECT_EQ(static_cast<int32_t>(held.size()), tree.num_nodes());
    for (const auto& [hash, event] : held) {
      EXPECT_EQ(tree.chain_hash(event.parent_hash, event.ids.data(), 256), hash);
    }
    work.cache().flush();
    follow(held, work.cache().take_events());
    EXPECT_TRUE(held.empty());
  }
}

TEST(ShadowRadixTest, EventsAreOffUnlessAskedFor) {
  CacheWorkload work(full_size());
  run_once(work, some_ids(600));
  EXPECT_TRUE(work.cache().take_events().empty());
}

}  // namespace
}  // namespace baleen::cache
