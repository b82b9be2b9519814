// The scheduler over a paged cache: random lives of sequences that share prefixes, on pools too
// small for all of them. A model of the memory checks that every row a pass reads is that of a cold
// run.

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/test_share.h"
#include "cache/cache_audit.h"
#include "cache/cache_test_options.h"
#include "cache/payload_model.h"
#include "engine/scheduler.h"

namespace baleen::engine {
namespace {

using cache::PayloadModel;

/// Scheduler, cache and memory, advanced like the engine does.
class CacheLife : private SequenceKeys {
 public:
  CacheLife(const cache::WorkloadOptions& options, SchedulerConfig config)
      : memory_(options.cache.geometry,
                options.cache.sizes,
                options.cache.rings,
                options.cache.request_slots),
        cache_(options.cache, &memory_),
        scheduler_(config, cache_, *this) {}

  void enqueue(SequenceId id, std::vector<int32_t> prompt) {
    scheduler_.enqueue(id, static_cast<int32_t>(prompt.size()));
    tokens_[id] = std::move(prompt);
  }
  void remove(SequenceId id, Ending ending) {
    scheduler_.remove(id, ending);
    ended_.push_back(std::move(tokens_.at(id)));
    tokens_.erase(id);
  }

  /// One step. `next_token` gives the next token of a sequence, -1 ends it.
  template <class NextToken>
  void step(NextToken&& next_token) {
    for (SequenceId id = scheduler_.prepare(); id.valid(); id = scheduler_.prepare()) {
      ++num_stuck_;
      remove(id, Ending::kAborted);
    }
    ASSERT_NO_FATAL_FAILURE(check());
    std::vector<ScheduledRow> rows;
    std::vector<ScheduledRow> again;
    scheduler_.plan(rows);
    scheduler_.plan(again);
    ASSERT_EQ(rows.size(), again.size());
    num_idle_ += rows.empty() ? 1 : 0;
    ASSERT_TRUE(!rows.empty() || scheduler_.flushes() || tokens_.empty());
    scheduler_.commit(rows);
    CacheWork work;
    scheduler_.take_cache_work(work);
    BatchPlan plan;
    plan.end_captures = work.end_captures;
    plan.captures = work.captures;
    plan.copies = work.copies;
    submit(rows, work);
    memory_.run_oldest();
    ASSERT_EQ(memory_.fault(), "");
    scheduler_.finish_step(plan);
    for (const ScheduledRow& row : rows) {
      num_run_ += row.num_tokens;
      if (row.begins) {
        num_cached_ += row.first_position;
      }
      std::vector<int32_t>& tokens = tokens_.at(row.sequence);
      const bool draws = row.kind == RowKind::kDecode || row.completes_prompt;
      const int32_t token = draws ? next_token(tokens) : -1;
      if (token >= 0) {
        tokens.push_back(token);
      }
      scheduler_.settle(row);
      if (draws && token < 0) {
        remove(row.sequence, Ending::kFinished);
      } else if (draws) {
        scheduler_.accept(row.sequence, 1);
      }
    }
    ASSERT_NO_FATAL_FAILURE(check());
  }

  void check() {
    scheduler_.check_invariants();
    ASSERT_EQ(cache::audit(cache_), "");
  }

  Scheduler& scheduler() { return scheduler_; }
  cache::SequenceCache& cache() { return cache_; }
  const std::map<SequenceId, std::vector<int32_t>>& tokens() const { return tokens_; }
  const std::vector<std::vector<int32_t>>& ended() const { return ended_; }
  int64_t num_run() const { return num_run_; }
  int64_t num_cached() const { return num_cached_; }
  int64_t num_stuck() const { return num_stuck_; }
  int64_t num_idle() const { return num_idle_; }

 private:
  cache::SequenceKey key(SequenceId id) const override {
    cache::SequenceKey key;
    key.ids = tokens_.at(id);
    return key;
  }

  void submit(const std::vector<ScheduledRow>& rows, const CacheWork& work) {
    PayloadModel::Step step;
    step.captures = work.end_captures;
    step.captures.insert(step.captures.end(), work.captures.begin(), work.captures.end());
    step.copies = work.copies;
    step.pages = work.pages;
    for (const ScheduledRow& row : rows) {
      if (row.begins) {
        step.resets.push_back(row.slot);
      }
      PayloadModel::Row& out = step.rows.emplace_back();
      const std::vector<int32_t>& tokens = tokens_.at(row.sequence);
      const auto end = static_cast<size_t>(row.first_position + row.num_tokens);
      out.slot = row.slot;
      out.begin = row.first_position;
      out.ids.assign(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(end));
      out.tags = PayloadModel::tags_of({}, out.ids);
      out.ids.push_back(end < tokens.size() ? tokens[end] : -1);
    }
    memory_.submit(std::move(step));
  }

