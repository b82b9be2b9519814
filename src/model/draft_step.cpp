#include "model/draft_step.h"

#include <utility>

#include <ATen/ops/cat.h>

#include "base/check.h"
#include "model/head.h"
#include "model/mtp.h"

namespace baleen::model {

at::Tensor run_draft_step(const ModelParameters& params,
                          const RopeTables& tables,
                          const std::vector<DraftStepRow>& rows,
                          const at::Tensor& ids,
                          const ops::Numerics& numerics) {
  const ModelConfig& config = params.config;
  std::vector<SequenceGroup> groups;
  std::vector<at::Tensor> streams;
  for (const DraftStepRow& row : rows) {
    SequenceState& state = *row.state;
    const int64_t first = state.mtp_layer(0).raw->end();
    groups.push_back({.tokens = row.num_rows, .first_position = first, .state = &state});
    if (row.chained) {
      BALEEN_CHECK(row.num_rows == 1 && state.chain_streams().defined(),
                   "a chain goes on by one row from streams, not by {}",
                   row.num_rows);
      streams.push_back(state.chain_streams());
    } else {
      streams.push_back(state.streams()
                            .view(first, first + row.num_rows)
                            .reshape({row.num_rows, config.hc_mult, config.hidden_size}));
    }
  }
  const StepContext step(config, numerics, tables, ids, std::move(groups));
  const at::Tensor out = run_mtp_block(at::cat(streams, 0), params, 0, step);
  std::vector<at::Tensor> last;
  for (const SequenceGroup& group : step.groups) {
    last.push_back(out.narrow(0, group.row_begin + group.tokens - 1, 1));
    group.state->chain_streams() = last.back();
  }
  return head_logits(at::cat(last, 0), params.mtp[0].head, params.head, config, numerics);
}

void drop_draft_chain(SequenceState& state) {
  RowStore& rows = *state.mtp_layer(0).raw;
  rows.truncate(state.num_tokens());
}

}  // namespace baleen::model
