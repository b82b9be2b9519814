#include "engine/draft_planner.h"

#include <random>

#include <gtest/gtest.h>

#include "base/error.h"

namespace baleen::engine {
namespace {

constexpr SequenceId kId(4);

/// Notes `steps` steps at the planner's own depth, with drafts that stand with probability `rate`.
void run(DraftPlanner& planner, SequenceId id, int steps, double rate, int32_t num_rows = 1) {
  std::mt19937 random(7);
  std::bernoulli_distribution stands(rate);
  for (int i = 0; i < steps; ++i) {
    const int32_t depth = planner.depth(id, num_rows);
    int32_t accepted = 0;
    while (accepted < depth && stands(random)) {
      ++accepted;
    }
    planner.note(id, depth, accepted);
  }
}

TEST(DraftPlannerTest, GoodDraftsGoToTheLimit) {
  DraftPlanner planner({.max_drafts = 5});
  planner.add(kId, -1);
  run(planner, kId, 200, 0.97);
  EXPECT_EQ(planner.depth(kId, 1), 5);
  EXPECT_GT(planner.rate(1), 0.7);
}

TEST(DraftPlannerTest, BadDraftsStopAndAreTriedNowAndThen) {
  DraftPlanner planner({.max_drafts = 3, .probe_every = 10});
  planner.add(kId, -1);
  run(planner, kId, 100, 0.0);
  int tries = 0;
  for (int i = 0; i < 110; ++i) {
    const int32_t depth = planner.depth(kId, 1);
    ASSERT_LE(depth, 1);
    tries += depth;
    planner.note(kId, depth, 0);
  }
  EXPECT_EQ(tries, 10);
  // The text becomes easy: the tries show it and drafting resumes.
  run(planner, kId, 2000, 1.0);
  EXPECT_EQ(planner.depth(kId, 1), 3);
}

TEST(DraftPlannerTest, ManyRowsWantBetterDrafts) {
  DraftPlanner planner({.max_drafts = 4, .rows_many = 16});
  planner.add(kId, -1);
  run(planner, kId, 400, 0.75);
  int32_t last = planner.depth(kId, 1);
  EXPECT_GE(last, 3);
  for (const int32_t rows : {4, 8, 16, 200}) {
    EXPECT_LE(planner.depth(kId, rows), last);
    last = planner.depth(kId, rows);
  }
  EXPECT_LE(last, 1);
}

TEST(DraftPlannerTest, ARequestKeepsItsOwnLimit) {
  DraftPlanner planner({.max_drafts = 4, .adaptive = false});
  planner.add(SequenceId(0), -1);
  planner.add(SequenceId(1), 0);
  planner.add(SequenceId(2), 2);
  planner.add(SequenceId(3), 9);
  EXPECT_EQ(planner.depth(SequenceId(0), 1), 4);
  EXPECT_EQ(planner.depth(SequenceId(1), 1), 0);
  EXPECT_FALSE(planner.drafts(SequenceId(1)));
  EXPECT_EQ(planner.depth(SequenceId(2), 500), 2);
  EXPECT_EQ(planner.depth(SequenceId(3), 1), 4);
  // A request that is off is not tried either.
  DraftPlanner adaptive({.max_drafts = 4, .probe_every = 1});
  adaptive.add(kId, 0);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(adaptive.depth(kId, 1), 0);
    adaptive.note(kId, 0, 0);
  }
}

TEST(DraftPlannerTest, ANewRequestBeginsWithWhatTheOthersMeasured) {
  DraftPlanner planner({.max_drafts = 3, .memory_all = 0.9});
  planner.add(SequenceId(0), -1);
  for (int i = 0; i < 300; ++i) {
    planner.note(SequenceId(0), 3, 0);
  }
  planner.add(SequenceId(1), -1);
  EXPECT_EQ(planner.depth(SequenceId(1), 1), 0);
  planner.remove(SequenceId(0));
  EXPECT_LT(planner.rate(1), 0.01);
  // Places behind a refused draft say nothing about themselves.
  EXPECT_EQ(planner.rate(2), planner.rate(3));
  EXPECT_GT(planner.rate(2), 0.5);
}

TEST(DraftPlannerTest, RefusesAConfigOutOfRange) {
  EXPECT_THROW(DraftPlanner({.max_drafts = -1}), ConfigError);
  EXPECT_THROW(DraftPlanner({.cost_few = 0.9}), ConfigError);  // above cost_many
  EXPECT_THROW(DraftPlanner({.probe_every = 0}), ConfigError);
  EXPECT_THROW(DraftPlanner({.memory = 1.5}), ConfigError);
}

}  // namespace
}  // namespace baleen::engine
