#pragma once
// What supervised training minimises: the negative log-probability of the target tokens, the MTP
// block's, and the auxiliary losses; every part with the denominators of the whole optimizer step.
// Stateless; one thread per call.
//
//   StepTotals totals = step_totals(samples, config, aggregation, params.config);
//   MicroBatchLoss loss = micro_batch_loss(params, pack(...), totals, config, tables);
//   loss.total.backward();

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "train/loss_scale.h"
#include "train/packed_batch.h"
#include "train/packed_forward.h"

namespace baleen::train {

struct ObjectiveConfig {
  ops::Numerics numerics = ops::Numerics::plain();
  LossAggregation aggregation = LossAggregation::kTokenMean;
  double constant_length = 1.0;  // tokens, for LossAggregation::kConstant
  double mtp_weight = 0.0;       // 0: the MTP block does not run
  double balance_weight = 0.0;   // of the sum over layers of the mean over samples
  double index_weight = 0.0;     // of the sum over layers of the mean over tokens
  int64_t chunk_rows = 1024;     // rows whose logits are held at a time; -1: all
  Recompute recompute = Recompute::kNone;
};

/// Denominators of one optimizer step, to be added up over ranks before the first forward.
struct StepTotals {
  LossDenominators loss;
  std::map<int64_t, double> index_tokens;  // by ratio of the layer
};

StepTotals step_totals(std::span<const Sample> samples,
                       const ObjectiveConfig& objective,
                       const ModelConfig& config);

struct MicroBatchLoss {
  at::Tensor total;  // differentiable
  /// By sample number, its part of the step's loss: to be added in order of the number, so that the
  /// reported loss does not depend on how samples were packed.
  std::vector<std::pair<int64_t, double>> main;
  std::vector<std::pair<int64_t, double>> mtp;
  double balance = 0.0;  // mean over layers; 1: even
  double index = 0.0;    // sum over layers
  /// [E] of each layer that routes by score, main layers then MTP; tokens per expert.
  std::vector<at::Tensor> loads;
};

/// Throws Error naming sample, position and token when a log-probability is not finite.
MicroBatchLoss micro_batch_loss(const model::ModelParameters& params,
                                const PackedBatch& batch,
                                const StepTotals& totals,
                                const ObjectiveConfig& objective,
                                const model::RopeTables& tables);

}  // namespace baleen::train
