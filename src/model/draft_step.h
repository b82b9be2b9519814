#pragma once
// Rows of the draft layer apart from a step of the main model: those whose next tokens are known
// only once they were drawn, and those of a chain that guesses further from its own streams.
// Changes the states' draft rows alone. No gradients; one thread.
//
//   run_draft_step(params, tables, {{.state = &state, .num_rows = 2}}, accepted, numerics);
//   run_draft_step(params, tables, {{.state = &state, .num_rows = 1, .chained = true}}, guess, n);
//   drop_draft_chain(state);   // before the guesses are verified

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "model/context.h"
#include "model/parameters.h"
#include "model/sequence_state.h"

namespace baleen::model {

/// The next rows of one sequence's draft layer.
struct DraftStepRow {
  SequenceState* state = nullptr;
  int64_t num_rows = 0;
  /// False: streams of the main model at these positions, which the state still holds. True: one
  /// row, from the streams that the latest draft row left.
  bool chained = false;
};

/// ids i64 [N]: the token AFTER each row's position, row after row. Returns the logits [rows, V]
/// behind the last row of each sequence; its streams stay in the state for a chain.
at::Tensor run_draft_step(const ModelParameters& params,
                          const RopeTables& tables,
                          const std::vector<DraftStepRow>& rows,
                          const at::Tensor& ids,
                          const ops::Numerics& numerics);

/// Takes back the draft rows behind the tokens that the state holds.
void drop_draft_chain(SequenceState& state);

}  // namespace baleen::model
