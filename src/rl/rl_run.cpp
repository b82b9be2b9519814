#include "rl/rl_run.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <utility>

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "base/error.h"
#include "base/metrics.h"
#include "model/contract.h"
#include "policy/alarms.h"
#include "policy/correction.h"
#include "policy/tensorboard_file.h"
#include "rl/checked_publishers.h"
#include "rl/debug_rollout.h"
#include "rl/evaluation.h"
#include "rl/numeric_cell.h"
#include "rl/policy_passes.h"
#include "rl/policy_update.h"
#include "rl/prompt_source.h"
#include "rl/reward_judge.h"
#include "rl/rl_metrics.h"
#include "rl/rl_options.h"
#include "rl/rollout_manager.h"
#include "rl/step_journal.h"
#include "rl/warm_up.h"
#include "train/loss_plot.h"
#include "train/mesh_options.h"
#include "train/metrics_file.h"
#include "train/published.h"
#include "train/run_rank.h"
#include "train/train_checkpoint.h"
#include "weights/mapped_file.h"

namespace baleen::rl {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr const char* kDataFile = "data.bin";
constexpr const char* kStep = "train/step";
constexpr const char* kReward = "rollout/raw_reward";
constexpr int32_t kQueuedAnswers = 1 << 20;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Since 1970, for event files.
double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

model::ModelParameters shown(const model::ModelParameters& leaves) {
  model::ModelParameters out = leaves;
  model::for_each_parameter(out, [](const model::ParameterInfo&, at::Tensor& value) {
    value = value.defined() ? value.detach() : value;
  });
  return out;
}

model::ModelParameters copy_of(const model::ModelParameters& values) {
  const at::NoGradGuard no_grad;
  model::ModelParameters out = values;
  model::for_each_parameter(out, [](const model::ParameterInfo&, at::Tensor& value) {
    value = value.defined() ? value.detach().clone() : value;
  });
  return out;
}

std::unique_ptr<PromptSource> open_prompts(const RlConfig& config, const StartFiles& files) {
  const auto seed = static_cast<uint64_t>(config.rollout_seed);
  const ChatPromptWriter writer{.tokenizer = files.tokenizer.get(),
                                .profile = files.profile,
                                .thinking = prompt_thinking(config.thinking)};
  if (config.prompt_data.empty()) {
    return config.model.empty() ? task_prompts(config.task, seed) : abacus_prompts(writer, seed);
  }
  PromptFileOptions options;
  options.input_key = config.input_key;
  options.label_key = config.label_key;
  options.metadata_key = config.metadata_key;
  options.max_prompt_tokens = config.rollout_max_prompt_len;
  options.shuffle = config.rollout_shuffle;
  options.seed = seed;
  if (config.apply_chat_template) {
    options.chat = writer;
  }
  return file_prompts(config.prompt_data, config.eval_prompt_data, *files.tokenizer, options);
}

/// What the first rank hands the others.
struct SharedBatch {
  const RolloutBatch* batch = nullptr;
  int64_t version = 0;
};

/// What all ranks start from.
struct RunInputs {
  StartFiles files;
  std::unique_ptr<PromptSource> source;
  train::RunSettings settings;
};

train::SaveOptions kept_checkpoints(const RlConfig& config) {
  return {.settings = {}, .keep = static_cast<std::size_t>(config.keep_checkpoints)};
}

/// The updates of one rank. Ranks make the same calls.
class RankUpdates {
 public:
  RankUpdates(const RlConfig& config, train::RunRank& rank, train::RunSettings settings)
      : rank_(rank),
        root_(fs::path(config.out) / "checkpoints"),
        settings_(std::move(settings)),
        passes_(rank.mesh_trainer() != nullptr ? passes_of(*rank.mesh_trainer())
                                               : passes_of(rank.trainer())),
        update_(config, *passes_) {
    if (config.kl_loss_coef != 0.0 || config.kl_coef != 0.0) {
      update_.set_reference(copy_of(rank.trainer().masters().values()));
    }
  }

  bool restore() {
    return train::restore_checkpoint(root_,
                                     rank_.trainer(),
                                     settings_,
                                     train::LoadOptimizer::kRequired,
                                     rank_.checkpoint_rank());
  }
  void save(train::SaveOptions options) const {
    options.settings = settings_;
    train::save_checkpoint(root_, rank_.trainer(), options, rank_.checkpoint_rank());
  }
  UpdateReport run(const RolloutBatch& batch, int64_t version) {
    return update_.run(batch, version);
  }

