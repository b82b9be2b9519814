#include "train/objective.h"

#include <cmath>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "base/error.h"
#include "train/auxiliary_losses.h"
#include "train/row_logprobs.h"

namespace baleen::train {
namespace {

/// Sum of coefficient * -log-probability, and what each sample adds to it.
at::Tensor target_loss(const at::Tensor& hidden,
                       const at::Tensor& head,
                       const TargetRows& targets,
                       const PackedBatch& batch,
                       const ObjectiveConfig& objective,
                       std::vector<std::pair<int64_t, double>>& by_sample) {
  const at::Tensor logprobs =
      row_logprobs(hidden,
                   head,
                   targets.targets,
                   {.numerics = objective.numerics, .chunk_rows = objective.chunk_rows})
          .logprobs;
  const at::Tensor parts = logprobs.detach().to(at::kDouble) * targets.coefficients.to(at::kDouble);
  const at::Tensor host = parts.to(at::kCPU).contiguous();
  const double* part = host.const_data_ptr<double>();
  std::vector<double> sums(batch.samples.size(), 0.0);
  for (std::size_t row = 0; row < targets.samples.size(); ++row) {
    const auto sample = static_cast<std::size_t>(targets.samples[row]);
    if (!std::isfinite(part[row])) {
      throw Error(fmt::format("the log-probability of sample {}, token {} (id {}) is not finite",
                              batch.samples[sample].number,
                              targets.positions[row] + 1,
                              targets.targets[static_cast<int64_t>(row)].item<int64_t>()));
    }
    sums[sample] -= part[row];
  }
  for (std::size_t i = 0; i < sums.size(); ++i) {
    by_sample.emplace_back(batch.samples[i].number, sums[i]);
  }
  return (logprobs * targets.coefficients).sum().neg();
}

/// The indexer's objective of one layer over all groups, divided by the step's tokens.
at::Tensor index_loss(const model::LayerTaps& taps,
                      int64_t ratio,
                      const PackedBatch& batch,
                      const StepTotals& totals) {
  at::Tensor sum;
  for (std::size_t g = 0; g < batch.groups.size(); ++g) {
    const model::SequenceGroup& group = batch.groups[g];
    if (!taps.index_scores[g].defined() || !taps.entry_attention[g].defined()) {
      continue;
    }
    int64_t row_begin = 0;
    for (std::size_t before = 0; before < g; ++before) {
      row_begin += batch.groups[before].num_rows();
    }
    const at::Tensor real =
        batch.real.narrow(0, row_begin, group.num_rows()).view({group.batch, group.tokens});
    const at::Tensor part =
        index_divergence(taps.index_scores[g], taps.entry_attention[g], ratio, real);
    sum = sum.defined() ? sum + part : part;
  }
  const double tokens = totals.index_tokens.at(ratio);
  return sum.defined() && tokens > 0.0 ? sum / tokens : at::Tensor();
}

}  // namespace

StepTotals step_totals(std::span<const Sample> samples,
                       const ObjectiveConfig& objective,
                       const ModelConfig& config) {
  StepTotals totals;
  totals.loss.aggregation = objective.aggregation;
  totals.loss.constant_length = objective.constant_length;
  totals.loss.samples = static_cast<double>(samples.size());
  for (const LayerSpec& spec : config.layers) {
    if (spec.kind == LayerKind::kC4) {
      totals.index_tokens[spec.ratio] = 0.0;
    }
  }
  for (const Sample& sample : samples) {
    for (std::size_t t = 1; t < sample.weights.size(); ++t) {
      const auto weight = static_cast<double>(sample.weights[t]);
      totals.loss.weight += weight;
      totals.loss.mtp_weight += t >= 2 ? weight : 0.0;
    }
    for (auto& [ratio, tokens] : totals.index_tokens) {
      tokens += static_cast<double>(index_tokens(sample.fed_tokens(), ratio));
    }
  }
  return totals;
}

MicroBatchLoss micro_batch_loss(const model::ModelParameters& params,
                                const PackedBatch& batch,
                                const StepTotals& totals,
                                const ObjectiveConfig& objective,
                                const model::RopeTables& tables) {
  const ModelConfig& config = params.config;
  const bool with_mtp = objective.mtp_weight != 0.0;
  PackedForward out = packed_forward(params,
                                     batch,
                                     {.numerics = objective.numerics,
                                      .tables = &tables,
                                      .with_mtp = with_mtp,
                                      .routing = true,
                                      .index = objective.index_weight != 0.0,
                                      .recompute = objective.recompute});
  MicroBatchLoss loss;
  loss.total = target_loss(out.hidden, params.head, batch.main, batch, objective, loss.main);
  if (out.mtp_hidden.defined()) {
    const at::Tensor mtp =
        target_loss(out.mtp_hidden, params.head, batch.mtp, batch, objective, loss.mtp);
    loss.total = loss.total + objective.mtp_weight * mtp;
  }
  const auto num_samples = static_cast<int64_t>(batch.samples.size());
  for (std::size_t i = 0; i < out.taps.layers.size(); ++i) {
    const model::LayerTaps& taps = out.taps.layers[i];
    const LayerSpec& spec = config.layers[i];
    if (!taps.router_scores.defined()) {
      continue;  // an MTP block that did not run
    }
    if (objective.index_weight != 0.0 && spec.kind == LayerKind::kC4) {
      const at::Tensor index = index_loss(taps, spec.ratio, batch, totals);
      if (index.defined()) {
        loss.index += index.item<double>();
        loss.total = loss.total + objective.index_weight * index;
      }
    }
    if (!spec.hash_routed) {
      const at::AutoGradMode mode(at::GradMode::is_enabled() && objective.balance_weight != 0.0);
      const bool is_mtp = static_cast<int64_t>(i) >= config.num_hidden_layers;
      const LayerBalance balance = layer_balance(taps,
                                                 is_mtp ? batch.mtp_row_sample : batch.row_sample,
                                                 num_samples,
                                                 is_mtp ? batch.mtp_real : batch.real);
      const at::Tensor mean = balance.loss / totals.loss.samples;
      loss.balance += mean.item<double>();
      loss.loads.push_back(balance.load);
      if (objective.balance_weight != 0.0) {
        loss.total = loss.total + objective.balance_weight * mean;
      }
    }
  }
  loss.balance /= static_cast<double>(std::max<std::size_t>(loss.loads.size(), 1));
  return loss;
}

}  // namespace baleen::train
