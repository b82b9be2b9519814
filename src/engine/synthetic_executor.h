#pragma once
// An executor without weights and without state: a drawn token is a hash of seed, sample index,
// position and the token before it. It accepts any plan at once, so what an engine costs is what
// remains: for benchmarks of the scheduler and for tests that need long sequences. With drafts it
// gives the same tokens, several a step. Owned by an Engine, called on its step thread.
//
//   SyntheticExecutor::Options options;
//   options.capacity = {.num_slots = 256, .max_context = 1 << 20, ...};
//   Engine engine(config, std::make_unique<SyntheticExecutor>(options), tokenizer, metrics);
//
// Log-probs are synthetic: every token has ln 1/2.

#include <chrono>
#include <cstdint>

#include "engine/accepted_tokens.h"
#include "engine/executor.h"

namespace baleen::engine {

class SyntheticExecutor final : public Executor {
 public:
  struct Options {
    ExecutorCapacity capacity;
    int32_t first_id = 0;               // drawn ids lie in [first_id, vocab_size)
    int32_t draft_stands_percent = 60;  // of drafts whose predecessors stood, 0 to 100
    // A step lasts base + per token x tokens, slept away; 0: no time at all.
    std::chrono::nanoseconds step_base{0};
    std::chrono::nanoseconds step_per_token{0};
  };

  /// Throws ConfigError when the options are out of range.
  explicit SyntheticExecutor(const Options& options);

  ExecutorCapacity capacity() const override { return options_.capacity; }
  ExecutorInfo info() const override;
  Ticket submit(const BatchPlan& plan, const MaskProvider& masks) override;
  StepResult wait(Ticket ticket) override;

  /// What is drawn at a position behind the token `before`.
  int32_t drawn(const SamplingRow& sampling, int64_t position, int32_t before) const;

 private:
  void draw(const BatchRow& row, const SamplingRow& sampling, int32_t before, RowResult& result);
  bool draft_stands(const SamplingRow& sampling, int64_t position) const;

  Options options_;
  StepResult result_;
  AcceptedTokens accepted_;
  Ticket ticket_{0};
  bool in_flight_ = false;
};

}  // namespace baleen::engine
