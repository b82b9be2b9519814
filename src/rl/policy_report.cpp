// What an update measures beside its steps: agreement of choices, drift, figures of the rollout.
#include <utility>

#include <ATen/ATen.h>

#include "cache/pick_hashes.h"
#include "policy/rollout_metrics.h"
#include "rl/policy_pass.h"
#include "rl/policy_update.h"
#include "train/packed_forward.h"

namespace baleen::rl {
namespace {

void append(policy::Metrics& to, const policy::Metrics& from) {
  to.insert(to.end(), from.begin(), from.end());
}

/// Share of the picked sets that a trainer which gets one hash of each would have to fetch, because
/// its own choice has another hash. 0 where nothing was chosen.
double fetched_ratio(const model::ModelParameters& leaves,
                     const train::PackedBatch& batch,
                     const PassOptions& options,
                     const train::ChoiceReplay& replay) {
  train::ChoiceReplay own(leaves.config, {});
  train::replayed_forward(leaves,
                          batch,
                          {.numerics = options.config.objective.numerics, .tables = &options.rope},
                          own,
                          train::ReplayMode::kRecord);
  int64_t sets = 0;
  int64_t others = 0;
  for (const train::PackedSample& sample : batch.samples) {
    const std::vector<uint32_t> made =
        cache::pick_hashes(own.layout(), own.records_of(sample.number));
    const std::vector<uint32_t> shipped =
        cache::pick_hashes(replay.layout(), replay.records_of(sample.number));
    for (std::size_t i = 0; i < shipped.size(); ++i) {
      sets += shipped[i] != 0 ? 1 : 0;
      others += shipped[i] != made[i] ? 1 : 0;
    }
  }
  return sets > 0 ? static_cast<double>(others) / static_cast<double>(sets) : 0.0;
}

}  // namespace

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
  if (measured.empty() || !passes_.has_whole_model()) {
    return;
  }
  train::Trainer& trainer = passes_.trainer();
  const at::NoGradGuard no_grad;
  const PassOptions options =
      pass_options(trainer, {measured}, config_.rollout_temperature, &replay_);
  const model::ModelParameters& leaves = trainer.masters().leaves();
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
  if (replay_.parts().picks) {
    report.metrics.emplace_back("replay/fetched_ratio",
                                fetched_ratio(leaves, batch, options, replay_));
  }
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
      policy::measure_drift(drift, {.index_topk = passes_.trainer().masters().config().index_topk});
  append(report.metrics, report.drift.metrics());
  for (const auto& [name, value] : report.metrics) {
    if (name == "rollout/entropy") {
      report.entropy = value;
    }
  }
}

}  // namespace baleen::rl
