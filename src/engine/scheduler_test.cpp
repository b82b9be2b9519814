#include "engine/scheduler.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"

namespace baleen::engine {
namespace {

/// Sequences of which nothing need be known: no cache, and every row may run ahead.
class NoKeys final : public SequenceKeys {
 public:
  cache::SequenceKey key(SequenceId) const override { return {}; }
  bool can_run_ahead(SequenceId, RequestSlot, int32_t) const override { return true; }
  int32_t num_drafts(const ScheduledRow&, int32_t) const override { return 0; }
};
const NoKeys kNoKeys;

std::vector<ScheduledRow> run_step(Scheduler& scheduler) {
  std::vector<ScheduledRow> rows;
  EXPECT_FALSE(scheduler.prepare(false).valid());
  scheduler.plan(rows);
  scheduler.commit(rows);
  return rows;
}

TEST(SchedulerTest, CutsAPromptIntoChunksAndThenDecodes) {
  Scheduler scheduler(
      {.num_slots = 2, .max_step_tokens = 100, .max_prefill_chunk = 4}, kNoKeys, nullptr);
  const SequenceId id(0);
  scheduler.enqueue(id, 9);
  for (const auto& [first, count, complete] :
       std::vector<std::tuple<int, int, bool>>{{0, 4, false}, {4, 4, false}, {8, 1, true}}) {
    const auto rows = run_step(scheduler);
    ASSERT_EQ(rows.size(), 1U);
    EXPECT_EQ(rows[0].kind, RowKind::kPrefill);
    EXPECT_EQ(rows[0].first_position, first);
    EXPECT_EQ(rows[0].num_tokens, count);
    EXPECT_EQ(rows[0].begins, first == 0);
    EXPECT_EQ(rows[0].completes_prompt, complete);
  }
  scheduler.accept(id, 1);
  auto rows = run_step(scheduler);
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0].kind, RowKind::kDecode);
  EXPECT_EQ(rows[0].first_position, 9);
  scheduler.accept(id, 3);  // drafts were accepted
  rows = run_step(scheduler);
  EXPECT_EQ(rows[0].first_position, 12);
}

TEST(SchedulerTest, DecodesBesideALongPrompt) {
  Scheduler scheduler(
      {.num_slots = 2, .max_step_tokens = 5, .max_prefill_chunk = 512}, kNoKeys, nullptr);
  scheduler.enqueue(SequenceId(0), 1);
  run_step(scheduler);
  scheduler.accept(SequenceId(0), 1);
  scheduler.enqueue(SequenceId(1), 1000);
  for (int step = 0; step < 250; ++step) {
    const auto rows = run_step(scheduler);
    ASSERT_EQ(rows.size(), 2U);
    EXPECT_EQ(rows[0].sequence, SequenceId(0));
    EXPECT_EQ(rows[0].kind, RowKind::kDecode);
    EXPECT_EQ(rows[1].num_tokens, 4);
    scheduler.accept(SequenceId(0), 1);
  }
  EXPECT_TRUE(scheduler.state(SequenceId(1)).is<Decoding>());
}

TEST(SchedulerTest, DecodingHasARowInEveryStepWhateverComes) {
  // 32 sequences decode while prompts of 64 Ki tokens come without end.
  Scheduler scheduler(
      {.num_slots = 40, .max_step_tokens = 512, .max_prefill_chunk = 512}, kNoKeys, nullptr);
  for (int i = 0; i < 32; ++i) {
    scheduler.enqueue(SequenceId(i), 1);
  }
  for (const ScheduledRow& row : run_step(scheduler)) {
    scheduler.accept(row.sequence, 1);
  }
  int64_t next = 32;
  for (int step = 0; step < 2000; ++step) {
    while (scheduler.num_waiting() < 3) {
      scheduler.enqueue(SequenceId(next++), 65536);
    }
    int decoded = 0;
    int32_t total = 0;
    for (const ScheduledRow& row : run_step(scheduler)) {
      total += row.num_tokens;
      if (row.sequence.value() < 32) {
        ++decoded;
        scheduler.accept(row.sequence, 1);
      } else if (row.draws()) {
        scheduler.remove(row.sequence);
      }
    }
    ASSERT_EQ(decoded, 32);
    ASSERT_EQ(total, 512);
  }
}

