#include "rl/run_loop.h"

#include <chrono>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include "rl/debug_rollout.h"
#include "train/published.h"
#include "train/train_checkpoint.h"

namespace baleen::rl {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// On the first rank; called by all.
train::PublishedWeights whole_weights(train::RunRank& rank) {
  train::PublishedWeights weights = train::published_weights(rank.trainer().masters());
  weights.values = rank.whole(weights.values);
  weights.leaves = rank.whole(weights.leaves);
  return weights;
}

}  // namespace

RunLoop::RunLoop(const RlConfig& config,
                 const ExecutorMaker& make_executor,
                 const RlEvents& events,
                 const RunInputs& inputs,
                 train::RunRank& rank,
                 SharedBatch& shared)
    : config_(config),
      events_(events),
      source_(*inputs.prompts),
      judge_(make_judge(config, config.rm_type)),
      eval_judge_(config.eval_rm_type.empty() ? nullptr : make_judge(config, config.eval_rm_type)),
      rank_(rank),
      shared_(shared),
      masters_(rank.trainer().masters()),
      updates_(config, rank, inputs.settings),
      journal_(std::filesystem::path(config.out) / "wal"),
      guards_(config, [this](const std::string& line) { say(line); }) {
  data_ = restore();
  engines_.emplace(config,
                   make_executor,
                   inputs.tokenizer,
                   rank,
                   rank.whole(masters_.leaves()),
                   rollout_,
                   [this](const std::string& line) { say(line); });
  manager_ = std::make_unique<RolloutManager>(
      config, engines_->all(), source_, *inputs.tokenizer, *judge_);
  manager_->set_data(data_);
  if (!config.publish_to.empty()) {
    folders_.emplace(config.publish_to, config.model);
    folders_->write(whole_weights(rank), rollout_);
  }
}

RlSummary RunLoop::run() {
  const Clock::time_point begin = Clock::now();
  if (events_.watch && engines_->first() != nullptr) {
    watcher_ = events_.watch(*engines_->first());
  }
  RunRecords records(config_, rollout_, events_.on_metrics);
  for (const train::MetricsFile::Point& point : records.kept_evaluations()) {
    note_greedy(point.step, point.value);
  }
  if (rollout_ == 0 && !config_.skip_eval_before_train) {
    evaluate_weights(records, /*sampled=*/true);
  }
  bool saved = rollout_ > 0;
  while (rollout_ < config_.num_rollout && !summary_.stopped) {
    one_rollout(records);
    saved = rank_.agreed(rollout_ % config_.save_interval == 0);
    if (saved) {
      save();
    }
    summary_.stopped = rollout_ < config_.num_rollout && events_.stop && events_.stop();
  }
  rank_.agreed(false);  // no rollout comes
  if (rank_.agreed(!saved)) {
    save();
  }
  records.write_picture();
  engines_->stop();
  if (rank_.agreed(!config_.export_to.empty() && !summary_.stopped)) {
    train::export_model(rank_.whole(masters_.values()),
                        masters_.rounding() == train::WeightRounding::kServed,
                        config_.model,
                        config_.export_to);
    say("wrote the model to " + config_.export_to);
  }
  summary_.next_rollout = rollout_;
  summary_.rewards = records.rewards();
  summary_.seconds = seconds_since(begin);
  return std::move(summary_);
}

void follow_first(const RlConfig& config,
                  const train::RunSettings& settings,
                  train::RunRank& rank,
                  const SharedBatch& shared) {
  RankUpdates updates(config, rank, settings);
  updates.restore();
  const train::Masters& masters = rank.trainer().masters();
  const auto give_weights = [&] {
    rank.whole(masters.leaves());
    if (!config.publish_to.empty()) {
      whole_weights(rank);
    }
  };
  give_weights();
  while (rank.agreed(false)) {
    updates.run(*shared.batch, shared.version);
    give_weights();
    if (rank.agreed(false)) {
      updates.save();
    }
  }
  if (rank.agreed(false)) {
    updates.save();
  }
  if (rank.agreed(false)) {
    rank.whole(masters.values());
  }
}

void RunLoop::say(const std::string& line) const {
  if (events_.say) {
    events_.say(line);
  }
}

DataState RunLoop::restore() {
  if (!updates_.restore()) {
    return {};
  }
  DecodedBatch saved =
      decode_batch(train::checkpoint_file(checkpoint_root(config_), kDataFile), kDataFile);
  rollout_ = saved.batch.rollout_id;
  if (rollout_ > 0) {
    say(fmt::format("continues {} at rollout {}", config_.out, rollout_));
  }
  return std::move(saved.data);
}

void RunLoop::save() {
  RolloutBatch none;
  none.rollout_id = rollout_;
  updates_.save({{kDataFile, encode_batch(none, data_)}});
  journal_.forget_before(rollout_);
}

