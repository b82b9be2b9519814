#pragma once
// Carries batch plans out on a model: one model sequence per request slot, all rows of a step in
// one forward, then one draw per row. The sequences' rows lie in the pools of a shared cache, whose
// pages the engine hands out, or with `cache_bytes` 0 in memory of their own. Owned by an Engine,
// used on its step thread.
//
//   auto executor = std::make_unique<ModelExecutor>(model::Model::load(folder, {}), config,
//   "abacus"); Engine engine(engine_config, std::move(executor), tokenizer, metrics);

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cache/page_mover.h"
#include "cache/page_observer.h"
#include "cache/pool_memory.h"
#include "cache/sequence_pages.h"
#include "engine/accepted_tokens.h"
#include "engine/executor.h"
#include "model/forward.h"
#include "model/weight_intake.h"
#include "runner/choice_recorder.h"
#include "runner/decode_path.h"
#include "runner/drafter.h"
#include "runner/executor_slot.h"

namespace baleen::runner {

struct RunnerConfig {
  int32_t num_slots = 64;          // sequences with state
  int32_t max_step_tokens = 2048;  // tokens of one forward
  int64_t cache_bytes = 0;         // of the shared cache; 0: none
  /// The cache takes what the device has left beside everything else, but for `spare_bytes`;
  /// `cache_bytes` is then what the check at start gets. For a decode path that knows.
  bool fill_device = false;
  int64_t spare_bytes = int64_t{1} << 30;
  /// Of the host's, for records of choices: a filled device gets no more pages than they allow.
  int64_t record_bytes = int64_t{16} << 30;
  bool paint_pages = false;  // NaN in freed pages, for tests
  DraftOptions drafts = {};
  /// Runs the rows that need nothing of the model's body but its pages; empty: the body runs all
  /// rows. Wants a shared cache.
  DecodePathMaker decode_path = {};
  std::string weights_folder = {};  // where the model came from; empty: its weights stay

  /// Throws ConfigError naming the field.
  void validate() const;
};

class ModelExecutor final : public engine::Executor {
 public:
  /// Tokens are drawn from float32 logits; those of a model in double are rounded to it. With
  /// drafts the model has its MTP block and can take back as many tokens. Throws ConfigError when
  /// the config is out of range.
  ModelExecutor(model::Model model, const RunnerConfig& config, std::string model_name);
  ModelExecutor(const ModelExecutor&) = delete;
  ModelExecutor& operator=(const ModelExecutor&) = delete;

  engine::ExecutorCapacity capacity() const override;
  engine::ExecutorInfo info() const override;
  cache::PageObserver* page_observer() override { return painter_ ? &*painter_ : nullptr; }
  /// Runs the whole step; wait() only hands the result over.
  engine::Ticket submit(const engine::BatchPlan& plan, const engine::MaskProvider& masks) override;
  engine::StepResult wait(engine::Ticket ticket) override;

  std::shared_ptr<const cache::TokenRoutes> token_routes() const override { return token_routes_; }
  /// The new weights are read while the old ones are there, unless those were released. The folder
  /// must have the same config.json in all that the model knows; its tokenizer is not looked at.
  Status update_weights(const std::string& folder) override;
  /// In place, tensor by tensor: the contracts must be equal, every tensor must come once and
  /// whole, and afterwards the values must be those that the source has. Not beside a decode path,
  /// which packs weights of a folder.
  Status update_weights(weights::WeightSource& source) override;
  bool weights_lost() const override { return weights_lost_; }
  /// Of the values that it computes with now; no step may run.
  weights::TensorDigests weight_digests() const {
    return model::value_digests(model_.parameters());
  }
  Status release_memory(engine::MemoryParts parts) override;
  Status resume_memory(engine::MemoryParts parts) override;

  /// Bytes of all sequence states that exist now.
  int64_t state_bytes() const;
  /// Decode and verify rows that the decode path has run so far, and tokens of prompts.
  int64_t rows_of_decode_path() const { return rows_of_decode_path_; }
  int64_t prompt_tokens_of_path() const { return prompt_tokens_of_path_; }

