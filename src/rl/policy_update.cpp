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

/// Of the first response token, in the values of the fed tokens.
std::size_t PolicyUpdate::Row::first_value() const {
  return static_cast<std::size_t>(sample->prompt_tokens) - 1;
}

PolicyUpdate::PolicyUpdate(const RlConfig& config, PolicyPasses& passes)
    : config_(config),
      passes_(passes),
      loss_(loss_config(config)),
      advantage_(advantage_config(config)),
      replay_(passes.trainer().masters().config(), train::replay_parts_by_name(config.replay)) {}

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
  std::vector<train::Sample> samples;
  std::map<int64_t, Row*> by_number;
  for (Row* row : rows) {
    if (row->trained()) {
      by_number[row->sample->index] = row;
      samples.push_back(train_sample(*row->sample, row->mask));
    }
  }
  if (samples.empty()) {
    return;
  }
  // A reference chooses for itself.
  const std::vector<train::SampleValues> values =
      passes_.forward(samples, pass_settings(reference == nullptr ? &replay_ : nullptr, reference));
  for (const train::SampleValues& one : values) {
    Row& row = *by_number.at(one.number);
    const std::size_t first = row.first_value();
    for (std::size_t t = 0; t < row.mask.size(); ++t) {
      if (row.mask[t] == 0) {
        continue;
      }
      const auto logprob = static_cast<float>(one.logprobs[first + t]);
      (reference == nullptr ? row.old : row.reference)[t] = logprob;
      if (reference == nullptr) {
        row.entropy[t] = static_cast<float>(one.entropy[first + t]);
      }
    }
    row.scored = row.scored || reference == nullptr;
  }
}

train::MeshPassOptions PolicyUpdate::pass_settings(const train::ChoiceReplay* replay,
                                                   const model::ModelParameters* params) const {
  return {.temperature = config_.rollout_temperature,
          .replay = replay != nullptr && replay->parts().any() ? replay : nullptr,
          .params = params};
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

void PolicyUpdate::take_value(Row& row, std::size_t t, double logprob, double entropy, bool first) {
  row.current[t] = static_cast<float>(logprob);
  row.current_entropy[t] = static_cast<float>(entropy);
  if (!row.scored) {
    BALEEN_CHECK(first, "sample {} was not scored", row.sample->index);
    row.old[t] = row.current[t];
    row.entropy[t] = row.current_entropy[t];
  }
}

/// Of the loss of a micro-batch in the values of its targets. Called by several threads, for
/// different samples.
train::TokenGradients PolicyUpdate::gradients(const train::PackedBatch& batch,
                                              const train::RowLogprobs& values,
                                              const std::map<int64_t, Row*>& by_number,
                                              const policy::StepTotals& totals,
                                              bool first) const {
  const at::Tensor logprobs = values.logprobs.detach().to(at::kDouble);
  const at::Tensor entropy = values.entropy.detach().to(at::kDouble);
  for (std::size_t i = 0; i < batch.main.samples.size(); ++i) {
    const TargetPlace place = place_of(batch, i);
    Row& row = *by_number.at(place.number);
    take_value(row,
               static_cast<std::size_t>(place.position - row.sample->prompt_tokens),
               logprobs.const_data_ptr<double>()[i],
               entropy.const_data_ptr<double>()[i],
               first);
  }
  std::vector<policy::PolicyRow> inputs;
  std::map<int64_t, std::size_t> input_of;
  for (const train::PackedSample& packed : batch.samples) {
    const auto known = by_number.find(packed.number);
    if (known != by_number.end()) {  // a mesh may add a sample that counts nowhere
      input_of[packed.number] = inputs.size();
      inputs.push_back(policy_row(*known->second));
    }
  }
  const policy::PolicyLoss loss = policy::policy_loss(inputs, loss_, totals);
  const auto count = static_cast<int64_t>(batch.main.samples.size());
  at::Tensor d_logprobs = at::zeros({count}, at::kDouble);
  at::Tensor d_entropy = at::zeros({count}, at::kDouble);
  for (std::size_t i = 0; i < batch.main.samples.size(); ++i) {
    const TargetPlace place = place_of(batch, i);
    const Row& row = *by_number.at(place.number);
    const policy::RowLoss& row_loss = loss.rows[input_of.at(place.number)];
    const auto t = static_cast<std::size_t>(place.position - row.sample->prompt_tokens);
    d_logprobs.mutable_data_ptr<double>()[i] = row_loss.d_logprobs[t];
    if (!row_loss.d_entropy.empty()) {
      d_entropy.mutable_data_ptr<double>()[i] = row_loss.d_entropy[t];
    }
  }
  train::TokenGradients out;
  out.logprobs = d_logprobs.to(values.logprobs.options().requires_grad(false));
  if (config_.entropy_coef != 0.0) {
    out.entropy = d_entropy.to(values.entropy.options().requires_grad(false));
  }
  return out;
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
  const bool first = index == 0;
  train::StepReport step_report;
  const std::vector<train::SampleValues> values = passes_.step(
      samples,
      pass_settings(&replay_, nullptr),
      [&](const train::PackedBatch& batch, const train::RowLogprobs& seen) {
        return gradients(batch, seen, by_number, totals, first);
      },
      step_report);
  // Every rank reports from the values of all.
  std::vector<policy::PolicyRow> trained;
  for (const train::SampleValues& one : values) {
    Row& row = *by_number.at(one.number);
    for (std::size_t t = 0; t < row.mask.size(); ++t) {
      if (row.mask[t] != 0) {
        take_value(
            row, t, one.logprobs[row.first_value() + t], one.entropy[row.first_value() + t], first);
      }
    }
    row.scored = true;
    trained.push_back(policy_row(row));
  }
  policy::LossReport loss_report;
  loss_report.add(policy::policy_loss(trained, loss_, totals));
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
