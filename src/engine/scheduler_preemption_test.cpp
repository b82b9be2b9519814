// Who gives way when pages or slots are short, who does not, and who comes next: one test per rule
// of the scheduler, over the cache and a model of the memory.

#include <cstdint>
#include <map>
#include <vector>

#include <gtest/gtest.h>

#include "cache/cache_test_options.h"
#include "engine/cache_life_test.h"
#include "engine/scheduler.h"

namespace baleen::engine {
namespace {

constexpr int32_t kFarAbove = 20;  // more than the threshold of preemption

int32_t some_token(const std::vector<int32_t>& tokens) {
  return static_cast<int32_t>(2000 + tokens.size());
}

/// A life that notes who is preempted, in order.
class PreemptedLife {
 public:
  PreemptedLife(const cache::WorkloadOptions& options, SchedulerConfig config, bool overlap = false)
      : life(options, config, overlap) {}

  /// One turn in which sequences go on up to `most` tokens.
  void turn(size_t most = 1000) {
    std::map<SequenceId, int32_t> before;
    for (const auto& [id, tokens] : life.tokens()) {
      before[id] = !life.scheduler().state(id).is<Waiting>();
    }
    life.turn([&](const std::vector<int32_t>& tokens) {
      return tokens.size() >= most ? -1 : some_token(tokens);
    });
    spared.clear();
    for (const auto& [id, ran] : before) {
      if (ran != 0 && life.tokens().contains(id)) {
        (is_waiting(id) ? victims : spared).push_back(id);
      }
    }
  }
  bool is_waiting(SequenceId id) { return life.scheduler().state(id).is<Waiting>(); }
  void abort_all() {
    while (!life.tokens().empty()) {
      life.remove(life.tokens().begin()->first, Ending::kAborted);
    }
    while (life.is_busy()) {
      turn();
    }
  }

