#pragma once
// Scheduler, cache and a model of the memory, advanced as the engine does. With `overlap` each step
// is planned while the one before runs. Tests only; one thread.
//
//   CacheLife life(options, config, /*overlap=*/true);
//   life.enqueue(SequenceId(0), prompt);
//   while (life.is_busy()) life.turn([](const std::vector<int32_t>& tokens) { return next or -1;
//   });
//
// Steps run as late as they may: when their result is taken. A page that was given away too early
// has then been painted.

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "cache/cache_audit.h"
#include "cache/cache_test_options.h"
#include "cache/payload_model.h"
#include "engine/scheduler.h"

namespace baleen::engine {

class CacheLife : private SequenceKeys {
 public:
  CacheLife(const cache::WorkloadOptions& options, SchedulerConfig config, bool overlap = false)
      : memory_(options.cache.geometry,
                options.cache.sizes,
                options.cache.rings,
                options.cache.request_slots),
        cache_(options.cache, &memory_),
        scheduler_(config, *this, &cache_),
        overlap_(overlap) {}

  void enqueue(SequenceId id, std::vector<int32_t> prompt, QueuePlace place = {}) {
    scheduler_.enqueue(id, static_cast<int32_t>(prompt.size()), std::move(place));
    tokens_[id] = std::move(prompt);
  }
  void remove(SequenceId id, Ending ending) {
    scheduler_.remove(id, ending);
    gone_[id] = tokens_.at(id);
    ended_.push_back(std::move(tokens_.at(id)));
    tokens_.erase(id);
  }
  /// The draft layer runs for two of three sequences, which then verify up to `most` drafts a step.
  void use_drafts(int32_t most) { most_drafts_ = most; }
  bool is_busy() const { return !tokens_.empty() || !in_flight_.empty(); }

