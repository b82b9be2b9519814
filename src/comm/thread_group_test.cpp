// Every collective on groups of 1 to 8 ranks, at sizes around its internal block, against what one
// thread computes; and that sums have the order of the tree.

#include "comm/thread_group.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "comm/mesh.h"
#include "comm/ordered_sum.h"
#include "comm/thread_world.h"

namespace baleen::comm {
namespace {

const std::vector<int64_t> kCounts = {0, 1, 7, 1025};  // a block is 1024
const std::vector<int> kSizes = {1, 2, 3, 5, 8};

double value(int rank, int64_t i) {
  return std::ldexp(1.0 + 0.001 * static_cast<double>(i % 97),
                    (rank * 7 + static_cast<int>(i)) % 41);
}

std::unique_ptr<Group> whole(World& world) {
  std::vector<int> members;
  for (int rank = 0; rank < world.size(); ++rank) {
    members.push_back(rank);
  }
  return world.group(members);
}

/// The tree by its definition: neighbours are added level by level.
template <class T>
T tree_sum(std::vector<T> values) {
  while (values.size() > 1) {
    std::vector<T> next;
    for (std::size_t i = 0; i < values.size(); i += 2) {
      next.push_back(i + 1 < values.size() ? values[i] + values[i + 1] : values[i]);
    }
    values = next;
  }
  return values[0];
}

/// Elements [first, first + count) of the sum over the ranks.
template <class T>
std::vector<T> expected_sums(int ranks, int64_t first, int64_t count) {
  std::vector<T> sums;
  for (int64_t i = first; i < first + count; ++i) {
    std::vector<T> values;
    for (int rank = 0; rank < ranks; ++rank) {
      values.push_back(static_cast<T>(value(rank, i)));
    }
    sums.push_back(tree_sum(values));
  }
  return sums;
}

template <class T>
std::vector<T> own_values(int rank, int64_t count) {
  std::vector<T> result;
  for (int64_t i = 0; i < count; ++i) {
    result.push_back(static_cast<T>(value(rank, i)));
  }
  return result;
}

TEST(ThreadGroupTest, AllReduceAddsInTheOrderOfTheTree) {
  for (const int size : kSizes) {
    for (const int64_t count : kCounts) {
      const std::vector<float> floats = expected_sums<float>(size, 0, count);
      const std::vector<double> doubles = expected_sums<double>(size, 0, count);
      run_ranks(size, {}, [&](World& world) {
        const auto group = whole(world);
        const std::vector<float> in = own_values<float>(group->rank(), count);
        std::vector<float> out(in.size());
        group->all_reduce(in.data(), out.data(), count, Element::kFloat32, Reduction::kSum);
        EXPECT_EQ(out, floats);
        std::vector<double> both = own_values<double>(group->rank(), count);
        group->all_reduce(both.data(), both.data(), count, Element::kFloat64, Reduction::kSum);
        EXPECT_EQ(both, doubles);
      });
    }
  }
}

TEST(ThreadGroupTest, SmallTermsSurviveInFloat32) {
  // 4096 terms of 2^-12 and a one, spread over two ranks: 2 in float32, 1 in bf16.
  run_ranks(2, {}, [](World& world) {
    const auto group = whole(world);
    float sum = group->rank() == 0 ? 1.0F : 0.0F;
    for (int i = 0; i < 2048; ++i) {
      sum += 0x1p-12F;
    }
    group->all_reduce(&sum, &sum, 1, Element::kFloat32, Reduction::kSum);
    EXPECT_NEAR(sum, 2.0F, 1e-6F);
  });
}

TEST(ThreadGroupTest, MaximumKeepsNaNFromAnyRank) {
  run_ranks(3, {}, [](World& world) {
    const auto group = whole(world);
    const double nan = std::numeric_limits<double>::quiet_NaN();
    std::vector<double> values(4, -1.0 - group->rank());
    values[static_cast<std::size_t>(group->rank())] = nan;
    group->all_reduce(values.data(), values.data(), 4, Element::kFloat64, Reduction::kMax);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(std::isnan(values[i]));
    }
    EXPECT_EQ(values[3], -1.0);
    int64_t integer = group->rank() == 1 ? 9 : -9;
    group->all_reduce(&integer, &integer, 1, Element::kInt64, Reduction::kMax);
    EXPECT_EQ(integer, 9);
  });
}

TEST(ThreadGroupTest, ReduceScatterGivesEveryRankItsBlock) {
  for (const int size : kSizes) {
    for (const int64_t count : kCounts) {
      run_ranks(size, {}, [&](World& world) {
        const auto group = whole(world);
        const std::vector<double> in = own_values<double>(group->rank(), count * size);
        std::vector<double> out(static_cast<std::size_t>(count));
        group->reduce_scatter(in.data(), out.data(), count, Element::kFloat64);
        EXPECT_EQ(out, expected_sums<double>(size, group->rank() * count, count));
      });
    }
  }
}

TEST(ThreadGroupTest, AllGatherPutsRanksInOrder) {
  for (const int size : kSizes) {
    run_ranks(size, {}, [&](World& world) {
      const auto group = whole(world);
      const int64_t own = 100 + group->rank();
      std::vector<int64_t> all(static_cast<std::size_t>(size));
      group->all_gather(&own, all.data(), sizeof(own));
      for (int rank = 0; rank < size; ++rank) {
        EXPECT_EQ(all[static_cast<std::size_t>(rank)], 100 + rank);
      }
    });
  }
}

TEST(ThreadGroupTest, AllToAllMovesPartsOfDifferentSizes) {
  for (const int size : kSizes) {
    run_ranks(size, {}, [&](World& world) {
      const auto group = whole(world);
      // Rank a sends (a + 2b) mod 5 numbers to rank b, each 1000a + b; often none.
      const auto count = [](int from, int to) { return (from + 2 * to) % 5; };
      std::vector<int64_t> in, in_bytes, expected, out_bytes;
      for (int peer = 0; peer < size; ++peer) {
        in.insert(in.end(), count(group->rank(), peer), 1000 * group->rank() + peer);
        in_bytes.push_back(count(group->rank(), peer) * 8);
        expected.insert(expected.end(), count(peer, group->rank()), 1000 * peer + group->rank());
        out_bytes.push_back(count(peer, group->rank()) * 8);
      }
      std::vector<int64_t> out(expected.size());
      group->all_to_all(in.data(), in_bytes, out.data(), out_bytes);
      EXPECT_EQ(out, expected);
    });
  }
}

TEST(ThreadGroupTest, BroadcastComesFromTheRoot) {
  for (const int size : kSizes) {
    run_ranks(size, {}, [&](World& world) {
      const auto group = whole(world);
      for (int root = 0; root < size; ++root) {
        int64_t data = group->rank() == root ? 40 + root : -1;
        group->broadcast(&data, sizeof(data), root);
        EXPECT_EQ(data, 40 + root);
      }
    });
  }
}

TEST(ThreadGroupTest, MessagesArriveInOrderAndDoNotWaitForTheirReader) {
  run_ranks(3, {}, [](World& world) {
    const auto group = whole(world);
    const int next = (group->rank() + 1) % 3;
    const int previous = (group->rank() + 2) % 3;
    for (int64_t i = 0; i < 20; ++i) {  // everybody sends before anybody receives
      const int64_t message = 100 * group->rank() + i;
      group->send(&message, sizeof(message), next);
    }
    for (int64_t i = 0; i < 20; ++i) {
      int64_t message = 0;
      group->receive(&message, sizeof(message), previous);
      EXPECT_EQ(message, 100 * previous + i);
    }
  });
}

TEST(ThreadGroupTest, GroupsOfDifferentAxesWorkSideBySide) {
  const MeshShape shape{.dp = 2, .cp = 2, .tp = 2};
  run_ranks(shape.world_size(), {}, [&](World& world) {
    Mesh mesh(world, shape);
    for (int round = 0; round < 20; ++round) {
      int64_t sum = mesh.rank();
      for (const Axis axis : {Axis::kTp, Axis::kCp, Axis::kDp}) {
        mesh.group(axis).all_reduce(&sum, &sum, 1, Element::kInt64, Reduction::kSum);
      }
      EXPECT_EQ(sum, 28);
    }
  });
}

TEST(ThreadGroupTest, CountsBytesThatARankContributes) {
  run_ranks(4, {}, [](World& world) {
    const auto group = whole(world);
    std::vector<int64_t> in(8), out(8);
    group->all_gather(in.data(), out.data(), 16);
    EXPECT_EQ(group->bytes_contributed(), 16);
    std::vector<int64_t> sizes(4, 8);
    group->all_to_all(in.data(), sizes, out.data(), sizes);
    EXPECT_EQ(group->bytes_contributed(), 16 + 24);
  });
}

}  // namespace
}  // namespace baleen::comm
