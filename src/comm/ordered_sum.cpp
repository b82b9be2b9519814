#include "comm/ordered_sum.h"

#include <algorithm>
#include <array>
#include <bit>

#include "base/check.h"

namespace baleen::comm {
namespace {

constexpr int64_t kBlock = 1024;  // elements reduced together
constexpr int kMaxDepth = 10;     // of the tree: 1024 ranks

template <class T>
T combine(T a, T b, Reduction reduction) {
  if (reduction == Reduction::kSum) {
    return a + b;
  }
  return a != a || a > b ? a : b;  // a NaN on either side wins
}

template <class T>
class Tree {
 public:
  Tree(std::span<const void* const> sources, Reduction reduction)
      : sources_(sources), reduction_(reduction) {}

  /// Elements [begin, begin + count) over the sources [first, last), into `out`.
  void reduce(
      std::size_t first, std::size_t last, int64_t begin, int64_t count, T* out, int depth) {
    if (last - first == 1) {
      const T* source = static_cast<const T*>(sources_[first]) + begin;
      std::copy(source, source + count, out);
      return;
    }
    const std::size_t left = std::bit_ceil(last - first) / 2;
    std::array<T, kBlock>& right = scratch_[static_cast<std::size_t>(depth)];
    reduce(first, first + left, begin, count, out, depth + 1);
    reduce(first + left, last, begin, count, right.data(), depth + 1);
    for (int64_t i = 0; i < count; ++i) {
      out[i] = combine(out[i], right[static_cast<std::size_t>(i)], reduction_);
    }
  }

 private:
  std::span<const void* const> sources_;
  Reduction reduction_;
  std::array<std::array<T, kBlock>, kMaxDepth + 1> scratch_;
};

template <class T>
void reduce_blocks(std::span<const void* const> sources,
                   void* out,
                   int64_t count,
                   Reduction reduction) {
  Tree<T> tree(sources, reduction);
  std::array<T, kBlock> block;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t length = std::min(kBlock, count - begin);
    tree.reduce(0, sources.size(), begin, length, block.data(), 0);
    std::copy(block.begin(), block.begin() + length, static_cast<T*>(out) + begin);
  }
}

}  // namespace

void reduce_in_order(std::span<const void* const> sources,
                     void* out,
                     int64_t count,
                     Element element,
                     Reduction reduction) {
  BALEEN_CHECK(!sources.empty() && sources.size() <= (std::size_t{1} << kMaxDepth),
               "{} sources",
               sources.size());
  switch (element) {
    case Element::kFloat32:
      return reduce_blocks<float>(sources, out, count, reduction);
    case Element::kFloat64:
      return reduce_blocks<double>(sources, out, count, reduction);
    case Element::kInt64:
      return reduce_blocks<int64_t>(sources, out, count, reduction);
  }
}

}  // namespace baleen::comm
