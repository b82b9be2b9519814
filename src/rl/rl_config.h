#pragma once
// Everything `baleen rl` can be told. Names and help of the options: rl_options.h. Filled once at
// start, then read.
//
//   RlConfig config = default_rl_config(task, algo);
//   train::read_options(train::options_of(config), json, "rl.toml");   // then flags on top
//   settle(config);                                                     // fills derived values
//   validate(config);

#include <cstdint>
#include <string>
#include <vector>

#include "policy/advantages.h"
#include "policy/correction.h"
#include "policy/policy_loss.h"
#include "train/mesh_options.h"
#include "train/optimizer_options.h"
#include "train/run_settings.h"

namespace baleen::rl {

struct RlConfig : train::OptimizerOptions, train::MeshOptions {
  RlConfig() : OptimizerOptions{.lr = 3e-4, .lr_warmup_steps = 10, .weight_decay = 0.0} {}

  // What is trained, on what
  std::string model;  // empty: the nano model
  std::string task = "sort";
  std::string algo = "dapo";
  std::vector<std::string> prompt_data;
  std::vector<std::string> eval_prompt_data;
  std::string input_key = "input";
  std::string label_key;
  std::string metadata_key = "metadata";
  bool rollout_shuffle = false;
  int64_t rollout_max_prompt_len = 0;
  bool apply_chat_template = false;
  std::string thinking = "off";
  std::string chat_profile;
  std::string out = "out/rl";
  std::string export_to;
  std::string publish_to;
  int64_t seed = 1;
  int64_t rollout_seed = -1;  // -1: seed

  // Warm-up
  int64_t sft_steps = 160;
  int64_t sft_batch_size = 64;
  double sft_lr = 1e-3;
  int64_t sft_warmup_steps = 20;

  // Batches
  int64_t num_rollout = 40;
  int64_t rollout_batch_size = 32;
  int64_t n_samples_per_prompt = 8;
  int64_t global_batch_size = 0;
  int64_t num_steps_per_rollout = 0;
  int64_t micro_batch_tokens = 4096;

  // Sampling
  double rollout_temperature = 1.0;
  double rollout_top_p = 1.0;
  int64_t rollout_top_k = -1;
  int64_t rollout_max_response_len = 8;

  // Rollouts
  int64_t over_sampling_batch_size = 0;
  std::string filter = "none";
  int64_t max_filter_rounds = 10;
  std::string on_exhausted = "fail";
  std::string keep_order = "submit";
  bool partial_rollout = false;
  bool mask_offpolicy_in_partial_rollout = false;
  bool drop_all_truncated = false;
  double rollout_progress_timeout_s = 600.0;
  int64_t max_sample_retries = 2;
  int64_t max_running = 256;
  int64_t rollout_cache_mb = 0;
  bool rollout_wal = true;
  std::string save_debug_rollout_data;
  std::string load_debug_rollout_data;

  // Rewards
  std::string rm_type = "exact";
  std::string eval_rm_type;  // empty: rm_type
  std::vector<std::string> rm_command;
  std::string rm_url;
  std::string rm_pattern;
  std::string rm_schema;
  int64_t reward_workers = 4;
  double reward_timeout_s = 10.0;
  std::string on_reward_error = "drop_group";
  int64_t overlong_buffer_len = 0;
  double overlong_penalty_factor = 1.0;
  bool mask_truncated = false;

  // Algorithm
  std::string advantage_estimator = "grpo";
  bool grpo_std_normalization = true;
  bool normalize_advantages = false;
  double gamma = 1.0;
  std::string ratio = "token";
  double eps_clip = 0.2;
  double eps_clip_high = 0.2;
  double eps_clip_c = 0.0;
  double cispo_eps_high = 1.0;
  std::string loss_agg = "sample_mean";
  double kl_coef = 0.0;
  double kl_loss_coef = 0.0;
  std::string kl_loss_type = "k1";
  bool use_unbiased_kl = false;
  double entropy_coef = 0.0;
  bool use_opsm = false;
  double opsm_delta = 1e-4;
  double advantage_scale = 1.0;

  // Rollout against trainer
  std::string exactness = "batch";
  std::string rollout_quant = "none";
  std::string replay = "none";
  bool use_rollout_logprobs = false;
  bool use_tis = false;
  double tis_clip = 2.0;
  double tis_clip_low = 0.0;
  std::string correction = "none";
  std::string mis_level = "token";
  std::string mis_mode = "truncate";
  double mis_upper = 2.0;
  double mis_lower = 0.0;
  bool use_rs = false;
  std::string rs_level = "token";
  double rs_upper = 2.0;
  double rs_lower = 0.0;
  double rs_veto_threshold = 1e-4;
  bool mis_batch_normalize = false;
  bool get_mismatch_metrics = false;
  double min_ess = 0.1;

  // Frozen parts
  bool freeze_gate = true;
  bool freeze_indexer = true;

  // Evaluation and records
  int64_t eval_interval = 10;
  int64_t eval_prompts = 256;
  bool skip_eval_before_train = false;
  int64_t save_interval = 5;
  int64_t keep_checkpoints = 2;
  int64_t threads = 1;
  int64_t shards = 2;
  int64_t rollout_engines = 2;
  std::vector<std::string> rollout_url;  // servers that draw instead; empty: this process does
  std::string async = "off";             // or one-step: draw a rollout while the one before trains
};

/// Whether the task is asked of a served model, in its chat format.
bool is_abacus(const std::string& task);
/// Throws ConfigError naming the known tasks.
void check_task(const std::string& task);

/// Defaults of a recipe. Throws ConfigError naming algo or task.
RlConfig default_rl_config(const std::string& task, const std::string& algo);

/// Fills what follows from the rest: the fourth of the four batch numbers, seeds, over-sampling.
/// Throws ConfigError with both products where the four disagree.
void settle(RlConfig& config);

/// Of a settled config. Throws ConfigError: one sentence with the option, what came and what to do.
void validate(const RlConfig& config);

policy::AdvantageConfig advantage_config(const RlConfig& config);
policy::PolicyLossConfig loss_config(const RlConfig& config);
policy::CorrectionConfig correction_config(const RlConfig& config);
/// Whether rows are held against the rollout before a step: weighed, or measured.
bool compares_with_rollout(const RlConfig& config);

/// What the engine computes the rollouts with, and the trainer its updates: names of
/// ops::Numerics. `rounded`: the weights are served rounded, and activations with them.
std::string rollout_numerics(const RlConfig& config, bool rounded);
std::string trainer_numerics(const RlConfig& config, bool rounded);

/// Prompts per optimizer step.
int64_t groups_per_step(const RlConfig& config);

/// Optimizer steps of the whole run, those of the warm-up aside: the length of the schedule.
int64_t policy_steps(const RlConfig& config);

/// The options that decide what the weights become, as text.
train::RunSettings rl_settings(const RlConfig& config);

}  // namespace baleen::rl
