#pragma once
// How a chain of drafts is drawn and which of it stands. Knows logits, parameters and counts: no
// model, no slots. Owned by the executor, used on its thread.
//
// Coupled (the default): draft and target are drawn with the same noise of (seed, sample index,
// position, token), so the text is that of the plain run and a draft stands where it equals the
// token that the target draws. Rejection: draft x of law q stands with probability
// min(1, p(x) / q(x)); else the token is drawn from max(p - q, 0). The law of the text is the plain
// run's, the text of a seed is not, and depends on how many drafts were made. Greedy rows are the
// same in both.
//
//   ChainSampler sampler(DraftSampling::kCoupled);
//   sampler.propose(row, position, draft_logits, counts, chain);   // for each draft
//   sampler.accept(verify, chain, counts, result);                 // after the target has run
//
// Of the parameters every one acts at its position of the chain: penalties count the drafts before
// it, bias, forbidden ids and limits hold at each.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/batch_plan.h"
#include "kernels/sampling/sampling.h"

namespace baleen::runner {

enum class DraftSampling : uint8_t { kCoupled, kRejection };

/// The guesses for one row. The laws are those the guesses were drawn from, kRejection only.
struct DraftChain {
  std::vector<int32_t> ids;
  std::vector<std::vector<kernels::TokenProbability>> laws;

  void clear() {
    ids.clear();
    laws.clear();
  }
};

/// The target's answer to a row: logits behind its last known token and behind each draft.
struct ChainLogits {
  std::function<std::span<const float>(int32_t index)> row;  // index 0 .. number of drafts
  int64_t first_position = 0;                                // of the first drawn token
  std::span<const uint32_t> allowed_bits;                    // of a row without drafts
  int32_t simulated_drafts = -1;  // so many drafts stand, whatever the target says; -1: real
};

bool has_penalties(const engine::SamplingRow& sampling);

/// Adds a drawn token to the row's result, with what is wanted of its log-probs.
void add_token(const kernels::SampledToken& token,
               std::span<const kernels::ScoredToken> top,
               const engine::SamplingRow& sampling,
               engine::RowResult& result);

class ChainSampler {
 public:
  explicit ChainSampler(DraftSampling sampling) : sampling_(sampling) {}

  /// Draws the next draft of `chain`, for the token at `first_position` + chain.ids.size(), and
  /// appends it. `counts` as for accept(). False when the draft logits give no token.
  bool propose(const engine::SamplingRow& sampling,
               int64_t first_position,
               std::span<const float> logits,
               std::vector<int32_t>& counts,
               DraftChain& chain);

  /// Fills `result` with the tokens that stand: at least one unless the first logits are not
  /// finite, at most sampling.accept_limit. `counts` (by token id; empty: no token was counted so
  /// far) goes on by them where it is not empty or penalties ask for it.
  void accept(const ChainLogits& target,
              const engine::SamplingRow& sampling,
              const DraftChain& chain,
              std::vector<int32_t>& counts,
              engine::RowResult& result);

 private:
  struct Drawn {
    kernels::SampledToken token;
    bool stands = false;  // the draft at this place was taken
  };
  Drawn draw(std::span<const float> logits,
             const kernels::SamplingParams& params,
             const DraftChain& chain,
             size_t index,
             std::span<const int32_t> counts);
  kernels::SampledToken score(std::span<const float> logits,
                              kernels::SamplingParams params,
                              std::span<const int32_t> counts,
                              int32_t id);

  DraftSampling sampling_;
  kernels::SamplingWorkspace workspace_;
  std::vector<kernels::ScoredToken> top_;
  std::vector<kernels::TokenProbability> law_;
};

}  // namespace baleen::runner
