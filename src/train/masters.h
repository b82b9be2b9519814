#pragma once
// The parameters in training: values in float32 (or double) in one flat buffer, gradients in
// another, each trained tensor a view of both. Under quantisation-aware training a third buffer
// holds the values as they are served; gradients of the served ones are added to the gradients of
// the masters unchanged (straight-through), without a graph in between. Backward passes add into
// the gradient buffer in place. One owner; one thread at a time.
//
//   Masters masters(std::move(params), rules, WeightRounding::kServed);
//   forward(masters.leaves(), ...).backward();
//   optimizer.step(...);                 // writes values
//   masters.refresh_served();

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "model/parameters.h"
#include "train/freeze_rules.h"

namespace baleen::train {

/// What the forward computes with.
enum class WeightRounding : uint8_t {
  kNone,    // the masters
  kServed,  // the masters rounded to the format that each matrix is served in
};

struct TrainedTensor {
  model::ParameterInfo info;     // name and shape of the whole tensor
  at::Tensor value;              // this rank's part, a view of the masters
  at::Tensor gradient;           // likewise
  int64_t flat_begin = 0;        // of the part in the flat buffers
  int64_t num_matrices = 1;      // logical matrices along dim 0 (experts, heads, groups); see
                                 // logical_matrices()
  FreezeRules::Rows still_rows;  // of the part; their gradient is zeroed
  double norm_weight = 1.0;      // share in the global gradient norm: 0 on ranks that hold a copy
};

class Masters {
 public:
  /// Takes the values over, tensor by tensor: each source is let go before the next is copied, so
  /// the peak is one model and one tensor. All floating tensors have one dtype and device. A rank
  /// of several may hold parts of tensors, and none of those of other pipeline stages.
  Masters(model::ModelParameters params, const FreezeRules& rules, WeightRounding rounding);

  const ModelConfig& config() const { return leaves_.config; }
  WeightRounding rounding() const { return rounding_; }
  /// What a forward reads: leaves that add their gradients into gradients().
  const model::ModelParameters& leaves() const { return leaves_; }
  /// The masters themselves, no gradients; frozen tensors and tables included.
  const model::ModelParameters& values() const { return values_; }

  /// Every parameter of the whole model, also those that other ranks hold.
  struct Listed {
    model::ParameterInfo info;
    bool trained = false;
  };
  const std::vector<Listed>& listed() const { return listed_; }

  std::vector<TrainedTensor>& trained() { return trained_; }
  const std::vector<TrainedTensor>& trained() const { return trained_; }
  const at::Tensor& flat_values() const { return flat_values_; }
  const at::Tensor& flat_gradients() const { return flat_gradients_; }

  /// Further leaves over the same values, whose gradients go to a buffer of their own.
  struct Shard {
    model::ModelParameters leaves;
    at::Tensor flat_gradients;
  };
  Shard new_shard() const;

  void zero_gradients();
  /// Makes the served values again after the masters were written. No effect with kNone.
  void refresh_served();
  /// Bytes of values, gradients and served values.
  int64_t bytes() const;

 private:
  /// Leaves with gradients in `flat_gradients`.
  model::ModelParameters leaves_over(const at::Tensor& flat_gradients) const;

  WeightRounding rounding_;
  at::Tensor flat_values_;
  at::Tensor flat_gradients_;
  at::Tensor flat_served_;  // undefined with kNone
  model::ModelParameters values_;
  model::ModelParameters leaves_;
  std::vector<TrainedTensor> trained_;
  std::vector<Listed> listed_;
};

/// How many matrices of its own a stored one stands for: experts of a stack, heads of wq_b, groups
/// of wo_a, carry and own half of an overlapping compressor.
int64_t logical_matrices(const model::ParameterInfo& info, const ModelConfig& config);

/// Has weight decay: matrices and position-free tables, but no norm, sink, bias, ape or mixing.
bool decays(const model::ParameterInfo& info);

/// A hidden matrix, which Muon updates; embedding, head, mixing and vectors are not.
bool is_hidden_matrix(const model::ParameterInfo& info);

}  // namespace baleen::train
