#include "rl/policy_update.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"
#include "policy/correction.h"
#include "policy/reward_shaping.h"
#include "rl/policy_pass.h"

namespace baleen::rl {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_from(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Adds `from` to the running sums of the steps, by name.
void accumulate(policy::Metrics& sums, const policy::Metrics& from) {
  for (const auto& [name, value] : from) {
    const auto found = std::find_if(
        sums.begin(), sums.end(), [&](const auto& entry) { return entry.first == name; });
    if (found == sums.end()) {
      sums.emplace_back(name, value);
    } else {
      found->second += value;
    }
  }
}

}  // namespace

bool PolicyUpdate::Row::trained() const {
  return std::any_of(mask.begin(), mask.end(), [](uint8_t m) { return m != 0; });
}

PolicyUpdate::PolicyUpdate(const RlConfig& config, train::Trainer& trainer)
    : config_(config),
      trainer_(trainer),
      loss_(loss_config(config)),
      advantage_(advantage_config(config)),
      replay_(trainer.masters().config(), train::replay_parts_by_name(config.replay)) {}

std::vector<PolicyUpdate::Row> PolicyUpdate::make_rows(const RolloutBatch& batch) const {
  std::vector<Row> rows;
  for (const RolloutGroup& group : batch.groups) {
    for (const RolloutSample& sample : group.samples) {
      Row& row = rows.emplace_back();
      row.sample = &sample;
      row.mask = sample.mask;
      const auto length = static_cast<std::size_t>(sample.response_tokens());
      if (sample.remove_sample ||
          (config_.mask_truncated && sample.status == SampleStatus::kTruncated)) {
        row.mask.assign(length, 0);
      }
      row.reward = sample.reward;
      if (config_.overlong_buffer_len > 0) {
        row.reward +=
            policy::overlong_penalty(sample.response_tokens(),
                                     {.max_response_len = config_.rollout_max_response_len,
                                      .buffer = config_.overlong_buffer_len,
                                      .factor = config_.overlong_penalty_factor});
      }
      for (std::vector<float>* values :
           {&row.current, &row.old, &row.reference, &row.entropy, &row.current_entropy}) {
        values->assign(length, 0.0F);
      }
    }
  }
  return rows;
}

void PolicyUpdate::score(std::span<Row*> rows, const model::ModelParameters* reference) {
  std::map<int64_t, Row*> by_number;
  std::vector<train::Sample> samples;
  for (Row* row : rows) {
    if (row->trained()) {
      by_number[row->sample->index] = row;
      samples.push_back(train_sample(*row->sample, row->mask));
    }
  }
  if (samples.empty()) {
    return;
  }
  const std::vector<std::vector<train::Sample>> parts = cut(std::move(samples));
  // A reference chooses for itself.
  const PassOptions options = pass_options(
      trainer_, parts, config_.rollout_temperature, reference == nullptr ? &replay_ : nullptr);
  trainer_.run_parts(parts.size(), [&](const model::ModelParameters& leaves, std::size_t part) {
    const at::NoGradGuard no_grad;  // of this thread
    const PackedStep step =
        packed_step(options, reference == nullptr ? leaves : *reference, parts[part]);
    at::Tensor logprob_holder;
    at::Tensor entropy_holder;
    const float* logprobs = host_values(step.values.logprobs, logprob_holder);
    const float* entropies = host_values(step.values.entropy, entropy_holder);
    for (std::size_t i = 0; i < step.batch.main.samples.size(); ++i) {
      const TargetPlace place = place_of(step.batch, i);
      Row& row = *by_number.at(place.number);
      const auto t = static_cast<std::size_t>(place.position - row.sample->prompt_tokens);
      (reference == nullptr ? row.old : row.reference)[t] = logprobs[i];
      if (reference == nullptr) {
        row.entropy[t] = entropies[i];
        row.scored = true;
      }
    }
  });
}

std::vector<std::vector<train::Sample>> PolicyUpdate::cut(
    std::vector<train::Sample> samples) const {
  return train::cut_for_shards(
      std::move(samples), config_.micro_batch_tokens, trainer_.config().shards);
}

policy::PolicyRow PolicyUpdate::policy_row(const Row& row) const {
  policy::PolicyRow out;
  out.sample = row.sample->index;
  out.rollout = row.sample->index;
  out.prompt_tokens = row.sample->prompt_tokens;
  out.mask = row.mask;
  out.logprobs = policy::Numbers(row.current);
  out.rollout_logprobs = policy::Numbers(row.sample->logprobs);
  out.old_logprobs = policy::Numbers(config_.use_rollout_logprobs ? row.sample->logprobs : row.old);
  if (reference_) {
    out.ref_logprobs = policy::Numbers(row.reference);
  }
  if (config_.entropy_coef != 0.0) {
    out.entropy = policy::Numbers(row.current_entropy);
  }
  out.advantages = policy::Numbers(row.advantages);
  out.weights = policy::Numbers(row.weights);
  out.keep = row.keep;
  out.tokens =
      std::span(row.sample->ids).subspan(static_cast<std::size_t>(row.sample->prompt_tokens));
  return out;
}

void PolicyUpdate::find_advantages(std::span<Row> rows) const {
  std::vector<policy::AdvantageRow> inputs;
  for (const Row& row : rows) {
    policy::AdvantageRow& input = inputs.emplace_back();
    input.sample = row.sample->index;
    input.group = row.sample->group;
    input.rollout = row.sample->index;
    input.reward = row.reward;
    input.mask = row.mask;
    input.logprobs = policy::Numbers(row.old);
    if (reference_) {
      input.ref_logprobs = policy::Numbers(row.reference);
    }
  }
  std::vector<policy::TokenAdvantages> found = policy::compute_advantages(inputs, advantage_);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].advantages = std::move(found[i].advantages);
    rows[i].returns = std::move(found[i].returns);
    for (double& advantage : rows[i].advantages) {
      advantage *= config_.advantage_scale;
    }
  }
}