 private:
  train::RunRank& rank_;
  fs::path root_;
  train::RunSettings settings_;
  std::unique_ptr<PolicyPasses> passes_;
  PolicyUpdate update_;
};

/// The first rank: rollouts, its part of the updates, publishing, evaluation, records.
class RlRun {
 public:
  RlRun(const RlConfig& config,
        const ExecutorMaker& make_executor,
        const RlEvents& events,
        const RunInputs& inputs,
        train::RunRank& rank,
        SharedBatch& shared)
      : config_(config),
        events_(events),
        out_(config.out),
        files_(inputs.files),
        source_(*inputs.source),
        judge_(make_judge(config, config.rm_type)),
        eval_judge_(config.eval_rm_type.empty() ? nullptr
                                                : make_judge(config, config.eval_rm_type)),
        rank_(rank),
        shared_(shared),
        trainer_(rank.trainer()),
        updates_(config, rank, inputs.settings),
        journal_(out_ / "wal"),
        ess_guard_(config.min_ess) {
    restore();
    const bool several = rank.mesh_trainer() != nullptr;
    // Of several ranks' parts a copy is put together for the engines.
    const model::ModelParameters leaves = rank.whole(trainer_.masters().leaves());
    engine::EngineConfig engine_config = engine::EngineConfig::for_tokenizer(*files_.tokenizer);
    engine_config.max_running = static_cast<int32_t>(config.max_running);
    engine_config.max_queued = kQueuedAnswers;
    engine_config.max_prefills = static_cast<int32_t>(config.max_running);
    engine_config.weight_version = std::to_string(rollout_);
    const bool rounded = config.rollout_quant != "none";
    const model::ModelParameters served =
        rounded ? numeric_side(leaves, config.rollout_quant).params : shown(leaves);
    std::vector<engine::Engine*> engines;
    for (int64_t i = 0; i < config.rollout_engines; ++i) {
      engines_.push_back(std::make_unique<engine::Engine>(
          engine_config,
          make_executor(served, config),
          files_.tokenizer,
          *registries_.emplace_back(std::make_unique<MetricRegistry>())));
      engines_.back()->start();
      engines.push_back(engines_.back().get());
    }
    const std::string own = engines.front()->executor_info().contract;
    check_contract(own, served);
    if (rounded || several) {
      copies_ = std::make_unique<CopyPublisher>(
          rounded ? config.rollout_quant : std::string("f32"), served, own);
    } else {
      publisher_ = std::make_unique<SharedPublisher>(trainer_.masters(), own);
    }
    manager_ = std::make_unique<RolloutManager>(
        config_, std::move(engines), source_, *files_.tokenizer, *judge_);
    manager_->set_data(std::move(data_));
  }

