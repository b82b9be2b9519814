#pragma once
// AdamW and Muon over a list of tensors or parts of tensors. Moments are float32 (double for double
// parameters) and keyed by (name, first element, count), never by place in the list. A step is a
// pure function of values, gradients, moments and the step number, element by element with AdamW:
// ranges of a tensor get the bits of the whole. Owned by a trainer; one thread.
//
//   Optimizer optimizer(config, slots_of(masters, config));
//   optimizer.step(learning_rate, clip_scale);

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "train/masters.h"

namespace baleen::train {

enum class OptimizerKind : uint8_t {
  kAdamW,
  kMuon,  // hidden matrices by Muon, everything else by AdamW
};

struct OptimizerConfig {
  OptimizerKind kind = OptimizerKind::kAdamW;
  double beta1 = 0.9;
  double beta2 = 0.98;
  double epsilon = 1e-8;
  double weight_decay = 0.1;  // of matrices; others have none
  double muon_momentum = 0.95;
  double muon_scale = 0.18;  // times sqrt(max(rows, cols)): about the size of an AdamW update
};

enum class UpdateRule : uint8_t { kAdamW, kMuon };

/// Values and gradients of one tensor, or of `count` = value.numel() elements of it.
struct OptimizerSlot {
  std::string name;     // published name
  int64_t begin = 0;    // first element, in the rank's part of the tensor
  at::Tensor value;     // written by step()
  at::Tensor gradient;  // of the same shape
  UpdateRule rule = UpdateRule::kAdamW;
  double weight_decay = 0.0;
  int64_t num_matrices = 1;  // kMuon: the tensor is [num_matrices, rows, cols] of these
};

/// One slot for each trained tensor.
std::vector<OptimizerSlot> slots_of(Masters& masters, const OptimizerConfig& config);

class Optimizer {
 public:
  Optimizer(const OptimizerConfig& config, std::vector<OptimizerSlot> slots);

  /// Every gradient is multiplied by `gradient_scale` as it is read.
  void step(double learning_rate, double gradient_scale);
  int64_t num_steps() const { return num_steps_; }
  void set_num_steps(int64_t num_steps) { num_steps_ = num_steps; }

  /// A moment: "m" and "v" of AdamW, "momentum" of Muon; of the slot's shape, written by whoever
  /// restores a checkpoint.
  struct State {
    std::string name;  // of the slot
    int64_t begin = 0;
    std::string kind;
    at::Tensor value;
    std::string key() const { return name + "." + kind; }
  };
  std::vector<State> states() const;
  int64_t bytes() const;

 private:
  struct Entry {
    OptimizerSlot slot;
    at::Tensor first;   // m, or momentum
    at::Tensor second;  // v; undefined for Muon
  };
  OptimizerConfig config_;
  std::vector<Entry> entries_;
  int64_t num_steps_ = 0;
};

}  // namespace baleen::train
