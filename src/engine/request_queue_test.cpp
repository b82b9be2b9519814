#include "engine/request_queue.h"

#include <map>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace baleen::engine {
namespace {

SequenceId take(RequestQueue& queue) {
  const SequenceId id = queue.front();
  queue.erase(id);
  return id;
}

TEST(RequestQueueTest, OneClientIsServedInOrderOfArrival) {
  RequestQueue queue;
  EXPECT_FALSE(queue.front().valid());
  for (int i = 0; i < 4; ++i) {
    queue.push(SequenceId(i), {});
  }
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(take(queue), SequenceId(i));
    queue.charge(SequenceId(i), 1000);
  }
  EXPECT_TRUE(queue.empty());
}

TEST(RequestQueueTest, HigherPriorityGoesFirst) {
  RequestQueue queue;
  queue.push(SequenceId(0), {.priority = 0});
  queue.push(SequenceId(1), {.priority = 5});
  queue.push(SequenceId(2), {.priority = -1});
  queue.push(SequenceId(3), {.priority = 5});
  EXPECT_EQ(take(queue), SequenceId(1));
  EXPECT_EQ(take(queue), SequenceId(3));
  EXPECT_EQ(take(queue), SequenceId(0));
  EXPECT_EQ(take(queue), SequenceId(2));
}

TEST(RequestQueueTest, AClientWithManyRequestsDoesNotPushTheOthersAside) {
  RequestQueue queue;
  for (int i = 0; i < 100; ++i) {
    queue.push(SequenceId(i), {.client = "many"});
  }
  queue.push(SequenceId(100), {.client = "few"});
  queue.push(SequenceId(101), {.client = "few"});
  // Nobody was served: the order of arrival. Then the one that was served less.
  EXPECT_EQ(take(queue), SequenceId(0));
  queue.charge(SequenceId(0), 500);
  EXPECT_EQ(take(queue), SequenceId(100));
  queue.charge(SequenceId(100), 400);
  EXPECT_EQ(take(queue), SequenceId(101));
  queue.charge(SequenceId(101), 400);
  EXPECT_EQ(take(queue), SequenceId(1));
}

TEST(RequestQueueTest, TimeAwayEarnsNothing) {
  RequestQueue queue;
  queue.push(SequenceId(0), {.client = "steady"});
  take(queue);
  queue.charge(SequenceId(0), 10'000);
  queue.push(SequenceId(1), {.client = "late"});
  queue.push(SequenceId(2), {.client = "late"});
  queue.push(SequenceId(3), {.client = "steady"});
  EXPECT_EQ(take(queue), SequenceId(1)) << "level with the other, and first to come";
  queue.charge(SequenceId(1), 1);
  EXPECT_EQ(take(queue), SequenceId(3)) << "not 10,000 tokens in advance";
}

TEST(RequestQueueTest, ThePreemptedComeFirstWithinTheirPriority) {
  RequestQueue queue;
  queue.push(SequenceId(0), {});
  take(queue);
  queue.push(SequenceId(1), {});
  queue.push(SequenceId(2), {.priority = 1});
  queue.push_preempted(SequenceId(0));
  EXPECT_EQ(queue.oldest_new(), SequenceId(1));
  EXPECT_EQ(take(queue), SequenceId(2));
  EXPECT_EQ(take(queue), SequenceId(0));
  EXPECT_EQ(take(queue), SequenceId(1));
}

/// Against a list that is searched for the best place each time.
TEST(RequestQueueTest, EqualsANaiveList) {
  struct Known {
    int32_t priority;
    int client;
    bool waits;
    bool preempted;
  };
  std::mt19937 random(1);
  const auto below = [&](int bound) {
    return static_cast<int>(random() % static_cast<uint32_t>(bound));
  };
  RequestQueue queue;
  std::map<int64_t, Known> known;
  std::map<int, int64_t> served;
  int64_t next = 0;
  for (int step = 0; step < 20'000; ++step) {
    const int what = below(5);
    if (what == 0 && known.size() < 40) {
      const Known entry{below(3), below(4), true, false};
      if (!served.contains(entry.client)) {
        int64_t least = -1;
        for (const auto& [client, tokens] : served) {
          least = least < 0 ? tokens : std::min(least, tokens);
        }
        served[entry.client] = std::max<int64_t>(least, 0);
      }
      queue.push(SequenceId(next),
                 {.priority = entry.priority,
                  .client = std::string(1, static_cast<char>('a' + entry.client))});
      known[next++] = entry;
    } else if (!known.empty()) {
      auto at = known.begin();
      std::advance(at, below(static_cast<int>(known.size())));
      auto& [id, entry] = *at;
      if (what == 1 && entry.waits) {
        queue.erase(SequenceId(id));
        entry.waits = false;
      } else if (what == 2 && !entry.waits) {
        queue.push_preempted(SequenceId(id));
        entry.waits = true;
        entry.preempted = true;
      } else if (what == 3) {
        const int tokens = below(50);
        queue.charge(SequenceId(id), tokens);
        served.at(entry.client) += tokens;
      } else if (what == 4 && !entry.waits) {
        queue.forget(SequenceId(id));
        const int client = entry.client;
        known.erase(at);
        if (std::none_of(known.begin(), known.end(), [&](const auto& other) {
              return other.second.client == client;
            })) {
          served.erase(client);
        }
      }
    }
    int64_t best = -1;
    int64_t oldest_new = -1;
    int32_t num_waiting = 0;
    const auto rank = [&](int64_t id) {
      const Known& k = known.at(id);
      return std::tuple(-k.priority, !k.preempted, k.preempted ? 0 : served.at(k.client), id);
    };
    for (const auto& [id, entry] : known) {
      if (entry.waits) {
        ++num_waiting;
        best = best < 0 || rank(id) < rank(best) ? id : best;
        oldest_new = oldest_new < 0 && !entry.preempted ? id : oldest_new;
      }
    }
    ASSERT_EQ(queue.front(), SequenceId(best)) << step;
    ASSERT_EQ(queue.oldest_new(), SequenceId(oldest_new)) << step;
    ASSERT_EQ(queue.size(), num_waiting);
  }
}

}  // namespace
}  // namespace baleen::engine