TEST(SchedulerTest, ShortPromptsDoNotWaitBehindAGiantOne) {
  Scheduler scheduler(
      {.num_slots = 8, .max_step_tokens = 512, .max_prefill_chunk = 512}, kNoKeys, nullptr);
  scheduler.enqueue(SequenceId(0), 1'000'000);
  run_step(scheduler);
  for (int i = 1; i < 50; ++i) {
    scheduler.enqueue(SequenceId(i), 200);
    int steps = 0;
    for (bool done = false; !done; ++steps) {
      for (const ScheduledRow& row : run_step(scheduler)) {
        if (row.sequence == SequenceId(0)) {
          EXPECT_GE(row.num_tokens, 256) << "and the giant one moves";
        } else if (row.draws()) {
          done = true;
          scheduler.remove(row.sequence);
        }
      }
    }
    ASSERT_EQ(steps, 1);
  }
}

TEST(SchedulerTest, PromptsBesideDecodingKeepToTheLimit) {
  Scheduler scheduler(
      {.num_slots = 4, .max_step_tokens = 512, .max_prefill_chunk = 512}, kNoKeys, nullptr);
  scheduler.enqueue(SequenceId(0), 1);
  run_step(scheduler);
  scheduler.accept(SequenceId(0), 1);
  scheduler.enqueue(SequenceId(1), 1000);
  scheduler.enqueue(SequenceId(2), 1000);
  scheduler.limit_prefill_beside_decode(50);
  auto rows = run_step(scheduler);
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[1].num_tokens + rows[2].num_tokens, 50);
  scheduler.accept(SequenceId(0), 1);
  scheduler.limit_prefill_beside_decode(1);
  rows = run_step(scheduler);
  ASSERT_EQ(rows.size(), 3U) << "a token for each that is under way";
  scheduler.remove(SequenceId(0));
  rows = run_step(scheduler);
  EXPECT_EQ(rows[0].num_tokens + rows[1].num_tokens, 512) << "nobody decodes";
}

TEST(SchedulerTest, AnUrgentSequenceTakesTheSlotOfTheLeastImportant) {
  Scheduler scheduler(
      {.num_slots = 2, .max_step_tokens = 64, .max_prefill_chunk = 64}, kNoKeys, nullptr);
  scheduler.enqueue(SequenceId(0), 5, {.priority = 1});
  scheduler.enqueue(SequenceId(1), 5, {.priority = 0});
  for (const ScheduledRow& row : run_step(scheduler)) {
    scheduler.accept(row.sequence, 1);
  }
  scheduler.enqueue(SequenceId(2), 5, {.priority = 10});
  EXPECT_EQ(run_step(scheduler).size(), 2U) << "not urgent enough";
  scheduler.accept(SequenceId(0), 1);
  scheduler.accept(SequenceId(1), 1);
  scheduler.enqueue(SequenceId(3), 5, {.priority = 11});
  // While a step is in flight nobody is preempted; the next step waits for its result.
  EXPECT_FALSE(scheduler.prepare(true).valid());
  std::vector<ScheduledRow> rows;
  scheduler.plan(rows);
  EXPECT_TRUE(rows.empty());
  EXPECT_EQ(scheduler.num_preemptions(), 0);
  rows = run_step(scheduler);
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0].sequence, SequenceId(0));
  EXPECT_EQ(rows[1].sequence, SequenceId(3));
  EXPECT_TRUE(scheduler.state(SequenceId(1)).is<Waiting>());
  scheduler.check_invariants();
  scheduler.remove(SequenceId(3));
  scheduler.remove(SequenceId(2));
  rows = run_step(scheduler);
  EXPECT_EQ(rows.back().sequence, SequenceId(1));
  EXPECT_EQ(rows.back().num_tokens, 7) << "its prompt and what it had generated";
}

TEST(SchedulerTest, FirstComeFirstServed) {
  Scheduler scheduler(
      {.num_slots = 1, .max_step_tokens = 8, .max_prefill_chunk = 8}, kNoKeys, nullptr);
  for (int i = 0; i < 3; ++i) {
    scheduler.enqueue(SequenceId(i), 2);
  }
  for (int i = 0; i < 3; ++i) {
    const auto rows = run_step(scheduler);
    ASSERT_EQ(rows.size(), 1U);
    EXPECT_EQ(rows[0].sequence, SequenceId(i));
    EXPECT_EQ(scheduler.num_waiting(), 2 - i);
    scheduler.remove(SequenceId(i));
  }
}

TEST(SchedulerTest, RemovedWaitingSequenceNeverRuns) {
  Scheduler scheduler(
      {.num_slots = 1, .max_step_tokens = 8, .max_prefill_chunk = 8}, kNoKeys, nullptr);
  scheduler.enqueue(SequenceId(0), 2);
  scheduler.enqueue(SequenceId(1), 2);
  run_step(scheduler);
  scheduler.remove(SequenceId(1));
  scheduler.remove(SequenceId(0));
  EXPECT_TRUE(run_step(scheduler).empty());
  scheduler.check_invariants();
}

