#include "engine/draft_planner.h"

#include <random>

#include <gtest/gtest.h>

#include "base/error.h"

namespace baleen::engine {
namespace {

/// Notes `steps` steps at the planner's own depth, with drafts that stand with probability `rate`.
void run(DraftPlanner& planner, DraftState& state, int steps, double rate, int32_t num_rows = 1) {
  std::mt19937 random(7);
  std::bernoulli_distribution stands(rate);
  for (int i = 0; i < steps; ++i) {
    const int32_t depth = planner.depth(state, num_rows);
    int32_t accepted = 0;
    while (accepted < depth && stands(random)) {
      ++accepted;
    }
    planner.note(state, depth, accepted);
  }
}

TEST(DraftPlannerTest, GoodDraftsGoToTheLimit) {
  DraftPlanner planner({.max_drafts = 5});
  DraftState state = planner.begin(-1);
  run(planner, state, 200, 0.97);
  EXPECT_EQ(planner.depth(state, 1), 5);
  EXPECT_GT(planner.rate(1), 0.7);
}

TEST(DraftPlannerTest, BadDraftsStopAndAreTriedNowAndThen) {
  DraftPlanner planner({.max_drafts = 3, .probe_every = 10});
  DraftState state = planner.begin(-1);
  run(planner, state, 100, 0.0);
  int tries = 0;
  for (int i = 0; i < 110; ++i) {
    const int32_t depth = planner.depth(state, 1);
    ASSERT_LE(depth, 1);
    tries += depth;
    planner.note(state, depth, 0);
  }
  EXPECT_EQ(tries, 10);
  // The text becomes easy: the tries show it and drafting resumes.
  run(planner, state, 2000, 1.0);
  EXPECT_EQ(planner.depth(state, 1), 3);
}

TEST(DraftPlannerTest, ManyRowsWantBetterDrafts) {
  DraftPlanner planner({.max_drafts = 4, .rows_many = 16});
  DraftState state = planner.begin(-1);
  run(planner, state, 400, 0.75);
  int32_t last = planner.depth(state, 1);
  EXPECT_GE(last, 3);
  for (const int32_t rows : {4, 8, 16, 200}) {
    EXPECT_LE(planner.depth(state, rows), last);
    last = planner.depth(state, rows);
  }
  EXPECT_LE(last, 1);
}

TEST(DraftPlannerTest, ARequestKeepsItsOwnLimit) {
  DraftPlanner planner({.max_drafts = 4, .adaptive = false});
  EXPECT_EQ(planner.depth(planner.begin(-1), 1), 4);
  EXPECT_EQ(planner.depth(planner.begin(0), 1), 0);
  EXPECT_FALSE(planner.begin(0).drafts());
  EXPECT_EQ(planner.depth(planner.begin(2), 500), 2);
  EXPECT_EQ(planner.depth(planner.begin(9), 1), 4);
  // A request that is off is not tried either.
  DraftPlanner adaptive({.max_drafts = 4, .probe_every = 1});
  DraftState off = adaptive.begin(0);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(adaptive.depth(off, 1), 0);
    adaptive.note(off, 0, 0);
  }
}

TEST(DraftPlannerTest, ANewRequestBeginsWithWhatTheOthersMeasured) {
  DraftPlanner planner({.max_drafts = 3, .memory_all = 0.9});
  DraftState first = planner.begin(-1);
  for (int i = 0; i < 300; ++i) {
    planner.note(first, 3, 0);
  }
  EXPECT_EQ(planner.depth(planner.begin(-1), 1), 0);
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
