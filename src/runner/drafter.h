#pragma once
// Guesses tokens with the model's draft layer (MTP). At the start of a step it makes the chains
// that the step verifies; at its end it runs the draft rows of the tokens that stood, which gives
// the first guess of the next chain. Owned by the executor, used on its thread.
//
//   Drafter drafter(model, options);
//   drafter.propose(rows, plan.sampling, accepted, slots);   // slot.chain of every verify row
//   ... the model runs chains, ChainSampler::accept decides ...
//   drafter.follow(rows, results, slots);

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/accepted_tokens.h"
#include "engine/batch_plan.h"
#include "model/forward.h"
#include "runner/chain_sampler.h"
#include "runner/draft_layer.h"
#include "runner/executor_slot.h"

namespace baleen::runner {

inline constexpr int32_t kMostDrafts = 8;  // drafts of one step

struct DraftOptions {
  int32_t max_drafts = 0;  // 0 .. kMostDrafts; 0: no drafts
  DraftSampling sampling = DraftSampling::kCoupled;
  /// For benchmarks alone: so many tokens stand per verify step on average, whatever the model
  /// says; texts are then wrong. 0: off; else 1 .. max_drafts + 1.
  double simulate_accept_length = 0.0;
  /// For tests: the draft for the token at `position`, given the layer's own. Empty: its own.
  std::function<int32_t(RequestSlot slot, int64_t position, int32_t own)> replace = {};

  /// Throws ConfigError naming the option.
  void validate() const;
};

class Drafter {
 public:
  /// `model` and `path` outlive the drafter; the path, where there is one that runs drafts, runs
  /// the rows. The model must have been opened with its MTP block and with max_rollback >=
  /// max_drafts; throws ConfigError if not.
  Drafter(model::Model& model, const std::unique_ptr<DecodePath>& path, DraftOptions options);

  const DraftOptions& options() const { return options_; }
  ChainSampler& sampler() { return sampler_; }
  DraftLayer& layer() { return layer_; }

  /// Fills the chains of the verify rows, which are where they lie: at most num_drafts, and no
  /// draft that the accept limit would cut. Leaves the sequences as they were.
  void propose(std::span<const engine::BatchRow> rows,
               std::span<const engine::SamplingRow> sampling,
               const engine::AcceptedTokens& accepted,
               std::span<ExecutorSlot> slots);
  /// Runs the draft rows of all tokens that came out of the step.
  void follow(std::span<const engine::BatchRow> rows,
              std::span<const engine::RowResult> results,
              std::span<ExecutorSlot> slots);
  /// Drafts of this row that stand by simulation; -1: the model decides.
  int32_t simulated_drafts(ExecutorSlot& slot) const;

 private:
  struct Guess {
    const engine::BatchRow* row = nullptr;
    const engine::SamplingRow* sampling = nullptr;
    ExecutorSlot* slot = nullptr;
    int32_t most = 0;
  };
  bool extend_chain(const Guess& guess, std::span<const float> logits);

  DraftOptions options_;
  ChainSampler sampler_;
  std::vector<Guess> guesses_;
  DraftLayer layer_;
  std::vector<DraftLayer::Row> inputs_;
};

}  // namespace baleen::runner