TEST(SchedulerTest, RefusesAConfigThatCouldStarve) {
  EXPECT_THROW(Scheduler({.num_slots = 0}, kNoKeys, nullptr), ConfigError);
  EXPECT_THROW(Scheduler({.num_slots = 8, .max_step_tokens = 7}, kNoKeys, nullptr), ConfigError);
  EXPECT_THROW(Scheduler({.max_prefill_chunk = 0}, kNoKeys, nullptr), ConfigError);
}

/// Stores everything about every sequence and checks each plan against the rules, without sharing
/// any of the scheduler's bookkeeping.
class NaiveModel {
 public:
  explicit NaiveModel(const SchedulerConfig& config) : config_(config) {}

  void enqueue(int64_t id, int32_t num_prompt) { all_[id] = {num_prompt}; }
  void remove(int64_t id) { all_.erase(id); }
  void accept(int64_t id, int32_t count) { all_.at(id).length += count; }

  void check_and_apply(const std::vector<ScheduledRow>& rows) {
    std::set<int64_t> seen;
    std::set<int32_t> slots;
    int32_t total = 0;
    bool saw_prefill = false;
    int64_t last_new = -1;
    for (const ScheduledRow& row : rows) {
      const int64_t id = row.sequence.value();
      ASSERT_TRUE(all_.contains(id)) << "row of a sequence that is gone";
      Sequence& s = all_.at(id);
      ASSERT_TRUE(seen.insert(id).second) << "two rows of one sequence";
      ASSERT_TRUE(slots.insert(row.slot.value()).second) << "two rows share a slot";
      ASSERT_GE(row.slot.value(), 0);
      ASSERT_LT(row.slot.value(), config_.num_slots);
      ASSERT_GT(row.num_tokens, 0);
      total += row.num_tokens;
      ASSERT_EQ(row.begins, s.slot < 0) << "begins exactly once";
      if (s.slot >= 0) {
        ASSERT_EQ(row.slot.value(), s.slot) << "a sequence keeps its slot";
      }
      if (row.kind == RowKind::kDecode) {
        ASSERT_FALSE(saw_prefill) << "decode rows come first";
        ASSERT_TRUE(s.decoding);
        ASSERT_EQ(row.first_position, s.length - 1);
        ASSERT_EQ(row.num_tokens, 1);
      } else {
        saw_prefill = true;
        ASSERT_FALSE(s.decoding);
        ASSERT_EQ(row.first_position, s.length);
        ASSERT_LE(row.num_tokens, config_.max_prefill_chunk);
        ASSERT_LE(row.first_position + row.num_tokens, s.num_prompt);
        ASSERT_EQ(row.completes_prompt, row.first_position + row.num_tokens == s.num_prompt);
      }
      if (row.begins) {
        ASSERT_GT(id, last_new) << "in order of arrival";
        last_new = id;
      }
    }
    ASSERT_LE(total, config_.max_step_tokens);
    // Who has a slot moves in every step; who has none waits only for a slot or for room.
    int32_t num_held = 0;
    for (const auto& [id, s] : all_) {
      num_held += s.slot >= 0 ? 1 : 0;
      if (s.slot >= 0) {
        ASSERT_TRUE(seen.contains(id)) << "starved: sequence " << id;
      }
    }
    for (const ScheduledRow& row : rows) {
      Sequence& s = all_.at(row.sequence.value());
      num_held += s.slot < 0 ? 1 : 0;
      s.slot = row.slot.value();
      if (row.kind == RowKind::kPrefill) {
        s.length += row.num_tokens;
        s.decoding = row.completes_prompt;
      }
    }
    ASSERT_LE(num_held, config_.num_slots);
    std::set<int32_t> held;
    bool someone_waits = false;
    for (const auto& [id, s] : all_) {
      ASSERT_TRUE(s.slot < 0 || held.insert(s.slot).second) << "slot shared";
      if (s.slot < 0) {
        someone_waits = true;
      } else {
        ASSERT_FALSE(someone_waits) << "sequence " << id << " overtook an older one";
      }
    }
    if (someone_waits) {
      ASSERT_TRUE(num_held == config_.num_slots || total == config_.max_step_tokens)
          << "a sequence waits although it could run";
    }
  }

