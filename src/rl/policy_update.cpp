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
#include "policy/rollout_metrics.h"
#include "train/packed_forward.h"
#include "train/row_logprobs.h"

namespace baleen::rl {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_from(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// The answer as the trainer feeds it: every trained token is a target.
train::Sample train_sample(const RolloutSample& sample, std::span<const uint8_t> mask) {
  train::Sample out;
  out.number = sample.index;
  out.ids = sample.ids;
  out.weights.assign(static_cast<std::size_t>(sample.prompt_tokens), 0.0F);
  for (const uint8_t trained : mask) {
    out.weights.push_back(trained != 0 ? 1.0F : 0.0F);
  }
  return out;
}

struct PackedStep {
  train::PackedBatch batch;
  train::RowLogprobs values;  // of batch.main.targets
};

/// Where target `row` of the batch lies: its sample's number and the response token.
struct TargetPlace {
  int64_t number = 0;
  int64_t position = 0;  // of the target token in its sample
};

TargetPlace place_of(const train::PackedBatch& batch, std::size_t row) {
  return {batch.samples[static_cast<std::size_t>(batch.main.samples[row])].number,
          batch.main.positions[row] + 1};
}

/// What all parts of a pass share.
struct PassOptions {
  const train::TrainerConfig& config;
  const model::RopeTables& rope;
  double temperature = 1.0;
  const train::ChoiceReplay* replay = nullptr;  // choices of the rollout that are taken again
};

PassOptions pass_options(train::Trainer& trainer,
                         const std::vector<std::vector<train::Sample>>& parts,
                         double temperature,
                         const train::ChoiceReplay* replay) {
  int64_t longest = 1;
  for (const std::vector<train::Sample>& part : parts) {
    for (const train::Sample& sample : part) {
      longest = std::max(longest, sample.fed_tokens());
    }
  }
  return {trainer.config(),
          trainer.tables(longest + trainer.config().pad_multiple),
          temperature,
          replay != nullptr && replay->parts().any() ? replay : nullptr};
}

PackedStep packed_step(const PassOptions& options,
                       const model::ModelParameters& params,
                       std::span<const train::Sample> samples) {
  const train::TrainerConfig& config = options.config;
  const train::LossDenominators ones{.weight = 1.0, .mtp_weight = 1.0};
  PackedStep step;
  step.batch = train::pack(samples,
                           ones,
                           {.device = params.embed.device(),
                            .dtype = params.embed.scalar_type(),
                            .pad_multiple = config.pad_multiple});
  model::ChoicesByLayer given;
  if (options.replay != nullptr) {
    given = options.replay->given(step.batch);
  }
  const train::PackedForward out =
      train::packed_forward(params,
                            step.batch,
                            {.numerics = config.objective.numerics,
                             .tables = &options.rope,
                             .given = options.replay == nullptr ? nullptr : &given});
  step.values = train::row_logprobs(out.hidden,
                                    params.head,
                                    step.batch.main.targets,
                                    {.numerics = config.objective.numerics,
                                     .chunk_rows = config.objective.chunk_rows,
                                     .temperature = options.temperature,
                                     .entropy = true});
  return step;
}

const float* host_values(const at::Tensor& tensor, at::Tensor& holder) {
  holder = tensor.detach().to(at::kCPU, at::kFloat).contiguous();
  return holder.const_data_ptr<float>();
}

void append(policy::Metrics& to, const policy::Metrics& from) {
  to.insert(to.end(), from.begin(), from.end());
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

/// Records of the rows that are trained, all of them held against their answers before the first
/// update; and on a few of them how far the trainer would have chosen alike.
void PolicyUpdate::fill_replay(std::span<const Row> rows, UpdateReport& report) {
  constexpr std::size_t kMeasured = 8;
  replay_.clear();
  if (!replay_.parts().any()) {
    return;
  }
  std::vector<train::Sample> measured;
  for (const Row& row : rows) {
    if (!row.trained()) {
      continue;
    }
    train::Sample sample = train_sample(*row.sample, row.mask);
    replay_.add(sample, row.sample->choices.value_or(cache::ChoiceRecords()));
    if (measured.size() < kMeasured) {
      measured.push_back(std::move(sample));
    }
  }
  if (measured.empty()) {
    return;
  }
  const at::NoGradGuard no_grad;
  const PassOptions options =
      pass_options(trainer_, {measured}, config_.rollout_temperature, &replay_);
  const model::ModelParameters& leaves = trainer_.masters().leaves();
  const train::PackedBatch batch =
      train::pack(measured,
                  {.weight = 1.0, .mtp_weight = 1.0},
                  {.device = leaves.embed.device(), .dtype = leaves.embed.scalar_type()});
  train::ReplayAgreement agreement;
  train::replayed_forward(leaves,
                          batch,
                          {.numerics = options.config.objective.numerics,
                           .tables = &options.rope,
                           .routing = true,
                           .index_scores = true},
                          replay_,
                          train::ReplayMode::kPlay,
                          &agreement);
  report.metrics.emplace_back("replay/route_agreement", agreement.route_agreement());
  report.metrics.emplace_back("replay/route_margin", agreement.route_margin());
  report.metrics.emplace_back("replay/pick_jaccard", agreement.pick_jaccard());
  report.metrics.emplace_back(
      "replay/bytes_per_token",
      static_cast<double>(replay_.num_bytes()) / static_cast<double>(replay_.num_tokens()));
}

void PolicyUpdate::add_means(std::span<const Row> rows,
                             int64_t version,
                             UpdateReport& report) const {
  std::vector<policy::DriftRow> drift;
  std::vector<policy::RolloutFacts> facts;
  for (const Row& row : rows) {
    const RolloutSample& sample = *row.sample;
    policy::DriftRow& measured = drift.emplace_back();
    measured.sample = sample.index;
    measured.prompt_tokens = sample.prompt_tokens;
    measured.mask = row.mask;
    measured.train = policy::Numbers(row.old);
    measured.rollout = policy::Numbers(sample.logprobs);
    measured.fresh = !sample.mixed_versions() && sample.oldest_version() == version;
    policy::RolloutFacts& fact = facts.emplace_back();
    fact.sample = sample.index;
    fact.reward = row.reward;
    fact.prompt_tokens = sample.prompt_tokens;
    fact.end = sample.status == SampleStatus::kTruncated ? policy::SampleEnd::kTruncated
                                                         : policy::SampleEnd::kCompleted;
    fact.mask = row.mask;
    fact.tokens = std::span(sample.ids).subspan(static_cast<std::size_t>(sample.prompt_tokens));
    fact.logprobs = policy::Numbers(row.old);
    fact.rollout_logprobs = policy::Numbers(sample.logprobs);
    if (reference_) {
      fact.ref_logprobs = policy::Numbers(row.reference);
    }
    fact.advantages = policy::Numbers(row.advantages);
    fact.returns = policy::Numbers(row.returns);
    fact.entropy = policy::Numbers(row.entropy);
    fact.oldest_version = sample.oldest_version();
    fact.newest_version = sample.newest_version();
  }
  append(report.metrics, policy::rollout_metrics(facts));
  report.drift =
      policy::measure_drift(drift, {.index_topk = trainer_.masters().config().index_topk});
  append(report.metrics, report.drift.metrics());
  for (const auto& [name, value] : report.metrics) {
    if (name == "rollout/entropy") {
      report.entropy = value;
    }
  }
}

}  // namespace baleen::rl
