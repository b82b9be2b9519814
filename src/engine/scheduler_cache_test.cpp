// The scheduler over a paged cache: random lives of sequences that share prefixes, on pools too
// small for all of them, with steps one by one and with each step planned while the one before
// runs. A model of the memory checks that every row a pass reads is that of a cold run.

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "base/test_share.h"
#include "cache/cache_test_options.h"
#include "engine/cache_life_test.h"
#include "engine/scheduler.h"

namespace baleen::engine {
namespace {

TEST(SchedulerCacheTest, AFinishedConversationContinuesWhereItEnded) {
  CacheLife life(cache::small_size(),
                 {.num_slots = 4, .max_step_tokens = 32, .max_prefill_chunk = 16});
  life.enqueue(SequenceId(0), cache::some_ids(40));
  int generated = 0;
  while (life.is_busy()) {
    life.turn(
        [&](const std::vector<int32_t>&) { return ++generated > 10 ? -1 : 2000 + generated; });
  }
  std::vector<int32_t> next_turn = cache::joined(life.ended()[0], cache::some_ids(20, 5));
  life.enqueue(SequenceId(1), next_turn);
  const int64_t run_before = life.num_run();
  while (life.is_busy()) {
    life.turn([](const std::vector<int32_t>&) { return -1; });
  }
  // Of the 50 tokens of the first turn the last one never ran; the end lies on a multiple of 4.
  EXPECT_EQ(life.num_cached(), 48);
  EXPECT_EQ(life.num_run() - run_before, 22);
}

TEST(SchedulerCacheTest, AnIdleEngineMakesWhatEndedResumable) {
  CacheLife life(cache::small_size(),
                 {.num_slots = 4, .max_step_tokens = 32, .max_prefill_chunk = 16});
  life.enqueue(SequenceId(0), cache::some_ids(10));
  int generated = 0;
  while (life.is_busy()) {
    life.turn([&](const std::vector<int32_t>&) { return ++generated > 4 ? -1 : 2000 + generated; });
  }
  ASSERT_TRUE(life.scheduler().has_end_captures());
  life.turn([](const std::vector<int32_t>&) { return -1; });
  EXPECT_FALSE(life.scheduler().has_end_captures());
  life.enqueue(SequenceId(1), cache::joined(life.ended()[0], cache::some_ids(5, 9)));
  life.turn([](const std::vector<int32_t>&) { return -1; });
  // 14 tokens end inside the first page; resume points at turn ends lie on multiples of 4.
  EXPECT_EQ(life.num_cached(), 12);
}

TEST(SchedulerCacheTest, ATurnThatComesAtOnceStillFindsTheEndOfTheLast) {
  // Nothing else runs; the next turn is there before the end of the last was captured.
  for (const bool overlap : {false, true}) {
    CacheLife life(cache::small_size(),
                   {.num_slots = 4, .max_step_tokens = 32, .max_prefill_chunk = 16},
                   overlap);
    std::vector<int32_t> history = cache::some_ids(10);
    for (int32_t turn = 0; turn < 8; ++turn) {
      life.enqueue(SequenceId(turn), history);
      const size_t num_ended = life.ended().size();
      const int64_t cached_before = life.num_cached();
      while (life.ended().size() == num_ended) {
        life.turn([&](const std::vector<int32_t>& tokens) {
          return tokens.size() >= history.size() + 6 ? -1
                                                     : static_cast<int32_t>(2000 + tokens.size());
        });
        ASSERT_FALSE(testing::Test::HasFatalFailure());
      }
      if (turn > 0) {
        // All of the turn before has run; its end lies on a multiple of 4.
        const auto told = static_cast<int64_t>(history.size()) - 5;
        EXPECT_EQ(life.num_cached() - cached_before, told / 4 * 4) << turn << overlap;
      }
      history = cache::joined(life.ended().back(), cache::some_ids(5, 31 * turn));
    }
  }
}

TEST(SchedulerCacheTest, PreemptedSequencesComeBackAndEnd) {
  // Room for about two sequences of the three: one is preempted, none starves.
  CacheLife life(cache::small_size(12, 10),
                 {.num_slots = 4, .max_step_tokens = 32, .max_prefill_chunk = 16});
  for (int32_t i = 0; i < 3; ++i) {
    life.enqueue(SequenceId(i), cache::some_ids(30, 100 * i));
  }
  int steps = 0;
  while (life.is_busy() && ++steps < 2000) {
    life.turn([](const std::vector<int32_t>& tokens) {
      return tokens.size() > 100 ? -1 : static_cast<int32_t>(3000 + tokens.size());
    });
    ASSERT_FALSE(testing::Test::HasFatalFailure());
  }
  EXPECT_EQ(life.ended().size(), 3U);
  EXPECT_EQ(life.num_stuck(), 0);
  EXPECT_GT(life.scheduler().num_preemptions(), 0);
}

TEST(SchedulerCacheTest, APromptThatSkipsAStepKeepsItsPages) {
  // Two prompts, room for one and a half: the second is cut to nothing in some steps while the
  // first decodes, goes on later, and no page is lost or freed twice.
  for (const bool overlap : {false, true}) {
    CacheLife life(cache::small_size(9, 9),
                   {.num_slots = 2, .max_step_tokens = 32, .max_prefill_chunk = 16},
                   overlap);
    life.enqueue(SequenceId(0), cache::some_ids(40));
    life.enqueue(SequenceId(1), cache::some_ids(110, 300));
    int64_t skipped = 0;
    int turns = 0;
    while (life.is_busy() && ++turns < 500) {
      const bool waits = life.tokens().contains(SequenceId(1)) &&
                         life.scheduler().state(SequenceId(1)).is<Prefilling>();
      const int32_t before =
          waits ? life.scheduler().state(SequenceId(1)).get<Prefilling>()->num_done : 0;
      life.turn([](const std::vector<int32_t>& tokens) {
        const bool first = tokens[0] == cache::some_ids(1)[0];
        return tokens.size() > (first ? 70U : 112U) ? -1
                                                    : static_cast<int32_t>(2000 + tokens.size());
      });
      ASSERT_FALSE(testing::Test::HasFatalFailure());
      if (waits && life.tokens().contains(SequenceId(1))) {
        const auto* prefilling = life.scheduler().state(SequenceId(1)).get<Prefilling>();
        skipped += prefilling != nullptr && prefilling->num_done == before ? 1 : 0;
      }
    }
    EXPECT_EQ(life.ended().size(), 2U);
    EXPECT_GT(skipped, 0);
    life.cache().flush();
    EXPECT_EQ(life.cache().budget().free_full, 9);
  }
}

TEST(SchedulerCacheTest, NobodyIsPreemptedWhilePagesLast) {
  // Every sequence may grow to its last page; together they fill the pool to the last page.
  for (const bool overlap : {false, true}) {
    cache::WorkloadOptions options = cache::small_size(4 * 5 + 4, 4 * 5 + 4);
    CacheLife life(
        options, {.num_slots = 4, .max_step_tokens = 64, .max_prefill_chunk = 64}, overlap);
    for (int32_t i = 0; i < 4; ++i) {
      life.enqueue(SequenceId(i), cache::some_ids(20, 100 * i));
    }
    while (life.is_busy()) {
      life.turn([](const std::vector<int32_t>& tokens) {
        return tokens.size() == 5 * 16 ? -1 : static_cast<int32_t>(2000 + tokens.size());
      });
      ASSERT_FALSE(testing::Test::HasFatalFailure());
    }
    EXPECT_EQ(life.scheduler().num_preemptions(), 0);
  }
}

TEST(SchedulerCacheTest, ASequenceLargerThanTheCacheIsNamed) {
  CacheLife life(cache::small_size(6, 6),
                 {.num_slots = 4, .max_step_tokens = 32, .max_prefill_chunk = 16});
  life.enqueue(SequenceId(0), cache::some_ids(60));
  int steps = 0;
  while (life.is_busy() && ++steps < 2000) {
    life.turn(
        [](const std::vector<int32_t>& tokens) { return static_cast<int32_t>(tokens.size()); });
    ASSERT_FALSE(testing::Test::HasFatalFailure());
  }
  EXPECT_EQ(life.num_stuck(), 1);
}

TEST(SchedulerCacheTest, ASequenceMayFillTheCacheToItsLastToken) {
  // Twice: the second one also finds what the first left, in the pages that it needs itself.
  for (const bool overlap : {false, true}) {
    for (const int32_t drafts : {0, 3}) {
      cache::WorkloadOptions options = cache::small_size(6, 6);
      options.cache.verified_tokens = drafts + 1;
      CacheLife life(
          options, {.num_slots = 2, .max_step_tokens = 32, .max_prefill_chunk = 16}, overlap);
      life.use_drafts(drafts);
      for (const int64_t id : {1, 4}) {  // of those that draft
        life.enqueue(SequenceId(id), cache::some_ids(90));
        int turns = 0;
        while (life.is_busy() && ++turns < 200) {
          life.turn([](const std::vector<int32_t>& tokens) {
            return tokens.size() == 6 * 16 ? -1 : static_cast<int32_t>(2000 + tokens.size());
          });
          ASSERT_FALSE(testing::Test::HasFatalFailure());
        }
      }
      EXPECT_EQ(life.num_stuck(), 0) << overlap << drafts;
      EXPECT_EQ(life.ended().size(), 2U);
    }
  }
}

TEST(SchedulerCacheTest, AStopFoundLateNeverWritesIntoAPageOfAnother) {
  // Each sequence stops while a row behind its end is in flight, and the pool is so small that the
  // next one needs its pages: they are not given away before that row has run.
  CacheLife life(cache::small_size(7, 7),
                 {.num_slots = 2, .max_step_tokens = 32, .max_prefill_chunk = 32},
                 /*overlap=*/true);
  for (int32_t i = 0; i < 12; ++i) {
    life.enqueue(SequenceId(i), cache::some_ids(20 + i, 100 * i));
  }
  int steps = 0;
  while (life.is_busy() && ++steps < 2000) {
    life.turn([](const std::vector<int32_t>& tokens) {
      return tokens.size() > 34 ? -1 : static_cast<int32_t>(3000 + tokens.size());
    });
    ASSERT_FALSE(testing::Test::HasFatalFailure());
  }
  EXPECT_EQ(life.ended().size(), 12U);
  EXPECT_EQ(life.num_stuck(), 0);
  EXPECT_EQ(life.num_thrown_away(), 12);
  life.cache().flush();
  EXPECT_EQ(life.cache().budget().free_full, 7) << "nothing of them is left";
  EXPECT_EQ(life.cache().budget().free_swa, 7);
}

TEST(SchedulerCacheTest, DecodingRunsAheadOfItsOwnTokens) {
  CacheLife life(cache::small_size(),
                 {.num_slots = 4, .max_step_tokens = 32, .max_prefill_chunk = 16},
                 /*overlap=*/true);
  life.enqueue(SequenceId(0), cache::some_ids(40));
  int turns = 0;
  while (life.is_busy()) {
    life.turn([](const std::vector<int32_t>& tokens) {
      return tokens.size() == 90 ? -1 : static_cast<int32_t>(2000 + tokens.size());
    });
    ++turns;
  }
  EXPECT_EQ(life.num_ahead(), 51) << "every decode row but those that nothing precedes";
  EXPECT_EQ(life.num_thrown_away(), 1);
  EXPECT_LE(turns, 56) << "no turn is lost to waiting";
}

TEST(SchedulerCacheTest, ARowThatNeedsItsTokensWaitsForThem) {
  CacheLife life(cache::small_size(),
                 {.num_slots = 4, .max_step_tokens = 32, .max_prefill_chunk = 16},
                 /*overlap=*/true);
  life.hold_back_odd_ids();
  life.enqueue(SequenceId(1), cache::some_ids(10));
  while (life.is_busy()) {
    life.turn([](const std::vector<int32_t>& tokens) {
      return tokens.size() == 20 ? -1 : static_cast<int32_t>(2000 + tokens.size());
    });
  }
  EXPECT_EQ(life.num_ahead(), 0);
  EXPECT_EQ(life.num_thrown_away(), 0);
}

TEST(SchedulerCacheTest, TheNextTurnWaitsForTheCaptureOfTheLast) {
  // Another sequence keeps the engine busy: the turn comes while the capture is on its way.
  for (const bool overlap : {false, true}) {
    CacheLife life(cache::small_size(40, 20),
                   {.num_slots = 4, .max_step_tokens = 64, .max_prefill_chunk = 64},
                   overlap);
    life.enqueue(SequenceId(0), cache::some_ids(30, 700));
    life.enqueue(SequenceId(1), cache::some_ids(38));
    while (life.ended().empty()) {
      life.turn([](const std::vector<int32_t>& tokens) {
        return tokens[0] == cache::some_ids(1)[0] && tokens.size() == 45
                   ? -1
                   : static_cast<int32_t>(2000 + tokens.size());
      });
    }
    const std::vector<int32_t> turn = cache::joined(life.ended()[0], cache::some_ids(9, 5));
    life.enqueue(SequenceId(2), turn);
    const int64_t cached = life.num_cached();
    for (int i = 0; i < 6; ++i) {
      life.turn([](const std::vector<int32_t>& tokens) {
        return static_cast<int32_t>(2000 + tokens.size());
      });
    }
    EXPECT_EQ(life.num_cached() - cached, 44) << overlap;
    life.remove(SequenceId(0), Ending::kAborted);
    life.remove(SequenceId(2), Ending::kAborted);
    while (life.is_busy()) {
      life.turn([](const std::vector<int32_t>&) { return -1; });
    }
  }
}

struct LifeFigures {
  int64_t drafts = 0;
  int64_t cached = 0;
  int64_t preempted = 0;
  int64_t ahead = 0;
  int64_t thrown_away = 0;
  int64_t moved = 0;
};

void run_random_life(
    uint32_t seed, int num_steps, bool overlap, LifeFigures& figures, int32_t most_drafts = 0) {
  std::mt19937 random(seed);
  const auto below = [&](size_t bound) {
    return static_cast<int32_t>(random() % static_cast<uint32_t>(bound));
  };
  cache::WorkloadOptions options = cache::small_size(9 + below(8), 8 + below(6));
  options.cache.request_slots = 1 + below(6);
  options.cache.verified_tokens = most_drafts + 1;
  const int32_t slots = options.cache.request_slots;
  CacheLife life(options,
                 {.num_slots = slots,
                  .max_step_tokens = slots + below(40),
                  .max_prefill_chunk = 1 + below(40)},
                 overlap);
  if (below(4) == 0) {
    life.hold_back_odd_ids();
  }
  life.use_drafts(most_drafts);
  int64_t next = 0;
  for (int step = 0; step < num_steps; ++step) {
    for (int i = below(3); i > 0 && life.scheduler().num_waiting() < 6; --i) {
      // Half of the prompts continue or cut what came before.
      std::vector<int32_t> prompt;
      if (!life.ended().empty() && below(2) == 0) {
        const std::vector<int32_t>& old =
            life.ended()[static_cast<size_t>(below(life.ended().size()))];
        prompt.assign(old.begin(), old.begin() + below(old.size() + 1));
      }
      const std::vector<int32_t> tail = cache::some_ids(1 + below(40), below(5) * 50);
      prompt.insert(prompt.end(), tail.begin(), tail.end());
      prompt.resize(std::min<size_t>(prompt.size(), 90));
      life.enqueue(SequenceId(next++), std::move(prompt));
    }
    if (!life.tokens().empty() && below(5) == 0) {
      auto victim = life.tokens().begin();
      std::advance(victim, below(life.tokens().size()));
      life.remove(victim->first, below(2) == 0 ? Ending::kAborted : Ending::kFinished);
    }
    life.turn([&](const std::vector<int32_t>& tokens) {
      return below(12) == 0 || tokens.size() > 120 ? -1 : below(997);
    });
    ASSERT_FALSE(testing::Test::HasFatalFailure()) << "seed " << seed << " step " << step;
  }
  int steps = 0;
  while (life.is_busy() && ++steps < 5000) {
    life.turn([&](const std::vector<int32_t>&) { return below(4) == 0 ? -1 : below(997); });
    ASSERT_FALSE(testing::Test::HasFatalFailure()) << "seed " << seed << " end";
  }
  ASSERT_TRUE(life.tokens().empty()) << "seed " << seed << ": " << life.tokens().size() << " left";
  figures.cached += life.num_cached();
  figures.preempted += life.scheduler().num_preemptions();
  figures.ahead += life.num_ahead();
  figures.drafts += life.num_drafts();
  figures.thrown_away += life.num_thrown_away();
  figures.moved += life.num_moved();
}

TEST(SchedulerCacheTest, RandomLivesReadWhatAColdRunWouldHave) {
  LifeFigures figures;
  for (uint32_t seed = 0; seed < 300 / kTestShare; ++seed) {
    ASSERT_NO_FATAL_FAILURE(run_random_life(seed, 150, /*overlap=*/false, figures));
  }
  EXPECT_GT(figures.cached, 20'000 / kTestShare);
  EXPECT_GT(figures.preempted, kTestShare == 1 ? 100 : -1);  // too rare for a share
  EXPECT_EQ(figures.ahead, 0);
}

TEST(SchedulerCacheTest, RandomLivesWithDraftsReadWhatAColdRunWouldHave) {
  LifeFigures figures;
  for (uint32_t seed = 1000; seed < 1000 + 200 / kTestShare; ++seed) {
    for (const int32_t most_drafts : {1, 3, 8}) {
      ASSERT_NO_FATAL_FAILURE(run_random_life(seed, 100, /*overlap=*/false, figures, most_drafts));
    }
  }
  EXPECT_GT(figures.cached, 20'000 / kTestShare);
  EXPECT_GT(figures.preempted, kTestShare == 1 ? 100 : -1);  // too rare for a share
  EXPECT_GT(figures.drafts, 20'000 / kTestShare);
}

TEST(SchedulerCacheTest, RandomOverlappedLivesWithDraftsReadWhatAColdRunWouldHave) {
  LifeFigures figures;
  for (uint32_t seed = 2000; seed < 2000 + 200 / kTestShare; ++seed) {
    for (const int32_t most_drafts : {1, 3, 8}) {
      ASSERT_NO_FATAL_FAILURE(run_random_life(seed, 100, /*overlap=*/true, figures, most_drafts));
    }
  }
  EXPECT_GT(figures.cached, 20'000 / kTestShare);
  EXPECT_GT(figures.preempted, kTestShare == 1 ? 50 : -1);  // too rare for a share
  EXPECT_GT(figures.drafts, 20'000 / kTestShare);
  EXPECT_GT(figures.ahead, 10'000 / kTestShare);
  EXPECT_GT(figures.moved, 1'000 / kTestShare);
  EXPECT_GT(figures.thrown_away, 500 / kTestShare);
}

TEST(SchedulerCacheTest, RandomOverlappedLivesReadWhatAColdRunWouldHave) {
  LifeFigures figures;
  for (uint32_t seed = 0; seed < 300 / kTestShare; ++seed) {
    ASSERT_NO_FATAL_FAILURE(run_random_life(seed, 150, /*overlap=*/true, figures));
  }
  EXPECT_GT(figures.cached, 20'000 / kTestShare);
  EXPECT_GT(figures.preempted, kTestShare == 1 ? 50 : -1);  // too rare for a share
  EXPECT_GT(figures.ahead, 10'000 / kTestShare);
  EXPECT_GT(figures.thrown_away, 1'000 / kTestShare);
}

}  // namespace
}  // namespace baleen::engine