  struct Sequence {
    int32_t num_prompt = 0;
    int32_t length = 0;  // tokens known to be in the sequence
    int32_t slot = -1;
    bool decoding = false;
  };
  const std::map<int64_t, Sequence>& all() const { return all_; }

 private:
  SchedulerConfig config_;
  std::map<int64_t, Sequence> all_;
};

void run_random_life(uint32_t seed, int num_steps) {
  std::mt19937 random(seed);
  const auto below = [&](int bound) {
    return static_cast<int>(random() % static_cast<uint32_t>(bound));
  };
  SchedulerConfig config;
  config.num_slots = 1 + below(8);
  config.max_step_tokens = config.num_slots + below(30);
  config.max_prefill_chunk = 1 + below(20);
  Scheduler scheduler(config, kNoKeys, nullptr);
  NaiveModel model(config);
  int64_t next = 0;
  std::vector<ScheduledRow> rows;
  std::vector<ScheduledRow> again;
  for (int step = 0; step < num_steps; ++step) {
    for (int i = below(4); i > 0; --i) {
      const int32_t num_prompt = 1 + below(60);
      scheduler.enqueue(SequenceId(next), num_prompt);
      model.enqueue(next++, num_prompt);
    }
    if (!model.all().empty() && below(3) == 0) {  // an abort in whatever state
      auto victim = model.all().begin();
      std::advance(victim, below(static_cast<int>(model.all().size())));
      scheduler.remove(SequenceId(victim->first));
      model.remove(victim->first);
    }
    scheduler.check_invariants();
    ASSERT_FALSE(scheduler.prepare(false).valid());
    scheduler.plan(rows);
    scheduler.plan(again);
    ASSERT_EQ(rows.size(), again.size()) << "planning changed something";
    ASSERT_EQ(rows.empty(), model.all().empty());
    ASSERT_NO_FATAL_FAILURE(model.check_and_apply(rows)) << "seed " << seed << " step " << step;
    scheduler.commit(rows);
    scheduler.check_invariants();
    for (const ScheduledRow& row : rows) {
      if (row.kind == RowKind::kPrefill && !row.completes_prompt) {
        continue;
      }
      const int64_t id = row.sequence.value();
      if (below(6) == 0) {  // ended by itself
        scheduler.remove(row.sequence);
        model.remove(id);
      } else {
        const int32_t count = 1 + below(3);
        scheduler.accept(row.sequence, count);
        model.accept(id, count);
      }
    }
    scheduler.check_invariants();
    int32_t num_running = 0;
    int64_t num_used = 0;
    for (const auto& [id, s] : model.all()) {
      num_running += s.slot >= 0 ? 1 : 0;
      num_used += s.slot >= 0 ? s.length : 0;
    }
    ASSERT_EQ(scheduler.num_running(), num_running);
    ASSERT_EQ(scheduler.num_waiting(), static_cast<int32_t>(model.all().size()) - num_running);
    ASSERT_EQ(scheduler.num_used_tokens(), num_used);
  }
  while (!model.all().empty()) {
    const int64_t id = model.all().begin()->first;
    scheduler.remove(SequenceId(id));
    model.remove(id);
  }
  scheduler.check_invariants();
  EXPECT_EQ(scheduler.num_running(), 0);
}

TEST(SchedulerTest, EqualsTheNaiveModelUnderRandomLife) {
  for (uint32_t seed = 0; seed < 100; ++seed) {
    ASSERT_NO_FATAL_FAILURE(run_random_life(seed, 150));
  }
}

/// Wants the same number of drafts for every sequence.
class WantedDrafts final : public SequenceKeys {
 public:
  explicit WantedDrafts(int32_t wanted, bool ahead = false) : wanted_(wanted), ahead_(ahead) {}
  cache::SequenceKey key(SequenceId) const override { return {}; }
  bool can_run_ahead(SequenceId, RequestSlot, int32_t most) const override {
    most_ = most;
    return ahead_;
  }
  int32_t num_drafts(const ScheduledRow&, int32_t) const override { return wanted_; }
  /// What the latest question of a row ahead was about.
  int32_t most() const { return most_; }

 private:
  int32_t wanted_;
  bool ahead_;
  mutable int32_t most_ = 0;
};

