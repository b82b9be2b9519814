#include <gtest/gtest.h>

#include "cache/cache_test_options.h"
#include "cache/sequence_cache.h"

namespace baleen::cache {
namespace {

#define EXPECT_SOUND(work) EXPECT_EQ((work).fault(), "")

int64_t skipped(CacheWorkload& work, CaptureSkip reason) {
  return work.cache().stats().captures_skipped[static_cast<size_t>(reason)];
}
int64_t captured(CacheWorkload& work, PointKind kind) {
  return work.cache().stats().captures[static_cast<size_t>(kind)];
}

void evict_windows(CacheWorkload& work) {
  EXPECT_TRUE(work.cache().make_room(0, work.cache().budget().swa()));
}

TEST(SequenceCaptureTest, PlansPointsNearThePromptsEndAndAtIntervals) {
  CacheWorkload work(full_size(64, 40));
  const int a = work.admit(some_ids(5000));
  std::vector<int32_t> positions;
  while (work.sequence(a).computed < 5000) {
    work.submit({{a, 1500, 0}});
    for (const CaptureJob& job : work.last_captures()) {
      EXPECT_TRUE(job.in_pass);
      EXPECT_TRUE(job.with_streams);
      positions.push_back(job.position);
    }
    work.process();
  }
  EXPECT_EQ(positions, (std::vector<int32_t>{2048, 4096, 4992}));
  EXPECT_EQ(captured(work, PointKind::kInterval), 2);
  EXPECT_EQ(captured(work, PointKind::kPrompt), 1);
  work.finish(a);
  work.submit({});
  work.process();
  EXPECT_EQ(captured(work, PointKind::kTurn), 1);
  EXPECT_SOUND(work);
  for (int32_t kind = 0; kind < kNumPointKinds; ++kind) {
    EXPECT_STRNE(point_kind_name(static_cast<PointKind>(kind)), "?");
  }
}

TEST(SequenceCaptureTest, APointIsInvisibleUntilItsStepIsComplete) {
  CacheWorkload work(full_size());
  const std::vector<int32_t> prompt = some_ids(200);
  const int a = work.admit(prompt);
  work.submit({{a, 200, 0}});
  EXPECT_EQ(work.cache().peek({.ids = prompt}).hit, 0);
  EXPECT_SOUND(work);
  work.process();
  EXPECT_EQ(work.cache().peek({.ids = prompt}).hit, 128);
  EXPECT_SOUND(work);
}

TEST(SequenceCaptureTest, AnAbortBeforeTheTicketDropsThePoint) {
  CacheWorkload work(full_size());
  const std::vector<int32_t> prompt = some_ids(200);
  const int a = work.admit(prompt);
  work.submit({{a, 200, 0}});
  work.abort(a);
  EXPECT_SOUND(work);
  EXPECT_EQ(skipped(work, CaptureSkip::kAborted), 1);
  EXPECT_EQ(work.cache().radix().points().free_slots(), 63) << "the step still writes it";
  work.process();
  EXPECT_EQ(work.cache().radix().points().free_slots(), 64);
  EXPECT_EQ(work.cache().peek({.ids = prompt}).hit, 0);
  EXPECT_SOUND(work);
  EXPECT_EQ(work.cache().budget().free_full, 64);
}

TEST(SequenceCaptureTest, AFlushBetweenCaptureAndTicketDropsThePoint) {
  // As at a weight update: nothing computed before may be continued after.
  CacheWorkload work(full_size());
  const std::vector<int32_t> prompt = some_ids(300);
  const int a = work.admit(prompt);
  work.run(a, 300, 1);
  work.finish(a);
  work.submit({});
  work.cache().flush();
  EXPECT_SOUND(work);
  work.process();
  EXPECT_SOUND(work);
  EXPECT_EQ(captured(work, PointKind::kTurn), 0);
  EXPECT_EQ(work.cache().peek({.ids = prompt}).hit, 0);
  EXPECT_EQ(work.cache().radix().points().free_slots(), 64);
  EXPECT_EQ(work.cache().budget().free_full, 64);
  EXPECT_EQ(work.cache().budget().free_swa, 24);
}

TEST(SequenceCaptureTest, PreemptionDuringAChunkKeepsWhatIsFinal) {
  CacheWorkload work(full_size());
  const std::vector<int32_t> prompt = some_ids(900);
  const int a = work.admit(prompt);
  work.submit({{a, 400, 0}});
  work.submit({{a, 400, 0}});
  work.process();
  work.preempt(a);  // the second chunk overwrites the rings: no point at 400
  EXPECT_EQ(skipped(work, CaptureSkip::kInFlight), 1);
  EXPECT_SOUND(work);
  work.process();
  EXPECT_SOUND(work);
  EXPECT_EQ(work.cache().peek({.ids = prompt}).hit, 256);
}

TEST(SequenceCaptureTest, AnEndWithAStepInFlightHasNoStreams) {
  for (const bool in_flight : {false, true}) {
    CacheWorkload work(full_size());
    const int a = work.admit(some_ids(131));
    work.run(a, 131, 0);
    work.submit({{a, 1, 0}});
    if (in_flight) {
      work.submit({{a, 1, 0}});  // leaves later streams behind in the executor
    }
    work.process();
    work.finish(a);
    work.submit({});
    ASSERT_EQ(work.last_captures().size(), 1U);
    EXPECT_EQ(work.last_captures()[0].position, 132);
    EXPECT_EQ(work.last_captures()[0].with_streams, !in_flight);
    work.process_all();
    EXPECT_SOUND(work);
  }
}

TEST(SequenceCaptureTest, AFullPoolGivesUpTheLeastRecentPoint) {
  WorkloadOptions options = full_size();
  options.cache.sizes.checkpoint_slots = 2;
  options.cache.capture.prompt = false;
  CacheWorkload work(options);
  const auto turn = [&](int32_t seed) {
    const int a = work.admit(some_ids(100, seed));
    work.run(a, 100, 0);
    work.finish(a);
    work.submit({});
    work.process_all();
    EXPECT_SOUND(work);
  };
  const auto hit = [&](int32_t seed) {
    return work.cache().peek({.ids = joined(some_ids(100, seed), {3})}).hit;
  };
  turn(1);
  turn(2);
  EXPECT_EQ(hit(1), 100);
  turn(1);  // used again
  turn(3);
  EXPECT_EQ(hit(1), 100);
  EXPECT_EQ(hit(2), 0);
  EXPECT_EQ(hit(3), 100);
  EXPECT_EQ(work.cache().stats().evicted_points, 1);
}

TEST(SequenceCaptureTest, AHitKeepsAPointFresh) {
  WorkloadOptions options = full_size();
  options.cache.sizes.checkpoint_slots = 2;
  options.cache.capture.prompt = false;
  CacheWorkload work(options);
  const auto turn = [&](int32_t seed) {
    const int a = work.admit(some_ids(100, seed));
    work.run(a, 100, 0);
    work.finish(a);
    work.submit({});
    work.process_all();
  };
  const auto next_of = [&](int32_t seed) { return joined(some_ids(100, seed), {3}); };
  turn(1);
  turn(2);
  const int again = work.admit(next_of(1));
  EXPECT_EQ(work.sequence(again).lease.cached_tokens(), 100);
  work.abort(again);
  turn(3);
  EXPECT_EQ(work.cache().peek({.ids = next_of(1)}).hit, 100);
  EXPECT_EQ(work.cache().peek({.ids = next_of(2)}).hit, 0);
  EXPECT_SOUND(work);
}

TEST(SequenceCaptureTest, SkipsAndCountsWhenAllPointsAreInUse) {
  WorkloadOptions options = full_size();
  options.cache.sizes.checkpoint_slots = 1;
  options.cache.capture.prompt = false;
  CacheWorkload work(options);
  int a = work.admit(some_ids(100, 1));
  work.run(a, 100, 0);
  work.finish(a);
  work.submit({});
  work.process_all();
  a = work.admit(joined(some_ids(100, 1), {3}));  // its copy pins the only point
  const int b = work.admit(some_ids(60, 2));
  work.submit({{b, 60, 0}});
  work.submit({});
  work.process();
  EXPECT_EQ(skipped(work, CaptureSkip::kPinned), 0);
  const int c = work.admit(joined(some_ids(100, 1), {4}));
  ASSERT_GE(c, 0);
  work.finish(b);
  EXPECT_EQ(skipped(work, CaptureSkip::kPinned), 1);
  EXPECT_SOUND(work);
  work.process_all();
  EXPECT_SOUND(work);
}

TEST(SequenceCaptureTest, SkipsAndCountsWhenOpenGroupsHaveNoRoom) {
  WorkloadOptions options = full_size();
  options.cache.sizes.open_group_blocks = 2;
  CacheWorkload work(options);
  const int a = work.admit(some_ids(100));  // 100 open rows need 7 blocks
  work.run(a, 100, 0);
  work.finish(a);
  EXPECT_EQ(skipped(work, CaptureSkip::kOpenBlocks), 1);
  EXPECT_SOUND(work);
}

// What the draft layer may see after a hit.
struct DraftCase {
  bool maker_drafts;
  bool same_next;
  int32_t begin;  // of hidden rows, -1: none
  int32_t hole;
  bool recomputed;
};

TEST(SequenceCaptureTest, DraftRowsBehindLivePagesFollowTheNextToken) {
  for (const DraftCase& c : {DraftCase{true, true, 0, -1, false},
                             DraftCase{true, false, 0, 511, false},
                             DraftCase{false, true, 512, -1, false}}) {
    CacheWorkload work(full_size());
    const std::vector<int32_t> common = some_ids(512);
    const int a = work.admit(joined(common, some_ids(40, 1)), {.drafts = c.maker_drafts});
    work.run(a, 300, 2);
    const int b = work.admit(joined(common, some_ids(40, c.same_next ? 1 : 2)), {.drafts = true});
    EXPECT_EQ(work.sequence(b).lease.cached_tokens(), 512);
    EXPECT_EQ(work.sequence(b).lease.draft_begin(), c.begin);
    EXPECT_EQ(work.sequence(b).lease.draft_hole(), c.hole);
    work.run(b, 300, 140);
    EXPECT_SOUND(work);
  }
}

TEST(SequenceCaptureTest, DraftRowsBehindAPointAreValidRecomputedOrHidden) {
  for (const DraftCase& c : {DraftCase{true, true, 0, -1, false},
                             DraftCase{true, false, 0, -1, true},
                             DraftCase{false, true, 128, -1, false},
                             DraftCase{false, false, 128, -1, false}}) {
    CacheWorkload work(full_size());
    const std::vector<int32_t> common = some_ids(128);
    const int a = work.admit(joined(common, some_ids(40, 1)), {.drafts = c.maker_drafts});
    work.run(a, 300, 0);
    work.finish(a);
    work.submit({});
    work.process_all();
    const std::vector<int32_t> ids = joined(common, some_ids(40, c.same_next ? 1 : 2));
    const auto admission =
        work.cache().admit(RequestSlot(7), {.ids = first_of(ids, 140), .drafts = true}, 1 << 20);
    ASSERT_TRUE(admission && admission->copy);
    EXPECT_EQ(admission->lease.cached_tokens(), 128);
    EXPECT_EQ(admission->lease.draft_begin(), c.begin);
    EXPECT_EQ(admission->lease.draft_hole(), c.hole);
    EXPECT_EQ(admission->copy->recompute_draft_row, c.recomputed);
    work.cache().complete(admission->copy->ticket);
  }
}

TEST(SequenceCaptureTest, ADraftRowWithoutStreamsIsHidden) {
  CacheWorkload work(full_size());
  const std::vector<int32_t> history = some_ids(131);
  const int a = work.admit(history, {.drafts = true});
  work.run(a, 131, 0);
  work.finish(a);  // the point at 128 has been made by the prefill; this one is at 128 too
  work.submit({});
  work.process_all();
  const int b = work.admit(some_ids(134, 5), {.drafts = true});
  work.run(b, 134, 0);
  std::vector<int32_t> ids = first_of(work.sequence(b).ids, 132);
  work.finish(b);  // 132 is not the committed length: no streams
  work.submit({});
  work.process_all();
  evict_windows(work);
  ids.push_back(1);  // other than token 132 of the history
  const int c = work.admit(joined(ids, some_ids(20, 6)), {.drafts = true});
  EXPECT_EQ(work.sequence(c).lease.cached_tokens(), 132);
  EXPECT_EQ(work.sequence(c).lease.draft_hole(), 131);
  work.run(c, 20, 140);
  EXPECT_SOUND(work);
}

TEST(SequenceCaptureTest, ASequenceThatMeetsPagesWithoutDraftRowsHidesThem) {
  // Two sequences compute the same prompt at once; the one without drafts is first in the tree.
  CacheWorkload work(full_size());
  const std::vector<int32_t> prompt = some_ids(300);
  const int plain = work.admit(prompt);
  const int drafting = work.admit(prompt, {.drafts = true});
  work.submit({{plain, 300, 0}, {drafting, 300, 0}});
  work.process();
  EXPECT_SOUND(work);
  work.run(drafting, 1, 100);
  EXPECT_SOUND(work);
  EXPECT_EQ(work.sequence(drafting).lease.full_pages()[0],
            work.sequence(plain).lease.full_pages()[0]);
  EXPECT_EQ(work.sequence(drafting).lease.draft_begin(), 256);
}

TEST(SequenceCaptureTest, DraftRowsReplaceAPageWithoutThemThatNobodyReads) {
  CacheWorkload work(full_size());
  const std::vector<int32_t> prompt = some_ids(300);
  const int plain = work.admit(prompt);
  const int drafting = work.admit(prompt, {.drafts = true});
  work.submit({{plain, 300, 0}});
  work.process_all();
  work.finish(plain);
  work.submit({{drafting, 300, 0}});
  work.process_all();
  EXPECT_SOUND(work);
  EXPECT_EQ(work.cache().stats().windows_adopted, 1);
  const int next = work.admit(joined(first_of(prompt, 256), some_ids(40, 3)), {.drafts = true});
  EXPECT_EQ(work.sequence(next).lease.cached_tokens(), 256);
  EXPECT_EQ(work.sequence(next).lease.draft_begin(), 0);
  EXPECT_EQ(work.sequence(next).lease.draft_hole(), 255);  // made with another next token
  work.run(next, 64, 3);
  EXPECT_SOUND(work);
}

TEST(SequenceCaptureTest, TwoPagesThatOthersWentOnDifferentlyHideBothRows) {
  WorkloadOptions options = small_size(60, 40);
  options.cache.geometry = {.page_tokens = 4,
                            .window = 8,
                            .c4_ratio = 2,
                            .c128_ratio = 4,
                            .resume_step = 2,
                            .prompt_step = 4,
                            .open_group_rows = 2};
  options.cache.rings = {.c4_rows = 4, .c128_rows = 12};
  options.cache.capture = {.interval = 0, .prompt = false, .branch = false, .turn = false};
  CacheWorkload work(options);
  const std::vector<int32_t> common = some_ids(8);
  for (const int32_t shared : {4, 8}) {  // the first page, then both, end before another token
    const int a =
        work.admit(joined(first_of(common, shared), some_ids(3, 100 * shared)), {.drafts = true});
    work.run(a, 8, 1);
    work.finish(a);
  }
  const int b = work.admit(joined(common, some_ids(3, 50)), {.drafts = true});
  EXPECT_EQ(work.sequence(b).lease.cached_tokens(), 8);
  EXPECT_EQ(work.sequence(b).lease.draft_begin(), 4);
  EXPECT_EQ(work.sequence(b).lease.draft_hole(), 7);
  work.run(b, 8, 3);
  EXPECT_SOUND(work);
}

TEST(SequenceCaptureTest, OnlyWhoContinuesTheCapturedTokensWaitsForThem) {
  CacheWorkload work(full_size());
  const std::vector<int32_t> ids = some_ids(300);
  const int a = work.admit(ids);
  work.run(a, 300, 0);
  work.finish(a);
  work.submit({});  // carries the capture out; not complete yet
  ASSERT_EQ(work.last_captures().size(), 1U);
  const CheckpointSlot target = work.last_captures()[0].target;
  const auto waits = [&](SequenceKey key) {
    return work.cache().will_reach(target, key, work.cache().peek(key));
  };
  const std::vector<int32_t> next = joined(ids, {3});
  EXPECT_TRUE(waits({.ids = next}));
  EXPECT_FALSE(waits({.ids = next, .space = {.cache_salt = "other"}}));
  EXPECT_FALSE(waits({.ids = next, .share = false}));
  EXPECT_FALSE(waits({.ids = next, .reuse_limit = 299}));
  EXPECT_FALSE(waits({.ids = ids})) << "its last token has to run";
  for (const size_t differs : {0, 255, 256, 299}) {
    std::vector<int32_t> other = next;
    other[differs] += 1;
    EXPECT_FALSE(waits({.ids = other})) << differs;
  }
  work.process_all();
  EXPECT_FALSE(waits({.ids = next})) << "it is there";
  EXPECT_SOUND(work);
}

}  // namespace
}  // namespace baleen::cache
