#pragma once
// What training minimises: next-token loss on the answers, the MTP block's loss, the indexer's own
// objective and router balance; and how answers are judged. Stateless; one thread per call.
//
//   DeviceBatch batch = to_device(host_batch, device, 0.03);
//   StepLosses losses = step_losses(params, batch, settings);
//   losses.total.backward();

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "abacus/batch.h"
#include "model/context.h"
#include "model/parameters.h"
#include "ops/numerics_config.h"

namespace baleen::abacus {

struct DeviceBatch {
  at::Tensor ids;      // i64 [B, T]
  at::Tensor weights;  // f32 [B, T], weight of a token as a target
  at::Tensor real;     // f32 [B, T], 1 where a token is no padding
};

DeviceBatch to_device(const Batch& batch, at::Device device, double prompt_weight);

struct ObjectiveSettings {
  ops::Numerics numerics;
  const model::RopeTables* tables = nullptr;
  double mtp_weight = 0.3;
  double index_weight = 0.1;
  double balance_weight = 1e-3;
};

struct StepLosses {
  at::Tensor total;    // what is minimised
  at::Tensor main;     // nats per answer token
  at::Tensor mtp;      // the same of the MTP block, about the token after the next
  at::Tensor index;    // KL divergence of the attention on entries from the softmax of index scores
  at::Tensor balance;  // 1 when every sequence spreads its tokens evenly
  std::vector<at::Tensor> loads;  // [E] per scored layer, share of tokens that chose the expert
};

StepLosses step_losses(const model::ModelParameters& params,
                       const DeviceBatch& batch,
                       const ObjectiveSettings& settings);

/// Right answers out of all answers, teacher-forced: every token of the answer, its end included,
/// is the most likely one. That equals exactness of greedy decoding.
struct Score {
  int64_t right = 0;
  int64_t total = 0;
};

struct Report {
  std::array<Score, 4> direct;    // by Topic
  std::array<Score, 4> reasoned;  // by Topic; the reasoning must be right too
  Score drafts;                   // tokens of answers that the MTP block foresees

  void add(const Report& other);
  std::string text() const;
};

Report judge(const model::ModelParameters& params,
             const Batch& batch,
             at::Device device,
             const ObjectiveSettings& settings);

}  // namespace baleen::abacus