TEST(SchedulerTest, DraftsTakeWhatDecodingAndHalfOfWhatPromptsLeave) {
  const WantedDrafts drafts(3);
  Scheduler scheduler(
      {.num_slots = 4, .max_step_tokens = 12, .max_prefill_chunk = 512}, drafts, nullptr);
  for (int32_t i = 0; i < 3; ++i) {
    scheduler.enqueue(SequenceId(i), 2);
  }
  EXPECT_EQ(run_step(scheduler).size(), 3U);
  for (int32_t i = 0; i < 3; ++i) {
    scheduler.accept(SequenceId(i), 1);
  }
  // Alone: 3 tokens, and 9 drafts, as many as are wanted.
  std::vector<ScheduledRow> rows = run_step(scheduler);
  ASSERT_EQ(rows.size(), 3U);
  for (const ScheduledRow& row : rows) {
    EXPECT_EQ(row.kind, RowKind::kVerify);
    EXPECT_EQ(row.num_drafts, 3);
    EXPECT_EQ(row.num_tokens, 4);
    EXPECT_EQ(row.first_position, 2);
  }
  for (int32_t i = 0; i < 3; ++i) {
    scheduler.accept(SequenceId(i), i + 1);
  }
  // Beside a long prompt: of the 9 tokens left, drafts get 4, the prompt 5. It is admitted although
  // drafts could fill the step.
  scheduler.enqueue(SequenceId(3), 1000);
  rows = run_step(scheduler);
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_EQ(rows[0].num_drafts, 3);
  EXPECT_EQ(rows[1].num_drafts, 1);
  EXPECT_EQ(rows[1].first_position, 4);
  EXPECT_EQ(rows[2].kind, RowKind::kDecode);
  EXPECT_EQ(rows[3].num_tokens, 5);
}

TEST(SchedulerTest, ARowBehindDraftsMayLieFurtherOn) {
  const WantedDrafts drafts(3, /*ahead=*/true);
  Scheduler scheduler(
      {.num_slots = 1, .max_step_tokens = 12, .max_prefill_chunk = 512}, drafts, nullptr);
  scheduler.enqueue(SequenceId(0), 10);
  const auto plan_step = [&](bool in_flight) {
    std::vector<ScheduledRow> rows;
    EXPECT_FALSE(scheduler.prepare(in_flight).valid());
    scheduler.plan(rows);
    scheduler.commit(rows);
    EXPECT_EQ(rows.size(), 1U);
    return rows.at(0);
  };
  const ScheduledRow prompt = plan_step(false);
  ScheduledRow first = plan_step(true);
  EXPECT_EQ(drafts.most(), 1) << "a prompt gives one token";
  EXPECT_EQ(first.first_position, 10);
  EXPECT_EQ(first.num_drafts, 3);
  EXPECT_EQ(first.most_shift, 0);
  EXPECT_EQ(first.end(), 14);
  scheduler.accept(prompt, 1);
  ScheduledRow second = plan_step(true);
  EXPECT_EQ(drafts.most(), 4) << "a row with three drafts gives up to four";
  EXPECT_EQ(second.follows, 0);
  EXPECT_EQ(second.first_position, 11);
  EXPECT_EQ(second.most_shift, 3);
  EXPECT_EQ(second.end(), 18);
  scheduler.move(second, 2);
  EXPECT_EQ(second.first_position, 13);
  EXPECT_EQ(second.end(), 17);
  scheduler.accept(first, 3);
  const ScheduledRow third = plan_step(true);
  EXPECT_EQ(third.first_position, 14);
  EXPECT_EQ(third.most_shift, 3);
  scheduler.accept(second, 1);
  scheduler.accept(third, 4);
  const ScheduledRow fourth = plan_step(false);
  EXPECT_EQ(fourth.first_position, 18) << "nothing in flight: it lies where it is planned";
  EXPECT_EQ(fourth.most_shift, 0);
}

TEST(SchedulerTest, PromptsAloneDoNotOvertakeDecodingThatWaitsForItsTokens) {
  const WantedDrafts drafts(3);  // none of them runs ahead
  Scheduler scheduler(
      {.num_slots = 4, .max_step_tokens = 40, .max_prefill_chunk = 20}, drafts, nullptr);
  scheduler.enqueue(SequenceId(0), 2);
  scheduler.enqueue(SequenceId(1), 1000);
  std::vector<ScheduledRow> rows = run_step(scheduler);
  EXPECT_EQ(rows.size(), 2U);
  EXPECT_FALSE(scheduler.prepare(/*in_flight=*/true).valid());
  scheduler.plan(rows);
  EXPECT_TRUE(rows.empty()) << "the prompt has a row only beside the other one";
  scheduler.accept(SequenceId(0), 1);
  rows = run_step(scheduler);
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0].kind, RowKind::kVerify);
}

}  // namespace
}  // namespace baleen::engine
