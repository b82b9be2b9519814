#include "cache/sequence_cache.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "cache/cache_test_options.h"

namespace baleen::cache {
namespace {

#define EXPECT_SOUND(work) EXPECT_EQ((work).fault(), "")

/// Takes the window rows of everything that is not running.
void drop_windows(CacheWorkload& work) {
  const PageBudget budget = work.cache().budget();
  EXPECT_TRUE(work.cache().make_room(0, budget.swa()));
}

TEST(SequenceCacheTest, ASecondRunOfAPromptComputesOnlyItsEnd) {
  // Lengths around page borders; drafts make no difference: keys are single ids.
  for (const bool drafts : {false, true}) {
    for (const int32_t length : {127, 128, 129, 255, 256, 257, 511, 512, 513, 1024, 1025}) {
      CacheWorkload work(full_size());
      const std::vector<int32_t> prompt = some_ids(length);
      const int a = work.admit(prompt, {.drafts = drafts});
      EXPECT_EQ(work.sequence(a).lease.cached_tokens(), 0);
      work.run(a, 300, 3);
      work.finish(a);
      const int b = work.admit(prompt, {.drafts = drafts});
      EXPECT_EQ(work.sequence(b).lease.cached_tokens(), (length - 1) / 128 * 128) << length;
      work.run(b, 300, 3);
      work.abort(b);
      work.process_all();
      EXPECT_SOUND(work);
    }
  }
}

TEST(SequenceCacheTest, AHitAtAnyPageBorderOfAChunkedPromptReadsValidRings) {
  for (const int32_t chunk : {100, 256, 300, 512, 1000, 2048, 4096}) {
    CacheWorkload work(full_size(64, 40));
    const std::vector<int32_t> prompt = some_ids(4096);
    const int a = work.admit(prompt);
    work.run(a, chunk, 0);
    work.finish(a);
    for (int32_t border = 256; border <= 4096; border += 256) {
      std::vector<int32_t> other = joined(first_of(prompt, border), some_ids(40, 500 + border));
      const int b = work.admit(other);
      ASSERT_GE(b, 0);
      EXPECT_EQ(work.sequence(b).lease.cached_tokens(), border);
      work.run(b, 64, 1);
      work.abort(b);
      work.process_all();
      EXPECT_SOUND(work);
    }
  }
}

TEST(SequenceCacheTest, ContinuesAtAnyResumePointAsAColdRunWould) {
  for (const int32_t m : {4, 8, 124, 128, 132, 252, 256, 260, 384, 508, 512, 516, 640}) {
    CacheWorkload work(full_size());
    const std::vector<int32_t> history = some_ids(m);
    const int a = work.admit(history);
    work.run(a, 97, 0);
    work.finish(a);
    work.submit({});  // carries the capture out
    work.process_all();
    drop_windows(work);
    const int b = work.admit(joined(history, some_ids(100, 77)));
    ASSERT_GE(b, 0);
    EXPECT_EQ(work.sequence(b).lease.cached_tokens(), m);
    EXPECT_SOUND(work);
    work.run(b, 33, 300);
    work.finish(b);
    work.process_all();
    EXPECT_SOUND(work) << m;
  }
}

TEST(SequenceCacheTest, APointSurvivesEndingInsideTheWindowOfTheResume) {
  // A block before the resume point has only the rows that were copied: it must not be taken for a
  // page with a window by anybody else.
  CacheWorkload work(full_size());
  const std::vector<int32_t> history = some_ids(300);
  int a = work.admit(history);
  work.run(a, 300, 0);
  work.finish(a);
  work.submit({});
  work.process_all();
  work.cache().make_room(0, work.cache().budget().swa());
  for (int32_t turn = 0; turn < 6; ++turn) {
    a = work.admit(joined(history, some_ids(8 + turn, 5 * turn)));
    EXPECT_GE(work.sequence(a).lease.cached_tokens(), 300);
    work.run(a, 5, 1);
    work.finish(a);
    EXPECT_SOUND(work) << turn;
  }
  work.submit({});
  work.process_all();
  const int b = work.admit(joined(first_of(history, 256), some_ids(60, 9)));
  work.run(b, 60, 140);
  EXPECT_SOUND(work);
}

TEST(SequenceCacheTest, PromptsThatPartInsideAPageResumeAtTheBranch) {
  for (const int32_t part : {1, 127, 128, 129, 255, 256, 257, 300}) {
    CacheWorkload work(full_size());
    const std::vector<int32_t> common = some_ids(512);
    std::vector<int> runs;
    for (int32_t i = 0; i < 3; ++i) {
      const int run = work.admit(joined(first_of(common, part), some_ids(400, 100 + 7 * i)));
      ASSERT_GE(run, 0);
      if (i == 2) {
        EXPECT_EQ(work.sequence(run).lease.cached_tokens(), part / 128 * 128) << part;
      }
      work.run(run, 400, 2);
      EXPECT_SOUND(work) << part;
      runs.push_back(run);
    }
    for (const int run : runs) {
      work.run(run, 400, 40);  // nobody disturbed the others
      work.finish(run);
    }
    work.process_all();
    EXPECT_SOUND(work) << part;
  }
}

TEST(SequenceCacheTest, ThirtyTurnsOfAConversationComputeOnlyWhatIsNew) {
  CacheWorkload work(full_size(160, 24));
  std::vector<int32_t> history;
  uint64_t random = 3;
  int64_t recomputed = 0;
  int64_t computed = 0;
  for (int32_t turn = 0; turn < 30; ++turn) {
    random = random * 6364136223846793005ULL + 1442695040888963407ULL;
    const auto added = 1 + static_cast<int32_t>((random >> 33) % 700);
    const auto before = static_cast<int32_t>(history.size());
    history = joined(std::move(history), some_ids(added, 31 * turn + 1));
    const int a = work.admit(history);
    ASSERT_GE(a, 0) << turn;
    const int32_t cached = work.sequence(a).lease.cached_tokens();
    EXPECT_GE(cached, before - 4) << turn;
    recomputed += std::max(0, before - cached);
    computed += added;
    work.run(a, 256, 20);
    history = first_of(work.sequence(a).ids, work.sequence(a).lease.committed());
    work.finish(a);
    work.submit({});
    work.process_all();
    if (turn % 3 == 0) {
      drop_windows(work);
    }
    EXPECT_SOUND(work) << turn;
  }
  EXPECT_LT(recomputed * 100, computed * 3);
}

TEST(SequenceCacheTest, ALockedTombstoneGetsWindowRowsButKeepsItsPages) {
  CacheWorkload work(full_size());
  const std::vector<int32_t> prompt = some_ids(600);
  const int x = work.admit(prompt);
  work.run(x, 600, 300);  // its window has left the prompt
  const std::vector<FullPage> before(work.sequence(x).lease.full_pages().begin(),
                                     work.sequence(x).lease.full_pages().end());
  drop_windows(work);
  EXPECT_EQ(work.sequence(x).lease.swa_page(0).value(), 0);
  const int y = work.admit(first_of(prompt, 530), {.reuse_limit = 0});
  work.run(y, 530, 0);
  EXPECT_NE(work.sequence(x).lease.swa_page(0).value(), 0) << "the node has window rows again";
  for (size_t block = 0; block < 3; ++block) {
    EXPECT_EQ(work.sequence(x).lease.full_pages()[block], before[block]);
    EXPECT_NE(work.cache().radix().book().use(before[block]), PageUse::kFree);
  }
  EXPECT_EQ(work.cache().stats().windows_adopted, 2);
  EXPECT_SOUND(work);
  work.run(x, 1, 40);
  work.finish(x);
  work.finish(y);
  EXPECT_SOUND(work);
}

TEST(SequenceCacheTest, NamespacesShareNothing) {
  CacheWorkload work(full_size());
  const std::vector<int32_t> prompt = some_ids(700);
  const std::vector<CacheNamespace> spaces = {{},
                                              {.cache_salt = "a"},
                                              {.cache_salt = "b"},
                                              {.extra_key = "a"},
                                              {.cache_salt = "a", .extra_key = "1"},
                                              {.weight_version = 1}};
  for (const CacheNamespace& space : spaces) {
    const int first = work.admit(prompt, {.space = space});
    EXPECT_EQ(work.sequence(first).lease.cached_tokens(), 0);
    work.run(first, 700, 0);
    const int second = work.admit(prompt, {.space = space});
    EXPECT_EQ(work.sequence(second).lease.cached_tokens(), 640);
    work.run(second, 700, 1);
    EXPECT_SOUND(work);
    work.finish(first);
    work.finish(second);
    work.submit({});
    work.process_all();
  }
  EXPECT_NE((CacheNamespace{.cache_salt = "1", .extra_key = "2"}).key(),
            (CacheNamespace{.cache_salt = "12"}).key());
  work.cache().flush();
  EXPECT_EQ(work.cache().radix().spaces().live(), 0);
}

TEST(SequenceCacheTest, PagesOfAnEndedSequenceWaitForTheStepInFlight) {
  for (const bool keep : {false, true}) {
    CacheWorkload work(full_size(8, 8));
    const int a = work.admit(some_ids(300));
    work.run(a, 300, 3);
    work.submit({{a, 1, 3}});
    const FullPage tail = work.sequence(a).lease.full_pages()[1];
    const SwaPage tail_window = work.sequence(a).lease.swa_page(1);
    work.submit({{a, 1, 3}});
    work.process();
    // The result of the first step ends the sequence; the second one still writes.
    if (keep) {
      work.finish(a);
    } else {
      work.abort(a);
    }
    EXPECT_NE(work.cache().radix().book().use(tail), PageUse::kFree);
    EXPECT_EQ(work.cache().radix().book().use(tail_window), PageUse::kParked);
    EXPECT_SOUND(work);
    const int b = work.admit(some_ids(1200, 5));  // wants all the rest
    ASSERT_GE(b, 0);
    for (const FullPage page : work.sequence(b).lease.full_pages()) {
      EXPECT_NE(page, tail);
    }
    EXPECT_SOUND(work);
    work.process();
    work.run(b, 1200, 1);
    EXPECT_SOUND(work);
  }
}

TEST(SequenceCacheTest, PagesWaitForACopyThatEndsLate) {
  // Two clients leave while a copy of the pages is pending; completions come late, twice and for
  // copies that never were.
  CacheWorkload work(full_size(8, 8));
  const int r1 = work.admit(some_ids(300, 1));
  const int r2 = work.admit(some_ids(300, 2));
  work.run(r1, 300, 1);
  work.run(r2, 300, 1);
  const CacheTicket copy = work.cache().hold_blocks(work.sequence(r1).lease, 0, 2);
  const std::vector<FullPage> pages(work.sequence(r1).lease.full_pages().begin(),
                                    work.sequence(r1).lease.full_pages().end());
  work.abort(r1);
  EXPECT_EQ(work.cache().radix().book().use(pages[1]), PageUse::kParked);
  EXPECT_SOUND(work);
  EXPECT_LT(work.admit(some_ids(1200, 4)), 0) << "the copied pages are not to be had";
  EXPECT_SOUND(work);
  work.cache().complete(copy);
  EXPECT_EQ(work.cache().radix().book().use(pages[1]), PageUse::kFree);
  EXPECT_EQ(work.cache().stats().late_events, 0);
  work.cache().complete(copy);
  work.cache().complete(CacheTicket(12345));
  work.cache().complete(CacheTicket());
  EXPECT_EQ(work.cache().stats().late_events, 3);
  const int r4 = work.admit(some_ids(1200, 4));
  ASSERT_GE(r4, 0);
  work.run(r4, 1200, 4);
  work.finish(r4);
  work.finish(r2);
  work.submit({});
  work.process_all();
  EXPECT_SOUND(work);
  work.cache().flush();
  EXPECT_EQ(work.cache().budget().free_full, 8);
  EXPECT_EQ(work.cache().budget().free_swa, 8);
}

TEST(SequenceCacheTest, AReusedPrefixEqualsAColdRunThroughoutTheStory) {
  CacheWorkload work(full_size());
  const std::vector<int32_t> p1 = some_ids(640, 13);
  const std::vector<int32_t> p2 = joined(first_of(p1, 512), some_ids(128, 500));
  const std::vector<int32_t> p3 = joined(first_of(p1, 300), some_ids(40, 77));
  const auto run = [&](const std::vector<int32_t>& prompt, int32_t least, int32_t most) {
    const int a = work.admit(prompt);
    EXPECT_GE(work.sequence(a).lease.cached_tokens(), least);
    EXPECT_LE(work.sequence(a).lease.cached_tokens(), most);
    work.run(a, 256, 16);
    work.finish(a);
    work.submit({});
    work.process_all();
    EXPECT_SOUND(work);
  };
  run(p1, 0, 0);
  run(p2, 256, 512);
  drop_windows(work);
  run(p3, 0, 299);
  run(p1, 512, 639);
  const int a = work.admit(p2);
  const int b = work.admit(p3);
  EXPECT_GE(work.sequence(b).lease.cached_tokens(), 256);
  for (int32_t step = 0; step < 16; ++step) {
    work.submit({{a, 100}, {b, 100}});
    work.process();
  }
  work.finish(a);
  work.finish(b);
  const int c = work.admit(p1);
  work.run(c, 640, 0);
  for (int32_t step = 0; step < 16; ++step) {
    work.submit({{c, 1, 2}});
    work.process();
  }
  work.finish(c);
  work.submit({});
  work.process_all();
  EXPECT_SOUND(work);
  EXPECT_EQ(work.cache().budget().full(), 64) << "all that is used is held by the tree";
  EXPECT_EQ(work.cache().budget().swa(), 24);
  work.cache().flush();
  EXPECT_EQ(work.cache().budget().free_full, 64);
  EXPECT_EQ(work.cache().budget().free_swa, 24);
  EXPECT_SOUND(work);
}

TEST(SequenceCacheTest, CommittingNothingChangesNothing) {
  // A sequence that was not in the last step must not have its pages freed a second time.
  CacheWorkload work(full_size());
  const std::vector<int32_t> prompt = some_ids(600);
  const int a = work.admit(prompt);
  const int b = work.admit(prompt);
  work.submit({{a, 512}, {b, 512}});
  work.process();
  const PageBudget before = work.cache().budget();
  for (int32_t i = 0; i < 3; ++i) {
    work.cache().commit(work.sequence(a).lease, {}, prompt[512]);
    work.cache().commit(work.sequence(b).lease, {}, prompt[512]);
    EXPECT_SOUND(work);
  }
  EXPECT_EQ(work.cache().budget().free_full, before.free_full);
  EXPECT_EQ(work.cache().stats().pages_deduplicated, 2);
  EXPECT_EQ(work.sequence(a).lease.full_pages()[1], work.sequence(b).lease.full_pages()[1]);
}

TEST(SequenceCacheTest, APreemptedSequenceComputesAtMostFourTokensAgain) {
  CacheWorkload work(full_size());
  for (const int32_t decoded : {1, 2, 3, 4, 130, 131, 255}) {
    int a = work.admit(some_ids(500, decoded));
    work.run(a, 500, decoded);
    const CacheWorkload::Running& s = work.sequence(a);
    std::vector<int32_t> ids = first_of(s.ids, s.lease.committed() + 1);
    work.preempt(a);
    work.submit({});
    work.process_all();
    drop_windows(work);  // others took the window pages meanwhile
    a = work.admit(ids);
    EXPECT_GE(work.sequence(a).lease.cached_tokens(), static_cast<int32_t>(ids.size()) - 4);
    work.run(a, 500, 20);
    work.finish(a);
    work.submit({});
    work.process_all();
    EXPECT_SOUND(work) << decoded;
  }
}

TEST(SequenceCacheTest, RoomIsGivenExactlyAsTheBudgetSays) {
  CacheWorkload work(full_size(16, 8));
  const int a = work.admit(some_ids(1024), {.chunk = 256});
  work.run(a, 256, 0);
  const int b = work.admit(some_ids(256, 9));
  work.run(b, 256, 0);
  work.finish(b);
  work.submit({});
  work.process_all();
  SequenceLease& lease = work.sequence(a).lease;
  const PageBudget budget = work.cache().budget();
  const int32_t most = std::min(budget.full(), budget.swa()) * 256 + lease.allocated();
  EXPECT_EQ(work.cache().pages_needed(lease, most), std::min(budget.full(), budget.swa()));
  EXPECT_FALSE(work.cache().reserve(lease, most + 1));
  EXPECT_EQ(work.cache().budget().free_swa, budget.free_swa) << "a refusal evicts nothing";
  EXPECT_TRUE(work.cache().reserve(lease, most));
  EXPECT_EQ(lease.allocated(), most);
  EXPECT_SOUND(work);
}

TEST(SequenceCacheTest, ADecodingSequenceNeedsAPageOnlyAtAPageBorder) {
  CacheWorkload work(full_size());
  const int a = work.admit(some_ids(250));
  work.run(a, 250, 0);
  for (int32_t length = 250; length < 520; ++length) {
    const SequenceLease& lease = work.sequence(a).lease;
    ASSERT_EQ(lease.committed(), length);
    EXPECT_EQ(work.cache().pages_needed(lease, length + 1), length % 256 == 0 ? 1 : 0) << length;
    EXPECT_EQ(work.cache().pages_needed(lease, length + 8), length % 256 == 0 || length % 256 > 248)
        << length;
    work.run(a, 1, 1);
  }
  EXPECT_SOUND(work);
}

TEST(SequenceCacheTest, AnAdmissionWithoutRoomLeavesNoTrace) {
  CacheWorkload work(full_size(8, 8));
  const std::vector<int32_t> prompt = some_ids(1500);
  const int a = work.admit(prompt);
  work.run(a, 300, 0);
  const PageBudget before = work.cache().budget();
  EXPECT_LT(work.admit(joined(first_of(prompt, 1400), some_ids(1200, 3))), 0);
  EXPECT_LT(work.admit(some_ids(1200, 3)), 0);
  EXPECT_EQ(work.cache().stats().admissions_refused, 2);
  EXPECT_EQ(work.cache().budget().full(), before.full());
  EXPECT_SOUND(work);
}

TEST(SequenceCacheTest, ASequenceThatDoesNotShareGivesItsOldWindowsBack) {
  CacheWorkload work(full_size(32, 4));
  const std::vector<int32_t> prompt = some_ids(3000);
  const int a = work.admit(prompt, {.chunk = 256, .share = false});
  work.run(a, 256, 300);
  EXPECT_SOUND(work);
  EXPECT_EQ(work.sequence(a).lease.swa_page(0).value(), 0);
  work.finish(a);
  EXPECT_EQ(work.cache().budget().free_full, 32);
  const int b = work.admit(prompt, {.chunk = 256});
  EXPECT_EQ(work.sequence(b).lease.cached_tokens(), 0);
  EXPECT_SOUND(work);
}

TEST(SequenceCacheTest, OptionsThatDoNotFitAreRefusedByName) {
  const auto message_of = [](const WorkloadOptions& options) -> std::string {
    try {
      SequenceCache cache(options.cache);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return {};
  };
  WorkloadOptions options = full_size();
  EXPECT_EQ(message_of(options), "");
  options.cache.capture.interval = 100;
  EXPECT_NE(message_of(options).find("interval = 100"), std::string::npos);
  options = full_size();
  options.cache.request_slots = 0;
  EXPECT_NE(message_of(options).find("request_slots = 0"), std::string::npos);
  options = full_size();
  options.cache.geometry.resume_step = 2;
  EXPECT_NE(message_of(options).find("resume_step = 2"), std::string::npos);
  options = full_size();
  options.cache.geometry.prompt_step = 64;
  EXPECT_NE(message_of(options).find("prompt_step = 64"), std::string::npos);
  options = full_size();
  options.cache.geometry.c128_ratio = 96;
  EXPECT_NE(message_of(options).find("c128_ratio = 96"), std::string::npos);
  options = full_size();
  options.cache.geometry.window = 0;
  EXPECT_NE(message_of(options).find("window = 0"), std::string::npos);
  options = full_size();
  options.cache.geometry.open_group_rows = 4;
  EXPECT_NE(message_of(options).find("open_group_rows = 4"), std::string::npos);
}

}  // namespace
}  // namespace baleen::cache