RunLoop::Drawn RunLoop::draw(int64_t rollout) {
  const Clock::time_point begin = Clock::now();
  Drawn drawn;
  drawn.batch = drawn_batch(rollout);
  drawn.timings = manager_->timings();
  drawn.data = manager_->data();
  drawn.seconds = seconds_since(begin);
  return drawn;
}

RolloutBatch RunLoop::drawn_batch(int64_t rollout) {
  if (std::optional<DecodedBatch> known = journal_.load(rollout)) {
    manager_->set_data(std::move(known->data));
    return std::move(known->batch);
  }
  if (!config_.load_debug_rollout_data.empty()) {
    return load_debug_rollout(config_.load_debug_rollout_data, rollout);
  }
  std::optional<TokenLog> log;
  if (config_.rollout_wal) {
    log.emplace(journal_.token_log(rollout));
  }
  const int64_t behind = config_.async == "one-step" && rollout > 0 ? 1 : 0;
  RolloutBatch batch = manager_->generate(rollout, rollout - behind, log ? &*log : nullptr);
  journal_.store(batch, manager_->data());
  journal_.drop_token_log(rollout);
  if (!config_.save_debug_rollout_data.empty()) {
    save_debug_rollout(config_.save_debug_rollout_data, batch);
  }
  return batch;
}

void RunLoop::one_rollout(RunRecords& records) {
  const Clock::time_point begin = Clock::now();
  RolloutSeconds seconds;
  const Drawn drawn = ahead_.valid() ? ahead_.get() : draw(rollout_);
  const RolloutBatch& batch = drawn.batch;
  data_ = drawn.data;
  seconds.generate = drawn.seconds;
  if (config_.async == "one-step" && rollout_ + 1 < config_.num_rollout) {
    ahead_ = std::async(std::launch::async, [this, next = rollout_ + 1] { return draw(next); });
  }
  shared_ = {.batch = &batch, .version = rollout_};
  rank_.agreed(true);  // the others may read it
  const UpdateReport report = updates_.run(batch, rollout_);
  const model::ModelParameters leaves = rank_.whole(masters_.leaves());
  guards_.check(rollout_, report);
  if (ahead_.valid()) {
    ahead_.wait();  // and in the journal, before a checkpoint stands behind it
  }
  const Clock::time_point publish_begin = Clock::now();
  engines_->publish(leaves, rollout_ + 1);
  if (folders_) {
    folders_->write(whole_weights(rank_), rollout_ + 1);
  }
  seconds.publish = seconds_since(publish_begin);
  seconds.step = seconds_since(begin);
  policy::Metrics line =
      rollout_metrics(config_, batch, drawn.timings, report, rollout_ + 1, seconds);
  if (events_.on_rollout) {
    events_.on_rollout(rollout_line(config_, batch, report, seconds));
  }
  guards_.watch(batch, report, line);
  ++rollout_;
  const bool last = rollout_ == config_.num_rollout;
  if (last || (config_.eval_interval > 0 && rollout_ % config_.eval_interval == 0)) {
    const policy::Metrics eval = evaluate_weights(records, last);
    line.insert(line.end(), eval.begin(), eval.end());
  }
  records.write_rollout(line);
}

policy::Metrics RunLoop::evaluate_weights(RunRecords& records, bool sampled) {
  const EvaluationReport report =
      evaluate(config_, *manager_, source_, eval_judge_ ? *eval_judge_ : *judge_, sampled);
  const double greedy = mean_score(report.greedy);
  note_greedy(rollout_, greedy);
  const policy::Metrics values = evaluation_metrics(config_.task, report);
  records.write_evaluation(rollout_, values);
  say(fmt::format("eval v{} | greedy {:.3f}{}",
                  rollout_,
                  greedy,
                  sampled ? fmt::format(" | pass@1 {:.3f}", mean_score(report.sampled)) : ""));
  keep_examples(report);
  return values;
}

void RunLoop::keep_examples(const EvaluationReport& report) {
  summary_.solved.clear();
  summary_.failed.clear();
  for (std::size_t i = 0; i < report.greedy.size(); ++i) {
    const bool right = report.greedy[i].filter_reward() >= 1.0;
    std::vector<RolloutGroup>& list = right ? summary_.solved : summary_.failed;
    if (list.size() < (right ? 3U : 1U)) {
      RolloutGroup& example = list.emplace_back();
      example.prompt = report.prompts[i];
      example.samples = {report.greedy[i]};
    }
  }
}

void RunLoop::note_greedy(int64_t rollout, double score) {
  (rollout == 0 ? summary_.greedy_start : summary_.greedy_end) = score;
}

}  // namespace baleen::rl
