#include "train/optimizer.h"

#include <utility>

#include <ATen/ATen.h>

#include "base/check.h"
#include "train/adamw.h"
#include "train/muon.h"

namespace baleen::train {
namespace {

at::Tensor as_matrices(const at::Tensor& tensor, int64_t count) {
  return tensor.view({count, tensor.numel() / count / tensor.size(-1), tensor.size(-1)});
}

}  // namespace

std::vector<OptimizerSlot> slots_of(Masters& masters, const OptimizerConfig& config) {
  std::vector<OptimizerSlot> slots;
  for (TrainedTensor& tensor : masters.trained()) {
    const bool muon = config.kind == OptimizerKind::kMuon && is_hidden_matrix(tensor.info);
    slots.push_back({.name = tensor.info.name,
                     .begin = 0,
                     .value = tensor.value,
                     .gradient = tensor.gradient,
                     .rule = muon ? UpdateRule::kMuon : UpdateRule::kAdamW,
                     .weight_decay = decays(tensor.info) ? config.weight_decay : 0.0,
                     .num_matrices = tensor.num_matrices});
  }
  return slots;
}

Optimizer::Optimizer(const OptimizerConfig& config, std::vector<OptimizerSlot> slots)
    : config_(config) {
  for (OptimizerSlot& slot : slots) {
    BALEEN_CHECK(slot.value.sizes() == slot.gradient.sizes(), "{}", slot.name);
    Entry entry;
    entry.first = at::zeros_like(slot.value);
    if (slot.rule == UpdateRule::kAdamW) {
      entry.second = at::zeros_like(slot.value);
    } else {
      BALEEN_CHECK(slot.value.dim() >= 2 && slot.num_matrices > 0 &&
                       slot.value.numel() % (slot.num_matrices * slot.value.size(-1)) == 0,
                   "{} is no batch of {} matrices",
                   slot.name,
                   slot.num_matrices);
    }
    entry.slot = std::move(slot);
    entries_.push_back(std::move(entry));
  }
}

void Optimizer::step(double learning_rate, double gradient_scale) {
  const at::NoGradGuard no_grad;
  ++num_steps_;
  for (Entry& entry : entries_) {
    OptimizerSlot& slot = entry.slot;
    if (slot.rule == UpdateRule::kAdamW) {
      adamw_update({slot.value, slot.gradient, entry.first, entry.second},
                   {.learning_rate = learning_rate,
                    .beta1 = config_.beta1,
                    .beta2 = config_.beta2,
                    .epsilon = config_.epsilon,
                    .weight_decay = slot.weight_decay,
                    .gradient_scale = gradient_scale,
                    .step = num_steps_});
      continue;
    }
    muon_update(as_matrices(slot.value, slot.num_matrices),
                as_matrices(slot.gradient, slot.num_matrices),
                as_matrices(entry.first, slot.num_matrices),
                {.learning_rate = learning_rate,
                 .momentum = config_.muon_momentum,
                 .scale = config_.muon_scale,
                 .weight_decay = slot.weight_decay,
                 .gradient_scale = gradient_scale});
  }
}

std::vector<Optimizer::State> Optimizer::states() const {
  std::vector<State> states;
  for (const Entry& entry : entries_) {
    const OptimizerSlot& slot = entry.slot;
    if (slot.rule == UpdateRule::kMuon) {
      states.push_back({slot.name, slot.begin, "momentum", entry.first});
      continue;
    }
    states.push_back({slot.name, slot.begin, "m", entry.first});
    states.push_back({slot.name, slot.begin, "v", entry.second});
  }
  return states;
}

int64_t Optimizer::bytes() const {
  int64_t bytes = 0;
  for (const State& state : states()) {
    bytes += static_cast<int64_t>(state.value.nbytes());
  }
  return bytes;
}

}  // namespace baleen::train