  PayloadModel memory_;
  cache::SequenceCache cache_;
  Scheduler scheduler_;
  std::map<SequenceId, std::vector<int32_t>> tokens_;
  std::vector<std::vector<int32_t>> ended_;
  int64_t num_run_ = 0;
  int64_t num_cached_ = 0;
  int64_t num_stuck_ = 0;
  int64_t num_idle_ = 0;
};

TEST(SchedulerCacheTest, AFinishedConversationContinuesWhereItEnded) {
  CacheLife life(cache::small_size(),
                 {.num_slots = 4, .max_step_tokens = 32, .max_prefill_chunk = 16});
  life.enqueue(SequenceId(0), cache::some_ids(40));
  int generated = 0;
  while (!life.tokens().empty()) {
    life.step(
        [&](const std::vector<int32_t>&) { return ++generated > 10 ? -1 : 2000 + generated; });
  }
  std::vector<int32_t> next_turn = cache::joined(life.ended()[0], cache::some_ids(20, 5));
  life.enqueue(SequenceId(1), next_turn);
  const int64_t run_before = life.num_run();
  while (!life.tokens().empty()) {
    life.step([](const std::vector<int32_t>&) { return -1; });
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
  while (!life.tokens().empty()) {
    life.step([&](const std::vector<int32_t>&) { return ++generated > 4 ? -1 : 2000 + generated; });
  }
  ASSERT_TRUE(life.scheduler().has_end_captures());
  life.step([](const std::vector<int32_t>&) { return -1; });
  EXPECT_FALSE(life.scheduler().has_end_captures());
  life.enqueue(SequenceId(1), cache::joined(life.ended()[0], cache::some_ids(5, 9)));
  life.step([](const std::vector<int32_t>&) { return -1; });
  // 14 tokens end inside the first page; resume points at turn ends lie on multiples of 4.
  EXPECT_EQ(life.num_cached(), 12);
}

TEST(SchedulerCacheTest, PreemptedSequencesComeBackAndEnd) {
  // Room for about two sequences of the three: one is preempted, none starves.
  CacheLife life(cache::small_size(12, 10),
                 {.num_slots = 4, .max_step_tokens = 32, .max_prefill_chunk = 16});
  for (int32_t i = 0; i < 3; ++i) {
    life.enqueue(SequenceId(i), cache::some_ids(30, 100 * i));
  }
  int steps = 0;
  while (!life.tokens().empty() && ++steps < 2000) {
    life.step([](const std::vector<int32_t>& tokens) {
      return tokens.size() > 100 ? -1 : static_cast<int32_t>(3000 + tokens.size());
    });
    ASSERT_FALSE(testing::Test::HasFatalFailure());
  }
  EXPECT_EQ(life.ended().size(), 3U);
  EXPECT_EQ(life.num_stuck(), 0);
  EXPECT_GT(life.scheduler().num_preemptions(), 0);
}

TEST(SchedulerCacheTest, ASequenceLargerThanTheCacheIsNamed) {
  CacheLife life(cache::small_size(6, 6),
                 {.num_slots = 4, .max_step_tokens = 32, .max_prefill_chunk = 16});
  life.enqueue(SequenceId(0), cache::some_ids(60));
  int steps = 0;
  while (!life.tokens().empty() && ++steps < 2000) {
    life.step(
        [](const std::vector<int32_t>& tokens) { return static_cast<int32_t>(tokens.size()); });
    ASSERT_FALSE(testing::Test::HasFatalFailure());
  }
  EXPECT_EQ(life.num_stuck(), 1);
}

void run_random_life(uint32_t seed, int num_steps, int64_t& cached, int64_t& preempted) {
  std::mt19937 random(seed);
  const auto below = [&](size_t bound) {
    return static_cast<int32_t>(random() % static_cast<uint32_t>(bound));
  };
  cache::WorkloadOptions options = cache::small_size(9 + below(8), 8 + below(6));
  options.cache.request_slots = 1 + below(6);
  const int32_t slots = options.cache.request_slots;
  CacheLife life(options,
                 {.num_slots = slots,
                  .max_step_tokens = slots + below(40),
                  .max_prefill_chunk = 1 + below(40)});
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
    life.step([&](const std::vector<int32_t>& tokens) {
      return below(12) == 0 || tokens.size() > 120 ? -1 : below(997);
    });
    ASSERT_FALSE(testing::Test::HasFatalFailure()) << "seed " << seed << " step " << step;
  }
  int steps = 0;
  while (!life.tokens().empty() && ++steps < 5000) {
    life.step([&](const std::vector<int32_t>&) { return below(4) == 0 ? -1 : below(997); });
    ASSERT_FALSE(testing::Test::HasFatalFailure()) << "seed " << seed << " end";
  }
  ASSERT_TRUE(life.tokens().empty()) << "seed " << seed << ": " << life.tokens().size() << " left";
  cached += life.num_cached();
  preempted += life.scheduler().num_preemptions();
}

TEST(SchedulerCacheTest, RandomLivesReadWhatAColdRunWouldHave) {
  int64_t cached = 0;
  int64_t preempted = 0;
  for (uint32_t seed = 0; seed < 300 / kTestShare; ++seed) {
    ASSERT_NO_FATAL_FAILURE(run_random_life(seed, 150, cached, preempted));
  }
  EXPECT_GT(cached, 20'000 / kTestShare);
  EXPECT_GT(preempted, 100 / kTestShare);
}

}  // namespace
}  // namespace baleen::engine
