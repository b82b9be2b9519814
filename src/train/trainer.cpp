#include "train/trainer.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <fmt/format.h>

#include "base/error.h"

namespace baleen::train {
namespace {

constexpr double kClipFloor = 1e-6;  // so that a zero gradient has a clip scale
constexpr int64_t kTablePositions = 256;

void add_parts(const std::vector<std::pair<int64_t, double>>& parts,
               std::map<int64_t, double>& by_sample) {
  for (const auto& [sample, loss] : parts) {
    by_sample[sample] += loss;
  }
}

double ordered_sum(const std::map<int64_t, double>& by_sample) {
  double sum = 0.0;
  for (const auto& [sample, loss] : by_sample) {
    sum += loss;
  }
  return sum;
}

/// At least one position; padding comes on top.
int64_t longest_sample(const std::vector<std::vector<Sample>>& batches) {
  int64_t longest = 1;
  for (const std::vector<Sample>& batch : batches) {
    for (const Sample& sample : batch) {
      longest = std::max(longest, sample.fed_tokens());
    }
  }
  return longest;
}

}  // namespace

double sum_of_squares(const at::Tensor& tensor) {
  if (!tensor.device().is_cpu()) {
    return tensor.to(at::kDouble).square().sum().item<double>();
  }
  const at::Tensor flat = tensor.contiguous();
  double sum = 0.0;
  AT_DISPATCH_FLOATING_TYPES(flat.scalar_type(), "sum_of_squares", [&] {
    const scalar_t* value = flat.const_data_ptr<scalar_t>();
    for (int64_t i = 0; i < flat.numel(); ++i) {
      sum += static_cast<double>(value[i]) * static_cast<double>(value[i]);
    }
  });
  return sum;
}

Trainer::Trainer(Masters masters, const TrainerConfig& config, RankHooks hooks)
    : masters_(std::move(masters)),
      config_(config),
      hooks_(std::move(hooks)),
      optimizer_(config.optimizer,
                 hooks_.own_slots ? hooks_.own_slots(masters_, config.optimizer)
                                  : slots_of(masters_, config.optimizer)) {}

void Trainer::run_parts(std::size_t num_parts, const GradientShards::Work& work) {
  if (!shards_) {
    shards_ = std::make_unique<GradientShards>(masters_, static_cast<std::size_t>(config_.shards));
  }
  shards_->run(masters_, num_parts, work);
}

const model::RopeTables& Trainer::tables(int64_t num_positions) {
  if (!tables_.plain.cis.defined() || tables_.num_positions() < num_positions) {
    const at::NoGradGuard no_grad;
    tables_ = model::make_rope_tables(masters_.config(),
                                      std::max(num_positions, kTablePositions),
                                      masters_.flat_values(),
                                      config_.objective.numerics);
  }
  return tables_;
}

void Trainer::restore(int64_t next_step, int64_t skipped_steps) {
  next_step_ = next_step;
  skipped_steps_ = skipped_steps;
  skipped_in_a_row_ = 0;
  masters_.refresh_served();
}

StepReport Trainer::step(std::vector<Sample> samples) {
  StepReport report;
  report.samples = static_cast<int64_t>(samples.size());
  report.targets = count_targets(samples);
  const StepTotals totals = step_totals(samples, config_.objective, masters_.config());
  std::vector<std::vector<Sample>> batches =
      cut_for_shards(std::move(samples), config_.micro_batch_tokens, config_.shards);
  report.micro_batches = static_cast<int64_t>(batches.size());

  begin_step();
  const at::Tensor& like = masters_.values().embed;
  const model::RopeTables& rope = tables(longest_sample(batches) + config_.pad_multiple);
  std::vector<MicroBatchLoss> losses(batches.size());
  std::vector<int64_t> tokens(batches.size(), 0);
  run_parts(batches.size(), [&](const model::ModelParameters& leaves, std::size_t part) {
    const PackedBatch batch = pack(batches[part],
                                   totals.loss,
                                   {.device = like.device(),
                                    .dtype = like.scalar_type(),
                                    .pad_multiple = config_.pad_multiple});
    losses[part] = micro_batch_loss(leaves, batch, totals, config_.objective, rope);
    losses[part].total.backward();
    losses[part].total = at::Tensor();  // lets the graph go
    tokens[part] = batch.num_tokens;
  });
  std::map<int64_t, double> main;
  std::map<int64_t, double> mtp;
  std::vector<at::Tensor> loads;
  for (std::size_t part = 0; part < losses.size(); ++part) {
    const MicroBatchLoss& loss = losses[part];
    add_parts(loss.main, main);
    add_parts(loss.mtp, mtp);
    report.balance += loss.balance;
    report.index_loss += loss.index;
    report.tokens += tokens[part];
    for (std::size_t i = 0; i < loss.loads.size(); ++i) {
      if (loads.size() == i) {
        loads.push_back(loss.loads[i].clone());
      } else {
        loads[i].add_(loss.loads[i]);
      }
    }
  }
  report.loss = ordered_sum(main);
  report.mtp_loss = ordered_sum(mtp);
  finish_step(report);
  if (config_.bias_rate != 0.0 && !report.skipped) {
    balance_routers(loads);
  }
  return report;
}

void Trainer::begin_step() {
  masters_.zero_gradients();
}

void Trainer::finish_step(StepReport& report) {
  const at::NoGradGuard no_grad;
  for (const TrainedTensor& tensor : masters_.trained()) {
    const FreezeRules::Rows rows = tensor.still_rows;
    if (rows.end > rows.first) {
      tensor.gradient.narrow(0, rows.first, rows.end - rows.first).zero_();
    }
  }
  if (hooks_.reduce_gradients) {
    hooks_.reduce_gradients(masters_);
  }
  report.step = next_step_;
  report.gradient_norm = global_norm();
  report.learning_rate = learning_rate(config_.schedule, next_step_);
  report.skipped = !std::isfinite(report.gradient_norm);
  if (report.skipped) {
    ++skipped_steps_;
    if (++skipped_in_a_row_ >= config_.max_skipped_steps) {
      throw Error(
          fmt::format("the gradient of step {} is not finite, as were those of the {} steps "
                      "before; lower the learning rate or look at the data",
                      next_step_,
                      skipped_in_a_row_ - 1));
    }
  } else {
    skipped_in_a_row_ = 0;
    const double scale =
        config_.clip_norm > 0.0
            ? std::min(1.0, config_.clip_norm / (report.gradient_norm + kClipFloor))
            : 1.0;
    optimizer_.step(report.learning_rate, scale);
    if (hooks_.share_values) {
      hooks_.share_values();
    }
    masters_.refresh_served();
  }
  report.skipped_steps = skipped_steps_;
  ++next_step_;
}

double Trainer::global_norm() const {
  if (hooks_.gradient_norm) {
    return hooks_.gradient_norm();
  }
  double sum = 0.0;
  for (const TrainedTensor& tensor : masters_.trained()) {
    if (tensor.norm_weight > 0.0) {
      sum += tensor.norm_weight * sum_of_squares(tensor.gradient);
    }
  }
  if (hooks_.sum_over_ranks) {
    hooks_.sum_over_ranks({&sum, 1});
  }
  return std::sqrt(sum);
}

void Trainer::balance_routers(const std::vector<at::Tensor>& loads) {
  const at::NoGradGuard no_grad;
  std::size_t next = 0;
  model::ModelParameters shown = masters_.values();
  model::for_each_parameter(shown, [&](const model::ParameterInfo& info, at::Tensor& value) {
    if (info.role != model::ParameterRole::kRouterBias || next == loads.size()) {
      return;
    }
    const at::Tensor load = loads[next++].to(at::kCPU, at::kDouble);
    if (value.defined()) {  // else another pipeline stage's
      value.add_((load.mean() - load).sign().to(value.options()), config_.bias_rate);
    }
  });
}

}  // namespace baleen::train