  RlSummary run() {
    const Clock::time_point begin = Clock::now();
    weights::write_text_file(out_ / "rl.json", effective_config());
    train::MetricsFile metrics(out_ / "metrics.jsonl", rollout_, kReward);
    // The evaluation of a saved rollout is written before it is saved; the first comes again.
    train::MetricsFile evals(
        out_ / "eval.jsonl", rollout_ == 0 ? 0 : rollout_ + 1, "eval/" + config_.task);
    policy::TensorboardFile events_file(out_ / "tensorboard", rollout_);
    if (events_.watch) {
      watcher_ = events_.watch(*engines_.front());
    }
    for (const train::MetricsFile::Point& point : metrics.kept()) {
      curve_.push_back({point.step, point.value});
      if (events_.on_metrics) {
        events_.on_metrics({{kStep, static_cast<double>(point.step)}, {kReward, point.value}});
      }
    }
    for (const train::MetricsFile::Point& point : evals.kept()) {
      (point.step == 0 ? summary_.greedy_start : summary_.greedy_end) = point.value;
    }
    if (rollout_ == 0 && !config_.skip_eval_before_train) {
      write_evaluation(evals, /*sampled=*/true);
    }
    bool saved = rollout_ > 0;
    while (rollout_ < config_.num_rollout && !summary_.stopped) {
      one_rollout(metrics, evals, events_file);
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
    write_pictures();
    for (const auto& engine : engines_) {
      engine->stop();
    }
    if (rank_.agreed(!config_.export_to.empty() && !summary_.stopped)) {
      train::export_model(rank_.whole(trainer_.masters().values()),
                          trainer_.masters().rounding() == train::WeightRounding::kServed,
                          config_.model,
                          config_.export_to);
      say("wrote the model to " + config_.export_to);
    }
    summary_.next_rollout = rollout_;
    for (const train::PlotPoint& point : curve_) {
      summary_.rewards.push_back(point.value);
    }
    summary_.seconds = seconds_since(begin);
    return std::move(summary_);
  }

 private:
  /// Engine and trainer must compute alike, but where they are meant not to.
  void check_contract(const std::string& engines, const model::ModelParameters& served) const {
    const std::string trainers =
        model::contract_digest(served, trainer_.config().objective.numerics);
    if (config_.exactness != "off" && engines != trainers) {
      throw ConfigError(
          fmt::format("exactness {}: the engine computes by contract {}, the trainer by {}; see "
                      "baleen rl parity, or set --exactness off",
                      config_.exactness,
                      engines,
                      trainers));
    }
  }

  void say(const std::string& line) const {
    if (events_.say) {
      events_.say(line);
    }
  }

  void restore() {
    const fs::path root = out_ / "checkpoints";
    if (!updates_.restore()) {
      return;
    }
    DecodedBatch saved = decode_batch(train::checkpoint_file(root, kDataFile), kDataFile);
    rollout_ = saved.batch.rollout_id;
    data_ = std::move(saved.data);
    if (rollout_ > 0) {
      say(fmt::format("continues {} at rollout {}", config_.out, rollout_));
    }
  }

  std::string effective_config() const {
    RlConfig copy = config_;
    return train::options_json(train::options_of(copy));
  }

  void save() {
    RolloutBatch none;
    none.rollout_id = rollout_;
    train::SaveOptions options = kept_checkpoints(config_);
    options.extra_files[kDataFile] = encode_batch(none, manager_->data());
    updates_.save(std::move(options));
    journal_.forget_before(rollout_);
  }

  RolloutBatch next_batch() {
    if (std::optional<DecodedBatch> known = journal_.load(rollout_)) {
      manager_->set_data(std::move(known->data));
      return std::move(known->batch);
    }
    if (!config_.load_debug_rollout_data.empty()) {
      return load_debug_rollout(config_.load_debug_rollout_data, rollout_);
    }
    std::optional<TokenLog> log;
    if (config_.rollout_wal) {
      log.emplace(journal_.token_log(rollout_));
    }
    RolloutBatch batch = manager_->generate(rollout_, rollout_, log ? &*log : nullptr);
    journal_.store(batch, manager_->data());
    journal_.drop_token_log(rollout_);
    if (!config_.save_debug_rollout_data.empty()) {
      save_debug_rollout(config_.save_debug_rollout_data, batch);
    }
    return batch;
  }

  void one_rollout(train::MetricsFile& metrics,
                   train::MetricsFile& evals,
                   policy::TensorboardFile& events_file) {
    const Clock::time_point begin = Clock::now();
    RolloutSeconds seconds;
    const RolloutBatch batch = next_batch();
    seconds.generate = seconds_since(begin);
    shared_ = {.batch = &batch, .version = rollout_};
    rank_.agreed(true);  // the others may read it
    const UpdateReport report = updates_.run(batch, rollout_);
    const model::ModelParameters leaves = rank_.whole(trainer_.masters().leaves());
    check_drift(report);
    check_effective_samples(report);
    const Clock::time_point publish_begin = Clock::now();
    if (copies_) {
      copies_->take(leaves);
    }
    for (const auto& engine : engines_) {
      (copies_ ? *copies_ : *publisher_).publish(*engine, rollout_ + 1);
    }
    seconds.publish = seconds_since(publish_begin);
    seconds.step = seconds_since(begin);
    train::Metrics line =
        rollout_metrics(config_, batch, manager_->timings(), report, rollout_ + 1, seconds);
    show(batch, report, seconds);
    raise_alarms(batch, report, line);
    curve_.push_back({rollout_, batch.counts.first_reward});
    ++rollout_;
    const bool last = rollout_ == config_.num_rollout;
    if (last || (config_.eval_interval > 0 && rollout_ % config_.eval_interval == 0)) {
      const train::Metrics eval = write_evaluation(evals, last);
      line.insert(line.end(), eval.begin(), eval.end());
    }
    events_file.write(rollout_ - 1, wall_seconds(), line);
    metrics.write(line);
    if (events_.on_metrics) {
      events_.on_metrics(line);
    }
  }

  void raise_alarms(const RolloutBatch& batch,
                    const UpdateReport& report,
                    const policy::Metrics& line) {
    policy::StepHealth health;
    health.step = rollout_;
    health.kept_groups = static_cast<int64_t>(batch.groups.size());
    health.attempted_groups = batch.counts.groups_judged;
    health.drift_samples = report.drift.worst_samples;
    if (report.steps > 0) {
      health.mean_old_logprob = policy::metric(line, "rollout/log_probs");
      health.mean_rollout_logprob = policy::metric(line, "rollout/rollout_log_probs");
      health.drift_mean_abs = report.drift.all.mean_abs;
      health.entropy = report.entropy;
      health.mean_response_len = policy::metric(line, "rollout/response_len/mean");
      health.truncated_ratio = policy::metric(line, "rollout/truncated_ratio");
      health.grad_norm = report.gradient_norm;
    }
    for (const policy::Alarm& alarm : alarms_.observe(health)) {
      say(fmt::format("warning: rollout {}: {}", rollout_, alarm.message));
    }
  }

  /// Weights that rest on a few tokens announce a collapse.
  void check_effective_samples(const UpdateReport& report) {
    using Verdict = policy::EssGuard::Verdict;
    const Verdict verdict = ess_guard_.observe(report.least_ess);
    if (verdict == Verdict::kStop) {
      throw Error(fmt::format(
          "rollout {}: train/ess_ratio {:.3g} is below min_ess {} for the third time in a row: the "
          "rollout's policy and the trainer's have come apart; run baleen rl parity, or lower lr",
          rollout_,
          report.least_ess,
          config_.min_ess));
    }
    if (verdict == Verdict::kWarn) {
      say(fmt::format(
          "warning: rollout {}: train/ess_ratio {:.3g} is below 0.5", rollout_, report.least_ess));
    }
  }

  /// Equal bits are promised; a single one that differs is a fault of the program.
  void check_drift(const UpdateReport& report) const {
    if (config_.exactness != "off" && report.drift.all.max != 0.0) {
      throw Error(fmt::format(
          "rollout {}: engine and trainer differ by up to {:.3g} nats although exactness is {}: "
          "run baleen rl parity, or set exactness to off",
          rollout_,
          report.drift.all.max,
          config_.exactness));
    }
  }

  /// Of the present weights, whose version is the number of rollouts that were trained.
  train::Metrics write_evaluation(train::MetricsFile& evals, bool sampled) {
    const EvaluationReport report =
        evaluate(config_, *manager_, source_, eval_judge_ ? *eval_judge_ : *judge_, sampled);
    const double greedy = mean_score(report.greedy);
    (rollout_ == 0 ? summary_.greedy_start : summary_.greedy_end) = greedy;
    const train::Metrics values = evaluation_metrics(config_.task, report);
    train::Metrics line = {{kStep, static_cast<double>(rollout_)}};
    line.insert(line.end(), values.begin(), values.end());
    evals.write(line);
    say(fmt::format("eval v{} | greedy {:.3f}{}",
                    rollout_,
                    greedy,
                    sampled ? fmt::format(" | pass@1 {:.3f}", mean_score(report.sampled)) : ""));
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
    return values;
  }

  void show(const RolloutBatch& batch, const UpdateReport& report, const RolloutSeconds& seconds) {
    if (!events_.on_rollout) {
      return;
    }
    RolloutLine line;
    line.rollout = rollout_;
    line.num_rollouts = config_.num_rollout;
    line.reward = batch.counts.first_reward;
    line.kept = static_cast<int64_t>(batch.groups.size());
    line.judged = batch.counts.groups_judged;
    double tokens = 0.0;
    for (const RolloutGroup& group : batch.groups) {
      for (const RolloutSample& sample : group.samples) {
        tokens += static_cast<double>(sample.response_tokens());
      }
    }
    line.length = tokens / static_cast<double>(std::max<int64_t>(batch.num_samples(), 1));
    line.entropy = report.entropy;
    line.gradient_norm = report.gradient_norm;
    line.drift = report.drift.all.mean_abs;
    line.agreement = report.drift.all.exact_frac;
    line.generate_seconds = seconds.generate;
    line.train_seconds = report.train_seconds;
    line.version = rollout_ + 1;
    events_.on_rollout(line);
  }

  void write_pictures() const {
    weights::write_text_file(out_ / "reward.svg", train::loss_plot_svg(curve_, kReward));
  }

  const RlConfig& config_;
  const RlEvents& events_;
  fs::path out_;
  const StartFiles& files_;
  const PromptSource& source_;
  std::unique_ptr<AnswerJudge> judge_;
  std::unique_ptr<AnswerJudge> eval_judge_;  // null: judge_
  train::RunRank& rank_;
  SharedBatch& shared_;
  train::Trainer& trainer_;
  RankUpdates updates_;
  StepJournal journal_;
  policy::EssGuard ess_guard_;
  std::vector<std::unique_ptr<MetricRegistry>> registries_;  // one for each engine
  std::unique_ptr<WeightPublisher> publisher_;               // of the trainer's own tensors, or
  std::unique_ptr<CopyPublisher> copies_;                    // of copies
  std::vector<std::unique_ptr<engine::Engine>> engines_;     // over the trainer's tensors
  std::unique_ptr<RolloutManager> manager_;
  DataState data_;
  policy::Alarms alarms_{policy::AlarmConfig{}};
  int64_t rollout_ = 0;  // the next one; also the version of the weights
  std::vector<train::PlotPoint> curve_;
  RlSummary summary_;
  std::shared_ptr<void> watcher_;  // shared with who made it; last: it looks at an engine
};

/// A rank beside the first, in step with RlRun.
void follow_first(const RlConfig& config,
                  const train::RunSettings& settings,
                  train::RunRank& rank,
                  const SharedBatch& shared) {
  RankUpdates updates(config, rank, settings);
  updates.restore();
  const train::Masters& masters = rank.trainer().masters();
  rank.whole(masters.leaves());
  while (rank.agreed(false)) {
    updates.run(*shared.batch, shared.version);
    rank.whole(masters.leaves());
    if (rank.agreed(false)) {
      updates.save(kept_checkpoints(config));
    }
  }
  if (rank.agreed(false)) {
    updates.save(kept_checkpoints(config));
  }
  if (rank.agreed(false)) {
    rank.whole(masters.values());
  }
}

RlSummary run_ranks(const RlConfig& config,
                    const ExecutorMaker& make_executor,
                    const RlEvents& events) {
  RunInputs inputs;
  inputs.files = open_start(config);
  inputs.source = open_prompts(config, inputs.files);
  inputs.settings = rl_settings(config);
  inputs.settings["prompts"] = inputs.source->digest();
  SharedBatch shared;
  PolicyStart start = policy_start(config);
  if (train::mesh_shape(config).world_size() == 1) {
    const std::unique_ptr<train::RunRank> rank = start.single_rank();
    return RlRun(config, make_executor, events, inputs, *rank, shared).run();
  }
  train::check_mesh(config, start.params.config, config.global_batch_size);
  const fs::path root = fs::path(config.out) / "checkpoints";
  if (train::saved_step(root) < 0) {
    // The ranks take the warm-up's moments from a checkpoint before the first rollout.
    const std::unique_ptr<train::RunRank> rank = start.single_rank();
    RolloutBatch none;
    train::SaveOptions options = kept_checkpoints(config);
    options.settings = inputs.settings;
    options.extra_files[kDataFile] = encode_batch(none, {});
    train::save_checkpoint(root, rank->trainer(), options);
    start = policy_start(config);
  }
  RlSummary summary;
  train::run_on_ranks(config,
                      std::move(start.params),
                      start.make_masters,
                      start.trainer,
                      config.threads,
                      [&](train::RunRank& rank) {
                        if (rank.is_first()) {
                          summary =
                              RlRun(config, make_executor, events, inputs, rank, shared).run();
                        } else {
                          follow_first(config, inputs.settings, rank, shared);
                        }
                      });
  return summary;
}

}  // namespace

RlSummary run_rl(const RlConfig& config,
                 const ExecutorMaker& make_executor,
                 const RlEvents& events) {
  validate(config);
  train::check_export_folder(config.export_to);
  std::error_code error;
  fs::create_directories(config.out, error);
  if (error) {
    throw SystemError(fmt::format("out: {} cannot be made: {}", config.out, error.message()));
  }
  at::set_num_threads(static_cast<int>(config.threads));
  if (train::saved_step(fs::path(config.out) / "checkpoints") < 0 && !run_warm_up(config, events)) {
    RlSummary summary;
    summary.stopped = true;
    return summary;
  }
  return run_ranks(config, make_executor, events);
}

std::string rollout_text(const RolloutLine& line) {
  return fmt::format(
      "r {} | reward {:.2f} | kept {}/{} | len {:.1f} | H {:.2f} | |g| {:.2f} | drift {:.2g} | "
      "agree {:.4g}% | gen {:.1f}s train {:.1f}s | v{}",
      line.rollout,
      line.reward,
      line.kept,
      line.judged,
      line.length,
      line.entropy,
      line.gradient_norm,
      line.drift,
      100.0 * line.agreement,
      line.generate_seconds,
      line.train_seconds,
      line.version);
}

}  // namespace baleen::rl
