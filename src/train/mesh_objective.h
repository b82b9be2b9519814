#pragma once
// What the ranks of a mesh add up over a supervised step: each rank its own tokens' and layers'
// share of the losses and of the reported numbers. One thread per rank.
//
//   StepNumbers numbers(cut, config);
//   LayerLosses layers(cut, totals, objective, config, mesh, numbers);
//   options.layer_loss = [&](const mesh::LayerRows& rows) { return layers.of(rows); };
//   ...
//   numbers.share(mesh);

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "comm/mesh.h"
#include "mesh/mesh_model.h"
#include "train/mesh_cut.h"
#include "train/objective.h"

namespace baleen::train {

/// In place, over all ranks of the mesh.
void sum_over_world(std::vector<double>& numbers, const comm::Mesh& mesh);

/// visit(value, token of the micro-batch) for rows of TokenRows.
template <class Visit>
void for_each_token(const at::Tensor& token_index, const at::Tensor& values, Visit&& visit) {
  const at::Tensor index = token_index.to(at::kCPU).contiguous();
  const at::Tensor host = values.detach().to(at::kCPU, at::kDouble).contiguous();
  for (int64_t i = 0; i < index.size(0); ++i) {
    visit(host.const_data_ptr<double>()[i], index.const_data_ptr<int64_t>()[i]);
  }
}

/// Reported numbers of a step, by sample and layer.
class StepNumbers {
 public:
  StepNumbers(const StepCut& cut, const ModelConfig& config);

  void add_loss(bool mtp, std::size_t sample, double value);
  void add_balance(double value);
  void add_index(double value);
  /// load [E]: tokens that chose each expert.
  void add_load(std::size_t layer, const at::Tensor& load);
  /// Adds up over all ranks; before it the numbers are this rank's own.
  void share(const comm::Mesh& mesh) { sum_over_world(numbers_, mesh); }

  /// Over the samples in order of their numbers, so that no cut changes it.
  double loss(bool mtp) const;
  double balance() const { return numbers_[2 * num_samples_]; }  // sum over layers
  double index() const { return numbers_[2 * num_samples_ + 1]; }
  at::Tensor load(std::size_t layer) const;  // double [E]

 private:
  std::size_t first_load(std::size_t layer) const {
    return 2 * num_samples_ + 2 + layer * experts_;
  }

  const StepCut& cut_;
  std::size_t num_samples_;
  std::size_t experts_;
  std::vector<double> numbers_;
};

/// Layers whose experts are chosen by score, of those that run: main layers, then MTP.
std::vector<std::size_t> scored_layers(const ModelConfig& config, bool with_mtp);

/// Adds what each token contributes to the reported loss. Throws Error naming sample and token when
/// a log-probability is not finite.
void note_losses(const StepCut& cut,
                 const MeshPart& part,
                 bool mtp,
                 const at::Tensor& token_index,
                 const at::Tensor& logprobs,
                 StepNumbers& numbers);

/// Balance and index objective of a layer's rows, as objective.cpp has them for one rank.
class LayerLosses {
 public:
  /// All arguments outlive it.
  LayerLosses(const StepCut& cut,
              const StepTotals& totals,
              const ObjectiveConfig& objective,
              const ModelConfig& config,
              const comm::Mesh& mesh,
              StepNumbers& numbers);

  /// This rank's share; undefined where neither has a weight.
  at::Tensor of(const mesh::LayerRows& rows) const;

 private:
  const MeshPart& part_of(const mesh::LayerRows& rows) const;
  bool is_mtp(const mesh::LayerRows& rows) const;
  at::Tensor real_rows(const mesh::LayerRows& rows) const;
  at::Tensor balance(const mesh::LayerRows& rows) const;
  at::Tensor index_loss(const mesh::LayerRows& rows, int64_t ratio) const;

  const StepCut& cut_;
  const StepTotals& totals_;
  const ObjectiveConfig& objective_;
  const ModelConfig& config_;
  const comm::Mesh& mesh_;
  bool speaks_;  // for its rows: other tensor ranks have the same ones, or others
  StepNumbers& numbers_;
};

}  // namespace baleen::train
