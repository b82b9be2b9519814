#pragma once
// Carries batch plans out on a model: one model sequence per request slot, all rows of a step in
// one forward, then one draw per row. The sequences' rows lie in the pools of a shared cache, whose
// pages the engine hands out, or with `cache_bytes` 0 in memory of their own. Owned by an Engine,
// used on its step thread.
//
//   auto executor = std::make_unique<ModelExecutor>(model::Model::load(folder, {}), config,
//   "abacus"); Engine engine(engine_config, std::move(executor), tokenizer, metrics);

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cache/page_mover.h"
#include "cache/page_observer.h"
#include "cache/pool_memory.h"
#include "cache/sequence_pages.h"
#include "engine/accepted_tokens.h"
#include "engine/executor.h"
#include "kernels/sampling/sampling.h"
#include "model/forward.h"

namespace baleen::runner {

struct RunnerConfig {
  int32_t num_slots = 64;          // sequences with state
  int32_t max_step_tokens = 2048;  // tokens of one forward
  int64_t cache_bytes = 0;         // of the shared cache; 0: none
  bool paint_pages = false;        // NaN in freed pages, for tests

  /// Throws ConfigError naming the field.
  void validate() const;
};

class ModelExecutor final : public engine::Executor {
 public:
  /// Tokens are drawn from float32 logits; those of a model in double are rounded to it. Throws
  /// ConfigError when the config is out of range.
  ModelExecutor(model::Model model, const RunnerConfig& config, std::string model_name);

  engine::ExecutorCapacity capacity() const override;
  engine::ExecutorInfo info() const override;
  cache::PageObserver* page_observer() override { return painter_ ? &*painter_ : nullptr; }
  /// Runs the whole step; wait() only hands the result over.
  engine::Ticket submit(const engine::BatchPlan& plan, const engine::MaskProvider& masks) override;
  engine::StepResult wait(engine::Ticket ticket) override;

  /// Bytes of all sequence states that exist now.
  int64_t state_bytes() const;

 private:
  struct Slot {
    cache::SequencePages pages;
    std::vector<model::Sequence> sequence;  // none before the first use, then one
    std::vector<int32_t> counts;            // by token id; empty: no penalties are asked for
    std::vector<float> last_logits;         // of the last prompt token run, for input log-probs
  };

  Slot& slot_of(RequestSlot slot) { return slots_.at(static_cast<size_t>(slot.value())); }
  void reset(const engine::SlotReset& reset);
  void change_page(const cache::PageChange& change);
  void capture(const cache::CaptureJob& job);
  void run_model(const engine::BatchPlan& plan);
  void score_prompt(const engine::BatchRow& row,
                    const engine::BatchPlan& plan,
                    const model::LogitsSpan& span,
                    engine::RowResult& result);
  void draw(const engine::BatchRow& row,
            const engine::SamplingRow& sampling,
            std::span<const float> logits,
            const engine::MaskProvider& masks,
            engine::RowResult& result);

  model::Model model_;
  RunnerConfig config_;
  std::string model_name_;
  cache::CacheSizes cache_sizes_;
  std::optional<cache::PoolMemory> pools_;
  std::optional<cache::PageMover> mover_;  // of pools_
  std::optional<cache::PaintOnFree> painter_;
  std::vector<Slot> slots_;  // never moved: the sequences point at their pages
  std::vector<model::RowInput> inputs_;
  model::ForwardOutput output_;
  kernels::SamplingWorkspace workspace_;
  std::vector<kernels::ScoredToken> top_;
  std::vector<uint32_t> mask_bits_;
  engine::StepResult result_;
  engine::AcceptedTokens accepted_;
  std::vector<int32_t> ids_;  // of the plan, those that follow the step before filled in
  engine::Ticket ticket_{0};
  bool in_flight_ = false;
};

}  // namespace baleen::runner