void PolicyUpdate::correct_rows(std::span<Row> rows, UpdateReport& report) const {
  if (!compares_with_rollout(config_)) {
    return;
  }
  std::vector<policy::PolicyRow> inputs;
  for (const Row& row : rows) {
    policy::PolicyRow& input = inputs.emplace_back(policy_row(row));
    input.old_logprobs = policy::Numbers(row.old);
  }
  policy::Corrections fix = policy::correct(
      inputs, correction_config(config_), policy::step_totals(inputs), loss_.aggregation);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].weights = std::move(fix.rows[i].weights);
    rows[i].keep = std::move(fix.rows[i].keep);
  }
  report.least_ess = std::min(report.least_ess, fix.ess_ratio);
  accumulate(report.metrics, fix.metrics);
}

/// What the forward says of the rows, before their step. Called by several threads, for different
/// rows.
void PolicyUpdate::take_values(const train::PackedBatch& batch,
                               const train::RowLogprobs& values,
                               const std::map<int64_t, Row*>& by_number,
                               bool first) {
  at::Tensor logprob_holder;
  at::Tensor entropy_holder;
  const float* logprobs = host_values(values.logprobs, logprob_holder);
  const float* entropies = host_values(values.entropy, entropy_holder);
  for (std::size_t i = 0; i < batch.main.samples.size(); ++i) {
    const TargetPlace place = place_of(batch, i);
    Row& row = *by_number.at(place.number);
    const auto t = static_cast<std::size_t>(place.position - row.sample->prompt_tokens);
    row.current[t] = logprobs[i];
    row.current_entropy[t] = entropies[i];
    if (!row.scored) {
      BALEEN_CHECK(first, "sample {} was not scored", place.number);
      row.old[t] = logprobs[i];
      row.entropy[t] = entropies[i];
    }
  }
}

/// The loss of a part from the rows' values, and its gradient into the leaves.
policy::PolicyLoss PolicyUpdate::backward(const train::PackedBatch& batch,
                                          const train::RowLogprobs& values,
                                          const std::map<int64_t, Row*>& by_number,
                                          const policy::StepTotals& totals) const {
  std::vector<policy::PolicyRow> inputs;
  std::map<int64_t, std::size_t> input_of;
  for (const train::PackedSample& packed : batch.samples) {
    input_of[packed.number] = inputs.size();
    inputs.push_back(policy_row(*by_number.at(packed.number)));
  }
  policy::PolicyLoss loss = policy::policy_loss(inputs, loss_, totals);
  at::Tensor d_logprobs = at::empty({static_cast<int64_t>(batch.main.samples.size())}, at::kFloat);
  at::Tensor d_entropy = at::zeros_like(d_logprobs);
  for (std::size_t i = 0; i < batch.main.samples.size(); ++i) {
    const TargetPlace place = place_of(batch, i);
    const Row& row = *by_number.at(place.number);
    const policy::RowLoss& row_loss = loss.rows[input_of.at(place.number)];
    const auto t = static_cast<std::size_t>(place.position - row.sample->prompt_tokens);
    d_logprobs.mutable_data_ptr<float>()[i] = static_cast<float>(row_loss.d_logprobs[t]);
    if (!row_loss.d_entropy.empty()) {
      d_entropy.mutable_data_ptr<float>()[i] = static_cast<float>(row_loss.d_entropy[t]);
    }
  }
  at::Tensor total = (values.logprobs * d_logprobs.to(values.logprobs.options())).sum();
  if (config_.entropy_coef != 0.0) {
    total = total + (values.entropy * d_entropy.to(values.entropy.options())).sum();
  }
  total.backward();
  return loss;
}