 private:
  void make_pools(const cache::CacheSizes& sizes);
  void make_cache();
  void fill_device();
  int64_t bytes_of_check() const;
  cache::CacheSizes sizes_for(int64_t cache_bytes) const;
  cache::CacheSizes filled_sizes(int64_t cache_bytes) const;
  void find_token_routes();
  ExecutorSlot& slot_of(RequestSlot slot) { return slots_.at(static_cast<size_t>(slot.value())); }
  void reset(const engine::SlotReset& reset);
  void change_page(const cache::PageChange& change);
  void resume(const cache::ResumeCopy& copy);
  void capture(const cache::CaptureJob& job);
  void keep_streams(const cache::CaptureJob& job);
  std::unique_ptr<DecodePath> new_decode_path(const std::string& folder, const model::Model& model);
  void start_decode_path();
  bool takes_decode_path(const engine::BatchRow& row) const;
  void run_rows(const engine::BatchPlan& plan, const engine::MaskProvider& masks);
  void add_decode_row(const engine::BatchRow& row,
                      const engine::BatchPlan& plan,
                      const engine::MaskProvider& masks);
  /// Positions [begin, end) of a row.
  struct PromptPart {
    int32_t begin = 0;
    int32_t end = 0;
  };
  static bool wants_prompt_scores(const engine::BatchRow& row) {
    return row.input_logprobs_from >= 0;
  }
  void run_prompt_begin(size_t row, const engine::BatchPlan& plan);
  void run_prompt_part(size_t row, PromptPart part, const engine::BatchPlan& plan);
  /// The path has run tokens of the slot up to `end`; `streams` are theirs.
  void follow_path(ExecutorSlot& slot, int64_t end, const uint8_t* streams);
  void add_prompt_drafts(const engine::BatchRow& row, int32_t end);
  void run_prompt_drafts();
  void run_decode_path();
  void add_input(const engine::BatchRow& row, ExecutorSlot& slot);
  /// Logits behind a token of the plan's row `place`, counted from the first that has some; -1: of
  /// its last.
  std::span<const float> logits_of(size_t place, int64_t index) const;
  /// Takes what the path drew behind a row's tokens, up to the first draft that differs.
  void take_drawn(size_t row,
                  const engine::SamplingRow& sampling,
                  const DraftChain& chain,
                  engine::RowResult& result) const;
  void finish_row(const engine::BatchRow& row, engine::RowResult& result);
  /// The row's tokens: planned ones, and behind a verify row's the drafts of its chain.
  std::span<const int32_t> ids_of(const engine::BatchRow& row);
  /// Log-probs of the part's tokens; `logits`: behind a token of the part.
  void score_prompt(const engine::BatchRow& row,
                    const engine::BatchPlan& plan,
                    PromptPart part,
                    const std::function<std::span<const float>(int64_t index)>& logits,
                    engine::RowResult& result);
  void draw(const engine::BatchRow& row,
            const engine::SamplingRow& sampling,
            size_t place,
            const engine::MaskProvider& masks,
            engine::RowResult& result);

  model::Model model_;
  RunnerConfig config_;
  std::string model_name_;
  cache::CacheSizes cache_sizes_;
  cache::CacheSizes check_sizes_;  // of the pools that a filled device's check at start has
  bool filled_ = false;            // cache_sizes_ are what the device had left
  std::optional<cache::PoolMemory> pools_;
  std::optional<cache::PageMover> mover_;  // of pools_
  std::optional<cache::PaintOnFree> painter_;
  std::unique_ptr<DecodePath> decode_path_;  // null: none
  Drafter drafter_;                          // of model_
  std::optional<ChoiceRecorder> recorder_;   // with ForwardConfig::record_choices
  std::vector<ExecutorSlot> slots_;          // never moved: the sequences point at their pages
  int64_t rows_of_decode_path_ = 0;
  int64_t prompt_tokens_of_path_ = 0;
  // Of the step: where each row of the plan ran, in the forward of the body or in the decode path.
  struct RowPlace {
    bool by_path = false;
    size_t index = 0;  // among the inputs of the body, or the rows of the path
  };
  std::vector<RowPlace> places_;
  std::vector<DecodeRow> decode_rows_;
  std::vector<std::vector<uint32_t>> decode_masks_;  // of the step, by row of the path
  std::vector<bool> captured_;  // by capture of the plan: done between parts of a prompt
  // Draft rows of prompts that the path ran, and the tokens behind them.
  std::vector<DraftLayer::Row> prompt_drafts_;
  std::vector<std::vector<int32_t>> prompt_next_ids_;
  std::vector<model::RowInput> inputs_;
  std::vector<int32_t> verified_ids_;  // of the verify rows, one row after another
  model::ForwardOutput output_;
  std::vector<uint32_t> mask_bits_;
  engine::StepResult result_;
  engine::AcceptedTokens accepted_;
  std::vector<engine::BatchRow> rows_;  // of the plan, those that follow the step before in place
  std::vector<int32_t> ids_;            // of the plan, likewise
  std::shared_ptr<const cache::TokenRoutes> token_routes_;  // with answers that ended
  engine::Ticket ticket_{0};
  bool in_flight_ = false;
  bool path_waits_ = false;    // pools came back, the path over them when the weights do
  bool weights_lost_ = false;  // a source failed after its first tensor was written
};

}  // namespace baleen::runner
