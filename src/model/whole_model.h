#pragma once
// The whole model: embedding, blocks, collapse, logits, and the MTP block beside it. One body for
// training, scoring, prefill, chunks and decode; the groups of a step say which it is.
// Parameters may be non-leaf tensors; nothing here writes, detaches or caches them. Any thread.
//
//   ForwardOptions options{.numerics = ops::Numerics::plain(), .with_mtp = true};
//   TrainingOutput out = forward_training(params, ids, options);      // ids [B, T]
//   StepOutput step = forward_step(params, tables, rows, numerics);   // sequences with state

#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "model/context.h"
#include "model/forward.h"
#include "model/parameters.h"
#include "model/sequence_state.h"
#include "model/taps.h"
#include "model/trace.h"

namespace baleen::model {

struct ForwardOptions {
  ops::Numerics numerics;
  bool with_mtp = false;
  const RopeTables* tables = nullptr;  // none: made for this call
  Trace* trace = nullptr;
  Taps* taps = nullptr;
};

struct TrainingOutput {
  at::Tensor logits;      // [B, T, V]
  at::Tensor mtp_logits;  // [B, T-1, V]; row i is about token i + 2; undefined without MTP
};

/// B sequences of equal length T from position 0, no state; ids i64 [B, T]. Differentiable.
TrainingOutput forward_training(const ModelParameters& params,
                                const at::Tensor& ids,
                                const ForwardOptions& options);

/// New tokens of one sequence: those after the tokens that its state holds.
struct StepRow {
  SequenceState* state = nullptr;
  int64_t num_tokens = 0;
  LogitsWanted logits = LogitsWanted::kLast;
  bool mtp_logits = false;  // of every MTP row that this step completes; the state must be with_mtp
  MtpRows mtp = MtpRows::kComplete;
  int64_t next_id = -1;  // the token after these, if known: then the last MTP row is complete too
};

struct StepOutput {
  at::Tensor logits;                  // [sum of counts, V], undefined when no row wanted any
  at::Tensor mtp_logits;              // likewise
  std::vector<LogitsSpan> spans;      // per StepRow
  std::vector<LogitsSpan> mtp_spans;  // MTP rows; row i pairs position i with the token at i + 1
};

/// Runs the main blocks of a step whose parameters are not all in memory: streams in, streams out.
using RunMainBlocks = std::function<at::Tensor(at::Tensor streams, const StepContext& step)>;

/// Runs the new tokens of several sequences at once and advances their states. ids i64 [N], row
/// after row. No gradients. `choices`, if any, is overwritten with those of the step.
/// `main_blocks`, if any, takes the place of run_blocks() over all of them.
StepOutput forward_step(const ModelParameters& params,
                        const RopeTables& tables,
                        const std::vector<StepRow>& rows,
                        const at::Tensor& ids,
                        const ops::Numerics& numerics,
                        Trace* trace = nullptr,
                        StepChoices* choices = nullptr,
                        const RunMainBlocks& main_blocks = {});

}  // namespace baleen::model