  /// One turn. `next_token` gives the next token of a sequence, -1 ends it.
  template <class NextToken>
  void turn(NextToken&& next_token) {
    const bool one_runs = !in_flight_.empty();
    if (overlap_ || !one_runs) {
      ASSERT_NO_FATAL_FAILURE(start_step());
    }
    if (!in_flight_.empty() && (one_runs || !overlap_)) {
      ASSERT_NO_FATAL_FAILURE(take_result(next_token));
    }
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
  int64_t num_ahead() const { return num_ahead_; }
  int64_t num_thrown_away() const { return num_thrown_away_; }
  int64_t num_drafts() const { return num_drafts_; }
  /// Rows planned ahead that lay further on than planned.
  int64_t num_moved() const { return num_moved_; }
  /// From now on rows of odd ids wait for the token before them.
  void hold_back_odd_ids() { holds_back_odd_ = true; }

 private:
  struct Step {
    std::vector<ScheduledRow> rows;
    BatchPlan plan;
    cache::CacheTicket ticket;
  };

  cache::SequenceKey key(SequenceId id) const override {
    cache::SequenceKey key;
    key.ids = tokens_.at(id);
    key.drafts = drafts(id);
    return key;
  }
  bool drafts(SequenceId id) const { return most_drafts_ > 0 && id.value() % 3 != 0; }
  int32_t num_drafts(const ScheduledRow& row, int32_t num_rows) const override {
    const auto length = static_cast<int32_t>(tokens_.at(row.sequence).size());
    return drafts(row.sequence) ? (7 * length + num_rows) % (most_drafts_ + 1) : 0;
  }
  bool can_run_ahead(SequenceId id, RequestSlot slot, int32_t most) const override {
    EXPECT_EQ(scheduler_.state(id).slot(), slot);
    int32_t in_flight = 0;
    for (const ScheduledRow& row : in_flight_.back().rows) {
      in_flight += row.sequence == id ? 1 + row.num_drafts : 0;
    }
    EXPECT_EQ(most, in_flight);
    return !holds_back_odd_ || id.value() % 2 == 0;
  }

  void start_step() {
    const bool one_runs = !in_flight_.empty();
    const int64_t preempted = scheduler_.num_preemptions();
    for (SequenceId id = scheduler_.prepare(one_runs); id.valid();
         id = scheduler_.prepare(one_runs)) {
      ASSERT_FALSE(one_runs) << "the step in flight may still free pages";
      ++num_stuck_;
      remove(id, Ending::kAborted);
    }
    ASSERT_TRUE(!one_runs || scheduler_.num_preemptions() == preempted);
    ASSERT_NO_FATAL_FAILURE(check());
    std::vector<ScheduledRow> rows;
    std::vector<ScheduledRow> again;
    scheduler_.plan(rows);
    scheduler_.plan(again);
    ASSERT_EQ(rows.size(), again.size());
    // Progress: where nothing can be planned, something runs.
    ASSERT_TRUE(!rows.empty() || scheduler_.flushes() || tokens_.empty() || one_runs);
    if (rows.empty() && !scheduler_.flushes()) {
      return;
    }
    Step& step = in_flight_.emplace_back();
    step.ticket = scheduler_.commit(rows);
    step.rows = rows;
    CacheWork work;
    scheduler_.take_cache_work(work);
    step.plan.end_captures = work.end_captures;
    step.plan.captures = work.captures;
    step.plan.copies = work.copies;
    step.plan.pages = work.pages;
    for (const ScheduledRow& row : rows) {
      if (row.follows >= 0) {
        ++num_ahead_;
        ASSERT_TRUE(one_runs);
        const auto& before = in_flight_.front().rows;
        ASSERT_LT(static_cast<size_t>(row.follows), before.size());
        ASSERT_EQ(before[static_cast<size_t>(row.follows)].sequence, row.sequence);
        ASSERT_EQ(static_cast<size_t>(row.first_position), tokens_.at(row.sequence).size());
        ASSERT_EQ(row.most_shift, before[static_cast<size_t>(row.follows)].num_drafts);
      }
    }
    ASSERT_NO_FATAL_FAILURE(check());
  }

  /// What a row will give, decided before it runs: its accepted drafts are right.
  struct Outcome {
    std::vector<int32_t> tokens;
    // What the executor drew: it does not know where the sequence ends. Behind that end any token
    // will do.
    std::vector<int32_t> drawn;
    bool ends = false;
  };
  template <class NextToken>
  std::vector<Outcome> draw(const Step& step, NextToken& next_token) const {
    std::vector<Outcome> outcomes;
    for (const ScheduledRow& row : step.rows) {
      Outcome& outcome = outcomes.emplace_back();
      if (!row.draws()) {
        continue;
      }
      const bool is_live = tokens_.contains(row.sequence);
      std::vector<int32_t> tokens = is_live ? tokens_.at(row.sequence) : gone_.at(row.sequence);
      const auto accepted = static_cast<int32_t>(5 * tokens.size()) % (row.num_drafts + 1);
      for (int32_t i = 0; i <= accepted; ++i) {
        const int32_t token = is_live && !outcome.ends ? next_token(tokens) : -1;
        if (token >= 0) {
          tokens.push_back(token);
          outcome.tokens.push_back(token);
        }
        outcome.ends = token < 0;
        outcome.drawn.push_back(token < 0 ? kAnyToken : token);
      }
    }
    return outcomes;
  }

  /// Rows of the step in flight lie behind all that the executor drew.
  void move_followers(const std::vector<Outcome>& outcomes) {
    if (in_flight_.empty()) {
      return;
    }
    for (ScheduledRow& later : in_flight_.front().rows) {
      if (later.follows >= 0) {
        const size_t drawn = outcomes[static_cast<size_t>(later.follows)].drawn.size();
        scheduler_.move(later, static_cast<int32_t>(drawn) - 1);
        num_moved_ += drawn > 1 ? 1 : 0;
      }
    }
  }

  /// The executor's part of a step. Rows of sequences that have ended are run all the same.
  void carry_out(const Step& step, const std::vector<Outcome>& outcomes) {
    cache::PayloadModel::Step out;
    out.captures = step.plan.end_captures;
    out.captures.insert(out.captures.end(), step.plan.captures.begin(), step.plan.captures.end());
    out.copies = step.plan.copies;
    out.pages = step.plan.pages;
    for (size_t i = 0; i < step.rows.size(); ++i) {
      const ScheduledRow& row = step.rows[i];
      if (row.begins) {
        out.resets.push_back(row.slot);
      }
      const auto found = tokens_.find(row.sequence);
      std::vector<int32_t> tokens = found != tokens_.end() ? found->second : gone_.at(row.sequence);
      const auto end = static_cast<size_t>(row.first_position + row.num_tokens);
      tokens = cache::joined(tokens, outcomes[i].drawn);
      const size_t stands =
          row.num_drafts == 0 ? end
                              : static_cast<size_t>(row.first_position) + outcomes[i].drawn.size();
      if (tokens.size() < end) {
        tokens.resize(end, kAnyToken);
      }
      cache::PayloadModel::Row& to = out.rows.emplace_back();
      to.slot = row.slot;
      to.begin = row.first_position;
      to.refusable = row.num_drafts;
      to.drafts = drafts(row.sequence);
      to.draft_begin = row.draft_begin;
      to.draft_hole = row.draft_hole;
      to.ids.assign(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(end));
      // What runs: behind what stands refused guesses, which draft rows are not made of.
      std::vector<int32_t> run = to.ids;
      for (size_t p = stands; p < end; ++p) {
        run[p] = 999'000 + static_cast<int32_t>(p);
      }
      to.tags = cache::PayloadModel::tags_of({}, run);
      to.ids.push_back(end < tokens.size() ? tokens[end] : -1);
    }
    memory_.submit(std::move(out));
    memory_.run_oldest();
    ASSERT_EQ(memory_.fault(), "");
    // What a resume point may still take from the rings is judged by this.
    for (const ScheduledRow& row : step.rows) {
      if (tokens_.contains(row.sequence)) {
        ASSERT_GE(cache_.sequences()[static_cast<size_t>(row.slot.value())].written_end,
                  row.first_position + row.num_tokens);
      }
    }
  }

  template <class NextToken>
  void take_result(NextToken&& next_token) {
    const Step step = std::move(in_flight_.front());
    in_flight_.pop_front();
    const std::vector<Outcome> outcomes = draw(step, next_token);
    ASSERT_NO_FATAL_FAILURE(carry_out(step, outcomes));
    scheduler_.finish_step(step.ticket, step.plan);
    move_followers(outcomes);
    for (size_t i = 0; i < step.rows.size(); ++i) {
      const ScheduledRow& row = step.rows[i];
      const Outcome& outcome = outcomes[i];
      const auto num_drawn = static_cast<int32_t>(outcome.tokens.size());
      num_run_ += row.num_tokens;
      num_drafts_ += row.num_drafts;
      if (!tokens_.contains(row.sequence)) {
        ++num_thrown_away_;
        extend(gone_.at(row.sequence), outcome.drawn);
        continue;
      }
      if (row.begins) {
        num_cached_ += row.first_position;
      }
      std::vector<int32_t>& tokens = tokens_.at(row.sequence);
      tokens.insert(tokens.end(), outcome.tokens.begin(), outcome.tokens.end());
      scheduler_.settle(
          row, row.kind == RowKind::kPrefill ? row.num_tokens : std::max(num_drawn, 1), tokens);
      if (outcome.ends) {
        remove(row.sequence, Ending::kFinished);
        extend(gone_.at(row.sequence), std::span(outcome.drawn).subspan(outcome.tokens.size()));
      } else if (num_drawn > 0) {
        scheduler_.accept(row, num_drawn);
      }
    }
    if (in_flight_.empty()) {
      gone_.clear();
    }
    ASSERT_NO_FATAL_FAILURE(check());
  }

  static void extend(std::vector<int32_t>& tokens, std::span<const int32_t> more) {
    tokens.insert(tokens.end(), more.begin(), more.end());
  }

  static constexpr int32_t kAnyToken = 5;
  cache::PayloadModel memory_;
  cache::SequenceCache cache_;
  Scheduler scheduler_;
  const bool overlap_;
  bool holds_back_odd_ = false;
  std::deque<Step> in_flight_;  // at most two
  std::map<SequenceId, std::vector<int32_t>> tokens_;
  std::map<SequenceId, std::vector<int32_t>> gone_;  // may have a row in flight
  std::vector<std::vector<int32_t>> ended_;
  int64_t num_run_ = 0;
  int64_t num_cached_ = 0;
  int64_t num_stuck_ = 0;
  int64_t num_ahead_ = 0;
  int64_t num_thrown_away_ = 0;
  int64_t num_drafts_ = 0;
  int64_t num_moved_ = 0;
  int32_t most_drafts_ = 0;
};

}  // namespace baleen::engine
