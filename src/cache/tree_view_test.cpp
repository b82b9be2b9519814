// The tree as it is shown, and the fill of the pools, against what a workload put there.
#include "cache/tree_view.h"

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

#include "cache/cache_test_options.h"
#include "cache/pool_fill.h"

namespace baleen::cache {
namespace {

constexpr int32_t kPage = 256;

/// Runs a prompt to its end and keeps it.
void keep_prompt(CacheWorkload& work, const std::vector<int32_t>& ids) {
  const int a = work.admit(ids);
  ASSERT_GE(a, 0);
  work.run(a, 512, 2);
  work.finish(a);
  work.submit({});  // the capture at its end is made in the next step
  work.process_all();
}

TreeView view(CacheWorkload& work, TreeViewOptions options = {}) {
  const std::optional<TreeView> taken = view_tree(work.cache(), options);
  EXPECT_TRUE(taken);
  return taken.value_or(TreeView{});
}

/// What every view must hold, whatever is in it.
void expect_sound(CacheWorkload& work, const TreeView& tree) {
  const RadixTree& nodes = work.cache().radix().tree();
  std::set<int32_t> pages;
  int32_t shown_children = 0;
  for (size_t i = 0; i < tree.runs.size(); ++i) {
    const TreeViewRun& run = tree.runs[i];
    ASSERT_LT(run.parent, static_cast<int32_t>(i));
    const FullPage above =
        run.parent < 0 ? tree.root : tree.runs[static_cast<size_t>(run.parent)].last;
    EXPECT_EQ(nodes.node(run.first).parent, above);
    EXPECT_EQ(run.begin_tokens, nodes.end_of(above));
    EXPECT_EQ(nodes.end_of(run.last), run.begin_tokens + run.num_pages * tree.page_tokens);
    int32_t length = 0;
    for (FullPage page = run.last; page != above; page = nodes.node(page).parent) {
      EXPECT_TRUE(pages.insert(page.value()).second);
      EXPECT_EQ(nodes.is_live(page), run.is_live);
      ++length;
    }
    EXPECT_EQ(length, run.num_pages);
    EXPECT_EQ(static_cast<int32_t>(run.points.size()), nodes.node(run.last).num_points);
    EXPECT_GE(run.age, 0);
    EXPECT_GE(run.num_children, run.num_hidden);
    shown_children += run.parent < 0 ? 0 : 1;
  }
  int32_t told = 0;
  int32_t hidden = 0;
  for (const TreeViewRun& run : tree.runs) {
    told += run.num_children - run.num_hidden;
    hidden += run.num_hidden;
  }
  EXPECT_EQ(told, shown_children);
  EXPECT_GE(tree.num_hidden, hidden);
}

TEST(TreeViewTest, AnEmptyCacheHasNoRuns) {
  CacheWorkload work(full_size());
  const TreeView tree = view(work);
  EXPECT_TRUE(tree.runs.empty());
  EXPECT_EQ(tree.num_pages, 0);
  EXPECT_EQ(tree.page_tokens, kPage);
}

TEST(TreeViewTest, APromptIsOneRunUntilAnotherPartsFromIt) {
  CacheWorkload work(full_size());
  const std::vector<int32_t> prompt = some_ids(4 * kPage);
  keep_prompt(work, prompt);
  TreeView tree = view(work);
  expect_sound(work, tree);
  EXPECT_EQ(tree.num_pages, 4);
  int32_t pages = 0;
  for (const TreeViewRun& run : tree.runs) {
    pages += run.num_pages;
    EXPECT_EQ(run.locks, 0);
  }
  EXPECT_EQ(pages, 4);

  keep_prompt(work, joined(first_of(prompt, 2 * kPage), some_ids(2 * kPage, 77)));
  tree = view(work);
  expect_sound(work, tree);
  EXPECT_EQ(tree.num_pages, 6);
  const auto fork = std::find_if(tree.runs.begin(), tree.runs.end(), [](const TreeViewRun& run) {
    return run.num_children == 2;
  });
  ASSERT_NE(fork, tree.runs.end());
  EXPECT_EQ(fork->begin_tokens + fork->num_pages * kPage, 2 * kPage);
  // From there on only what lies below is seen.
  const TreeView below = view(work, {.root = fork->last});
  expect_sound(work, below);
  EXPECT_EQ(below.runs.front().begin_tokens, 2 * kPage);
  EXPECT_EQ(below.num_pages, 6) << "of the whole tree";
}

TEST(TreeViewTest, LocksTombstonesAndPointsAreShown) {
  CacheWorkload work(full_size());
  const std::vector<int32_t> prompt = some_ids(3 * kPage + 40);
  keep_prompt(work, prompt);
  const TreeView before = view(work);
  EXPECT_GT(before.num_points, 0);
  for (const TreeViewRun& run : before.runs) {
    EXPECT_EQ(run.locks, 0);
  }
  const int a = work.admit(prompt);
  TreeView tree = view(work);
  expect_sound(work, tree);
  EXPECT_TRUE(std::any_of(
      tree.runs.begin(), tree.runs.end(), [](const TreeViewRun& run) { return run.locks > 0; }));
  work.run(a, 512, 1);
  work.abort(a);
  work.process_all();
  ASSERT_TRUE(work.cache().make_room(0, work.cache().budget().swa()));
  tree = view(work);
  expect_sound(work, tree);
  ASSERT_FALSE(tree.runs.empty());
  for (const TreeViewRun& run : tree.runs) {
    EXPECT_FALSE(run.is_live);
    EXPECT_EQ(run.locks, 0);
  }
}

TEST(TreeViewTest, TheBranchesUsedLastAreShown) {
  CacheWorkload work(full_size(64, 48));
  for (int32_t i = 0; i < 8; ++i) {
    keep_prompt(work, some_ids(kPage, 1000 * i));
  }
  const TreeView all = view(work);
  expect_sound(work, all);
  ASSERT_EQ(all.runs.size(), 8U);
  for (size_t i = 1; i < all.runs.size(); ++i) {
    EXPECT_LE(all.runs[i - 1].age, all.runs[i].age);
  }
  const TreeView some = view(work, {.root = RadixTree::kRoot, .max_children = 3});
  expect_sound(work, some);
  ASSERT_EQ(some.runs.size(), 3U);
  EXPECT_EQ(some.num_hidden, 5);
  EXPECT_EQ(some.runs[0].first, all.runs[0].first);
  EXPECT_EQ(view(work, {.root = RadixTree::kRoot, .max_runs = 2}).runs.size(), 2U);
}

TEST(TreeViewTest, APageThatIsNoNodeHasNoView) {
  CacheWorkload work(full_size());
  EXPECT_FALSE(view_tree(work.cache(), {.root = FullPage(5)}));
  EXPECT_FALSE(view_tree(work.cache(), {.root = FullPage(1 << 20)}));
  EXPECT_FALSE(view_tree(work.cache(), {.root = FullPage(-3)}));
}

TEST(PoolFillTest, CountsWhatAWorkloadUsesAndLeaves) {
  CacheWorkload work(full_size(64, 24));
  const auto fills = [&] { return pool_fills(work.cache()); };
  EXPECT_EQ(fills().pages.total, 64);
  EXPECT_EQ(fills().windows.total, 24);
  EXPECT_EQ(fills().points.total, 64);
  EXPECT_EQ(fills().open_groups.total, 96);
  for (const PoolFill& pool :
       {fills().pages, fills().windows, fills().points, fills().open_groups}) {
    EXPECT_EQ(pool.used, 0);
    EXPECT_EQ(pool.kept, 0);
  }
  const int a = work.admit(some_ids(3 * kPage));
  EXPECT_GE(fills().pages.used, 3);
  work.run(a, 512, 1);
  work.finish(a);
  work.submit({});
  work.process_all();
  const PoolFills after = fills();
  const PageBudget budget = work.cache().budget();
  EXPECT_EQ(after.pages.used, 0);
  EXPECT_EQ(after.pages.kept, budget.evictable_full);
  EXPECT_EQ(after.windows.kept, budget.evictable_swa);
  EXPECT_GT(after.points.kept, 0);
  EXPECT_EQ(after.points.used, 0);
  work.cache().flush();
  EXPECT_EQ(fills().pages.kept, 0);
  EXPECT_EQ(fills().points.kept, 0);
}

}  // namespace
}  // namespace baleen::cache
