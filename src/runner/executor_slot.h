#pragma once
// What the executor keeps for a request slot between steps. Plain state of ModelExecutor and its
// Drafter.

#include <cstdint>
#include <vector>

#include "cache/sequence_pages.h"
#include "model/forward.h"
#include "runner/chain_sampler.h"

namespace baleen::runner {

struct ExecutorSlot {
  cache::SequencePages pages;
  std::vector<model::Sequence> sequence;  // none before the first use, then one
  // Tokens whose rows lie in the pages, where the decode path ran further than `sequence` knows;
  // -1: the sequence knows them all.
  int64_t decoded_to = -1;
  bool ran_on_path = false;        // its latest row
  std::vector<int32_t> counts;     // by token id; empty: no penalties are asked for
  std::vector<float> last_logits;  // of the last prompt token run, for input log-probs

  bool drafts = false;              // the draft layer runs for the sequence
  std::vector<float> draft_logits;  // of the token behind the last one drawn; empty: none
  DraftChain chain;                 // what this step verifies
  double simulated_debt = 0.0;      // drafts that simulated acceptance still owes, below 1

  int64_t num_tokens() const {
    return decoded_to >= 0 ? decoded_to : sequence.empty() ? -1 : sequence[0].num_tokens();
  }
  /// Before the model's body runs the sequence: it goes on behind what the decode path ran.
  void catch_up() {
    if (decoded_to >= 0) {
      sequence.at(0).begin_at(decoded_to);
      decoded_to = -1;
    }
  }
};

}  // namespace baleen::runner