  CacheLife life;
  std::vector<SequenceId> victims;  // of all turns
  std::vector<SequenceId> spared;   // of the latest one: ran before it and were not preempted
};

TEST(SchedulerPreemptionTest, TheLastAdmittedOfTheLeastPriorityGivesItsPagesUp) {
  PreemptedLife run(cache::small_size(12, 12),
                    {.num_slots = 3, .max_step_tokens = 48, .max_prefill_chunk = 16});
  for (const int32_t id : {0, 1}) {
    run.life.enqueue(SequenceId(id), cache::some_ids(30, 100 * id));
  }
  run.turn();
  run.life.enqueue(SequenceId(2), cache::some_ids(30, 200), {.priority = 5});  // the last of all
  for (int turns = 0; run.victims.empty() && turns < 200; ++turns) {
    ASSERT_NO_FATAL_FAILURE(run.turn());
  }
  EXPECT_EQ(run.victims, std::vector{SequenceId(1)});
  run.abort_all();
}

TEST(SchedulerPreemptionTest, WhoGaveWayOftenEnoughIsSparedWhileThereIsAnother) {
  for (const int32_t most : {1, 2}) {
    PreemptedLife run(
        cache::small_size(16, 16),
        {.num_slots = 4, .max_step_tokens = 80, .max_prefill_chunk = 16, .max_preemptions = most});
    for (const int32_t id : {0, 1, 2, 3}) {
      run.life.enqueue(SequenceId(id), cache::some_ids(20, 100 * id));
    }
    std::map<SequenceId, int32_t> count;
    size_t num_seen = 0;
    int32_t num_protected = 0;  // choices that another rule would have made otherwise
    for (int turns = 0; run.life.is_busy() && turns < 2000; ++turns) {
      ASSERT_NO_FATAL_FAILURE(run.turn(180));
      for (; num_seen < run.victims.size(); ++num_seen) {
        const SequenceId victim = run.victims[num_seen];
        for (const SequenceId other : run.spared) {
          EXPECT_TRUE(count[victim] < most || count[other] >= most) << victim.value();
          num_protected += count[other] >= most ? 1 : 0;
        }
        ++count[victim];
      }
    }
    EXPECT_EQ(run.life.ended().size(), 4U);
    EXPECT_GT(num_protected, 0) << most;
  }
}

TEST(SchedulerPreemptionTest, NobodyIsAdmittedIntoThePagesThatDecodingNeedsNext) {
  // Two sequences are about to need their third page; two are free. A third sequence that took one
  // would make them preempt at once.
  PreemptedLife run(cache::small_size(6, 6),
                    {.num_slots = 3, .max_step_tokens = 64, .max_prefill_chunk = 32});
  for (const int32_t id : {0, 1}) {
    run.life.enqueue(SequenceId(id), cache::some_ids(30, 100 * id));
  }
  run.turn();
  run.life.enqueue(SequenceId(2), cache::some_ids(10, 200));
  for (int turns = 0; run.life.is_busy() && turns < 200; ++turns) {
    ASSERT_NO_FATAL_FAILURE(run.turn(46));
  }
  EXPECT_EQ(run.life.ended().size(), 3U);
  EXPECT_TRUE(run.victims.empty());
}

TEST(SchedulerPreemptionTest, OneUrgentSequenceTakesThePagesOfOneOther) {
  // What is preempted gives its pages back when its end is captured: until then nobody else goes.
  for (const bool overlap : {false, true}) {
    PreemptedLife run(cache::small_size(6, 6),
                      {.num_slots = 3, .max_step_tokens = 64, .max_prefill_chunk = 40},
                      overlap);
    for (const int32_t id : {0, 1}) {
      run.life.enqueue(SequenceId(id), cache::some_ids(40, 100 * id));
    }
    run.turn();
    run.turn();
    run.life.enqueue(SequenceId(2), cache::some_ids(40, 200), {.priority = kFarAbove});
    for (int turns = 0; run.is_waiting(SequenceId(2)) && turns < 20; ++turns) {
      ASSERT_NO_FATAL_FAILURE(run.turn());
      ASSERT_TRUE(run.life.tokens().contains(SequenceId(2)));
    }
    EXPECT_FALSE(run.is_waiting(SequenceId(2)));
    EXPECT_EQ(run.victims, std::vector{SequenceId(1)}) << overlap;
    run.abort_all();
  }
}

TEST(SchedulerPreemptionTest, DraftsDoNotKeepAPromptOutOfAStep) {
  PreemptedLife run(
      cache::small_size(60, 60),
      {.num_slots = 4, .max_step_tokens = 16, .max_prefill_chunk = 16, .max_prefills = 1});
  run.life.use_drafts(3);
  run.life.enqueue(SequenceId(1), cache::some_ids(10));
  run.turn();
  run.life.enqueue(SequenceId(2), cache::some_ids(150, 200));
  run.life.enqueue(SequenceId(4), cache::some_ids(150, 400));
  while (run.life.scheduler().state(SequenceId(2)).is<Waiting>()) {
    run.turn();
  }
  for (int turns = 0; run.is_waiting(SequenceId(4)) && turns < 8; ++turns) {
    ASSERT_NO_FATAL_FAILURE(run.turn());
  }
  EXPECT_TRUE(run.life.scheduler().state(SequenceId(2)).is<Prefilling>());
  EXPECT_TRUE(run.life.scheduler().state(SequenceId(4)).is<Prefilling>())
      << "tokens of drafts are there for prompts";
  run.abort_all();
}

TEST(SchedulerPreemptionTest, ACopyOfASequenceThatLeftBeforeItsFirstRowIsDropped) {
  // A conversation is admitted to go on, but its step is put off, because another wants a slot
  // while one runs; then it leaves, and the other gets its slot.
  PreemptedLife run(cache::small_size(40, 30),
                    {.num_slots = 2, .max_step_tokens = 64, .max_prefill_chunk = 64},
                    /*overlap=*/true);
  run.life.enqueue(SequenceId(0), cache::some_ids(10));
  while (run.life.is_busy()) {
    run.turn(14);
  }
  run.turn();
  const std::vector<int32_t> history = run.life.ended().at(0);
  run.life.enqueue(SequenceId(1), cache::some_ids(20, 300));
  run.turn();
  run.turn();
  run.life.enqueue(
      SequenceId(2), cache::joined(history, cache::some_ids(5, 9)), {.priority = kFarAbove});
  run.life.enqueue(
      SequenceId(3), cache::joined(history, cache::some_ids(30, 500)), {.priority = kFarAbove});
  ASSERT_NO_FATAL_FAILURE(run.turn());
  ASSERT_FALSE(run.is_waiting(SequenceId(2)));
  ASSERT_TRUE(run.is_waiting(SequenceId(3)));
  run.life.remove(SequenceId(2), Ending::kAborted);
  for (int turns = 0; run.life.is_busy() && turns < 200; ++turns) {
    ASSERT_NO_FATAL_FAILURE(run.turn(60));
  }
  EXPECT_EQ(run.life.ended().size(), 4U);
  run.life.cache().flush();
  EXPECT_EQ(run.life.cache().budget().free_full, 40) << "its ticket is complete";
}

TEST(SchedulerPreemptionTest, TheClientThatRanLessIsAdmittedNext) {
  PreemptedLife run(cache::small_size(),
                    {.num_slots = 1, .max_step_tokens = 32, .max_prefill_chunk = 16});
  const std::vector<int32_t> prompt_of_b = cache::some_ids(20, 700);
  run.life.enqueue(SequenceId(0), cache::some_ids(20, 100), {.client = "a"});
  run.life.enqueue(SequenceId(1), cache::some_ids(20, 400), {.client = "a"});
  run.life.enqueue(SequenceId(2), prompt_of_b, {.client = "b"});
  for (int turns = 0; run.life.is_busy() && turns < 200; ++turns) {
    ASSERT_NO_FATAL_FAILURE(run.turn(30));
  }
  ASSERT_EQ(run.life.ended().size(), 3U);
  EXPECT_EQ(cache::first_of(run.life.ended()[1], 20), prompt_of_b) << "tokens run are charged";
}

}  // namespace
}  // namespace baleen::engine