/// One optimizer step. The rows of the first step that were not scored get l_old from the forward
/// that trains them: the weights are those of the rollout still.
void PolicyUpdate::step(std::span<Row> rows, UpdateReport& report, int64_t index) {
  correct_rows(rows, report);
  std::map<int64_t, Row*> by_number;
  std::vector<train::Sample> samples;
  std::vector<policy::PolicyRow> all;
  for (Row& row : rows) {
    all.push_back(policy_row(row));
    if (row.trained()) {
      by_number[row.sample->index] = &row;
      samples.push_back(train_sample(*row.sample, row.mask));
    }
  }
  const policy::StepTotals totals = policy::step_totals(all);
  report.trained_tokens += totals.tokens();
  if (samples.empty()) {
    return;
  }
  const std::vector<std::vector<train::Sample>> parts = cut(std::move(samples));
  const PassOptions options = pass_options(trainer_, parts, config_.rollout_temperature, &replay_);
  std::vector<policy::PolicyLoss> losses(parts.size());
  trainer_.begin_step();
  trainer_.run_parts(parts.size(), [&](const model::ModelParameters& leaves, std::size_t part) {
    const PackedStep step = packed_step(options, leaves, parts[part]);
    take_values(step.batch, step.values, by_number, /*first=*/index == 0);
    losses[part] = backward(step.batch, step.values, by_number, totals);
  });
  policy::LossReport loss_report;
  for (const policy::PolicyLoss& loss : losses) {
    loss_report.add(loss);
  }
  train::StepReport step_report;
  for (Row& row : rows) {
    row.scored = row.scored || row.trained();
  }
  trainer_.finish_step(step_report);
  policy::Metrics metrics = loss_report.metrics();
  metrics.emplace_back("train/grad_norm", step_report.gradient_norm);
  metrics.emplace_back("train/lr-pg_0", step_report.learning_rate);
  metrics.emplace_back("train/skipped_steps", step_report.skipped ? 1.0 : 0.0);
  accumulate(report.metrics, metrics);
  report.gradient_norm += step_report.gradient_norm;
  ++report.steps;
}

UpdateReport PolicyUpdate::run(const RolloutBatch& batch, int64_t version) {
  const Clock::time_point begin = Clock::now();
  UpdateReport report;
  const auto groups = static_cast<int64_t>(batch.groups.size());
  const int64_t steps = config_.num_steps_per_rollout;
  if (groups < steps) {
    return report;  // too few for a step each; the schedule stands still too
  }
  std::vector<Row> rows = make_rows(batch);
  fill_replay(rows, report);
  const int64_t per_group = config_.n_samples_per_prompt;
  const auto first_row = [&](int64_t step) {
    return static_cast<std::size_t>(groups * step / steps * per_group);
  };
  // The first step's forward gives its l_old, unless something wants it before.
  const bool all_first = compares_with_rollout(config_) || config_.kl_coef != 0.0;
  std::vector<Row*> to_score;
  for (std::size_t i = all_first ? 0 : first_row(1); i < rows.size(); ++i) {
    to_score.push_back(&rows[i]);
  }
  score(to_score, nullptr);
  if (reference_) {
    std::vector<Row*> every;
    for (Row& row : rows) {
      every.push_back(&row);
    }
    score(every, &*reference_);
  }
  report.score_seconds = seconds_from(begin);
  UpdateReport sums;
  find_advantages(rows);
  for (int64_t step_index = 0; step_index < steps; ++step_index) {
    step(std::span(rows).subspan(first_row(step_index),
                                 first_row(step_index + 1) - first_row(step_index)),
         sums,
         step_index);
  }
  const auto made = static_cast<double>(std::max<int64_t>(sums.steps, 1));
  for (const auto& [name, value] : sums.metrics) {
    report.metrics.emplace_back(name, name == "train/skipped_steps" ? value : value / made);
  }
  report.steps = sums.steps;
  report.trained_tokens = sums.trained_tokens;
  report.gradient_norm = sums.gradient_norm / made;
  report.least_ess = sums.least_ess;
  add_means(rows, version, report);
  replay_.clear();
  report.train_seconds = seconds_from(begin);
  return report;
}

}  // namespace baleen::rl
