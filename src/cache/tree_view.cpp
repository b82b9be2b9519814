#include "cache/tree_view.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace baleen::cache {
namespace {

class TreeViewer {
 public:
  TreeViewer(const SequenceCache& cache, const TreeViewOptions& options)
      : tree_(cache.radix().tree()),
        book_(cache.radix().book()),
        points_(cache.radix().points()),
        options_(options) {
    view_.root = options.root;
    view_.page_tokens = book_.page_tokens();
    view_.num_pages = tree_.num_nodes();
    for (int32_t slot = 0; slot < points_.num_slots(); ++slot) {
      view_.num_points +=
          points_.at(CheckpointSlot(slot)).state == ResumePoint::State::kVisible ? 1 : 0;
    }
  }

  TreeView take() && {
    add_children(-1, options_.root);
    // Breadth first: the list grows while it is read.
    for (size_t i = 0; i < view_.runs.size(); ++i) {
      const FullPage last = view_.runs[i].last;
      const int32_t hidden = add_children(static_cast<int32_t>(i), last);
      view_.runs[i].num_hidden = hidden;
    }
    return std::move(view_);
  }

 private:
  std::vector<FullPage> children_of(FullPage node) const {
    std::vector<FullPage> children;
    for (FullPage child = tree_.node(node).first_child; child.valid();
         child = tree_.node(child).next_sibling) {
      children.push_back(child);
    }
    return children;
  }

  /// The ones used last, while there is room. Returns how many were left out.
  int32_t add_children(int32_t parent, FullPage node) {
    std::vector<FullPage> children = children_of(node);
    const auto room = static_cast<size_t>(
        std::max(0,
                 std::min(options_.max_children,
                          options_.max_runs - static_cast<int32_t>(view_.runs.size()))));
    const size_t num_shown = std::min(room, children.size());
    std::partial_sort(children.begin(),
                      children.begin() + static_cast<std::ptrdiff_t>(num_shown),
                      children.end(),
                      [&](FullPage a, FullPage b) {
                        const int64_t stamp_a = tree_.node(a).stamp;
                        const int64_t stamp_b = tree_.node(b).stamp;
                        return stamp_a != stamp_b ? stamp_a > stamp_b : a < b;
                      });
    for (size_t i = 0; i < num_shown; ++i) {
      view_.runs.push_back(run_from(parent, children[i]));
    }
    const auto hidden = static_cast<int32_t>(children.size() - num_shown);
    view_.num_hidden += hidden;
    return hidden;
  }

  bool alike(FullPage a, FullPage b) const {
    const PageBook::FullState& x = book_.state(a);
    const PageBook::FullState& y = book_.state(b);
    return tree_.is_live(a) == tree_.is_live(b) && x.full_locks == y.full_locks &&
           x.swa_locks == y.swa_locks;
  }

  TreeViewRun run_from(int32_t parent, FullPage first) const {
    TreeViewRun run;
    run.parent = parent;
    run.first = first;
    run.last = first;
    run.num_pages = 1;
    run.begin_tokens = tree_.end_of(first) - view_.page_tokens;
    while (!points_.first_at(run.last).valid()) {
      const FullPage child = tree_.node(run.last).first_child;
      if (!child.valid() || tree_.node(child).next_sibling.valid() || !alike(run.last, child)) {
        break;
      }
      run.last = child;
      ++run.num_pages;
    }
    const PageBook::FullState& state = book_.state(run.last);
    run.is_live = tree_.is_live(run.last);
    run.locks = state.full_locks;
    run.window_locks = state.swa_locks;
    run.age = tree_.now() - tree_.node(run.last).stamp;
    run.hash = tree_.node(run.last).hash;
    run.num_children = static_cast<int32_t>(children_of(run.last).size());
    for (CheckpointSlot slot = points_.first_at(run.last); slot.valid();
         slot = points_.next_at(slot)) {
      const ResumePoint& point = points_.at(slot);
      run.points.push_back({point.position, point.kind, point.pins});
    }
    return run;
  }

  const RadixTree& tree_;
  const PageBook& book_;
  const PointTable& points_;
  const TreeViewOptions options_;
  TreeView view_;
};

}  // namespace

std::optional<TreeView> view_tree(const SequenceCache& cache, const TreeViewOptions& options) {
  const PageBook& book = cache.radix().book();
  const bool is_node = options.root == RadixTree::kRoot ||
                       (options.root.valid() && options.root.value() <= book.num_full() &&
                        book.state(options.root).node);
  if (!is_node) {
    return std::nullopt;
  }
  return TreeViewer(cache, options).take();
}

}  // namespace baleen::cache
