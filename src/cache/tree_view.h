#pragma once
// The prefix tree as someone who looks at it wants it: runs of pages instead of pages, the branches
// that were used last, and at each run whether it has its window rows, who uses it and where
// sequences can go on. Plain data; ids of the pages name the runs. The engine's thread takes it.
//
//   std::optional<TreeView> view = view_tree(cache, {.root = RadixTree::kRoot});

#include <cstdint>
#include <optional>
#include <vector>

#include "cache/sequence_cache.h"

namespace baleen::cache {

struct TreeViewOptions {
  FullPage root = RadixTree::kRoot;  // what lies below this node
  int32_t max_children = 24;         // of one node; those used last
  int32_t max_runs = 400;            // in all, the upper ones first
};

struct TreeViewPoint {
  int32_t position = 0;  // tokens before it
  PointKind kind = PointKind::kPrompt;
  int32_t pins = 0;  // copies in flight that read it
};

/// Nodes one below the other that differ in nothing but their place: each but the last has a single
/// child and no resume points.
struct TreeViewRun {
  int32_t parent = -1;  // index of the run above; -1: the root of the view
  FullPage first;
  FullPage last;
  int32_t num_pages = 0;
  int32_t begin_tokens = 0;  // tokens before the first page
  bool is_live = false;      // false: a tombstone
  int32_t locks = 0;         // sequences and copies whose path contains it
  int32_t window_locks = 0;  // those that still read its window rows
  int64_t age = 0;           // uses of the cache since its last one
  uint64_t hash = 0;         // of the last block and all before it
  int32_t num_children = 0;  // branches behind it
  int32_t num_hidden = 0;    // of them, those that the view leaves out
  std::vector<TreeViewPoint> points;
};

struct TreeView {
  FullPage root;
  int32_t page_tokens = 0;
  int32_t num_pages = 0;          // of the whole tree
  int32_t num_points = 0;         // visible ones of the whole tree
  int32_t num_hidden = 0;         // branches left out
  std::vector<TreeViewRun> runs;  // parents before their children
};

/// None: the root is no node any more.
std::optional<TreeView> view_tree(const SequenceCache& cache, const TreeViewOptions& options);

}  // namespace baleen::cache
