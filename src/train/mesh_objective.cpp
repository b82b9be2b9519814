#include "train/mesh_objective.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"
#include "mesh/collectives.h"
#include "train/auxiliary_losses.h"

namespace baleen::train {

void sum_over_world(std::vector<double>& numbers, const comm::Mesh& mesh) {
  mesh.group(comm::Axis::kWorld)
      .all_reduce(numbers.data(),
                  numbers.data(),
                  static_cast<int64_t>(numbers.size()),
                  comm::Element::kFloat64,
                  comm::Reduction::kSum);
}

StepNumbers::StepNumbers(const StepCut& cut, const ModelConfig& config)
    : cut_(cut),
      num_samples_(cut.num_samples()),
      experts_(static_cast<std::size_t>(config.n_routed_experts)),
      numbers_(first_load(config.layers.size()), 0.0) {}

void StepNumbers::add_loss(bool mtp, std::size_t sample, double value) {
  numbers_[(mtp ? num_samples_ : 0) + sample] += value;
}

void StepNumbers::add_balance(double value) {
  numbers_[2 * num_samples_] += value;
}

void StepNumbers::add_index(double value) {
  numbers_[2 * num_samples_ + 1] += value;
}

void StepNumbers::add_load(std::size_t layer, const at::Tensor& load) {
  const at::Tensor host = load.detach().to(at::kCPU, at::kDouble).contiguous();
  for (std::size_t e = 0; e < experts_; ++e) {
    numbers_[first_load(layer) + e] += host.const_data_ptr<double>()[e];
  }
}

double StepNumbers::loss(bool mtp) const {
  std::map<int64_t, double> by_number;
  for (std::size_t i = 0; i < num_samples_; ++i) {
    by_number[cut_.number(i)] = numbers_[(mtp ? num_samples_ : 0) + i];
  }
  double sum = 0.0;
  for (const auto& [number, value] : by_number) {
    sum += value;
  }
  return sum;
}

at::Tensor StepNumbers::load(std::size_t layer) const {
  at::Tensor load = at::empty({static_cast<int64_t>(experts_)}, at::kDouble);
  std::copy_n(numbers_.begin() + static_cast<std::ptrdiff_t>(first_load(layer)),
              experts_,
              load.mutable_data_ptr<double>());
  return load;
}

std::vector<std::size_t> scored_layers(const ModelConfig& config, bool with_mtp) {
  std::vector<std::size_t> layers;
  const auto main = static_cast<std::size_t>(config.num_hidden_layers);
  for (std::size_t i = 0; i < config.layers.size() && (i < main || with_mtp); ++i) {
    if (!config.layers[i].hash_routed) {
      layers.push_back(i);
    }
  }
  return layers;
}

void note_losses(const StepCut& cut,
                 const MeshPart& part,
                 bool mtp,
                 const at::Tensor& token_index,
                 const at::Tensor& logprobs,
                 StepNumbers& numbers) {
  if (!part.counts) {
    return;
  }
  const at::Tensor coefficients =
      (mtp ? part.mtp_coefficients : part.coefficients).to(at::kDouble).contiguous();
  for_each_token(token_index, logprobs, [&](double logprob, int64_t token) {
    const double coefficient = coefficients.const_data_ptr<double>()[token];
    if (coefficient == 0.0) {
      return;
    }
    const PackedSample& sample = part.sample_of(token);
    if (!std::isfinite(logprob)) {
      throw Error(fmt::format("the log-probability of sample {}, token {} is not finite",
                              sample.number,
                              token - sample.row_begin + (mtp ? 2 : 1)));
    }
    numbers.add_loss(mtp, cut.index_of(sample.number), -(logprob * coefficient));
  });
}

LayerLosses::LayerLosses(const StepCut& cut,
                         const StepTotals& totals,
                         const ObjectiveConfig& objective,
                         const ModelConfig& config,
                         const comm::Mesh& mesh,
                         StepNumbers& numbers)
    : cut_(cut),
      totals_(totals),
      objective_(objective),
      config_(config),
      mesh_(mesh),
      speaks_(mesh.place().tp == 0 || mesh.shape().sequence_parallel),
      numbers_(numbers) {}

at::Tensor LayerLosses::of(const mesh::LayerRows& rows) const {
  const LayerSpec& spec = config_.layers[rows.layer];
  at::Tensor total;
  if (objective_.index_weight != 0.0 && spec.kind == LayerKind::kC4 &&
      totals_.index_tokens.at(spec.ratio) > 0.0) {
    const at::Tensor loss = index_loss(rows, spec.ratio) / totals_.index_tokens.at(spec.ratio);
    if (speaks_) {
      numbers_.add_index(loss.item<double>());
    }
    total = objective_.index_weight * loss;
  }
  if (!spec.hash_routed) {
    const at::Tensor mean = balance(rows) / totals_.loss.samples;
    if (speaks_) {
      numbers_.add_balance(mean.item<double>());
    }
    if (objective_.balance_weight != 0.0) {
      const at::Tensor share = objective_.balance_weight * mean;
      total = total.defined() ? total + share : share;
    }
  }
  return total;
}

const MeshPart& LayerLosses::part_of(const mesh::LayerRows& rows) const {
  return cut_.parts()[static_cast<std::size_t>(rows.micro_batch)];
}

bool LayerLosses::is_mtp(const mesh::LayerRows& rows) const {
  return static_cast<int64_t>(rows.layer) >= config_.num_hidden_layers;
}

at::Tensor LayerLosses::real_rows(const mesh::LayerRows& rows) const {
  const MeshPart& part = part_of(rows);
  return (is_mtp(rows) ? part.mtp_real : part.batch.real).index_select(0, rows.token_index);
}

at::Tensor LayerLosses::balance(const mesh::LayerRows& rows) const {
  const at::AutoGradMode mode(objective_.balance_weight != 0.0);
  const MeshPart& part = part_of(rows);
  comm::Group& sequence = mesh_.group(comm::Axis::kSequence);
  const LayerBalance balance =
      layer_balance(rows.taps,
                    part.batch.row_sample.index_select(0, rows.token_index),
                    static_cast<int64_t>(part.batch.samples.size()),
                    real_rows(rows),
                    [&](at::Tensor& x) { mesh::sum_in_place(x, sequence); });
  if (speaks_) {
    numbers_.add_load(rows.layer, balance.load);
  }
  return balance.loss;
}

at::Tensor LayerLosses::index_loss(const mesh::LayerRows& rows, int64_t ratio) const {
  const at::Tensor real = real_rows(rows);
  at::Tensor sum;
  int64_t row_begin = 0;
  for (std::size_t g = 0; g < rows.groups.size(); ++g) {
    const model::SequenceGroup& group = rows.groups[g];
    BALEEN_CHECK(rows.taps.index_scores[g].defined() && rows.taps.entry_attention[g].defined(),
                 "no scores of layer {}",
                 rows.layer);
    const at::Tensor part = index_divergence(
        rows.taps.index_scores[g],
        rows.taps.entry_attention[g],
        ratio,
        real.narrow(0, row_begin, group.num_rows()).view({group.batch, group.tokens}),
        group.first_position);
    sum = sum.defined() ? sum + part : part;
    row_begin += group.num_rows();
  }
  return sum;
}

}  // namespace baleen::train
