#include "rl/rl_config.h"

#include <algorithm>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "base/error.h"
#include "policy/batch_arithmetic.h"
#include "rl/rl_options.h"
#include "train/nano_tasks.h"

namespace baleen::rl {
namespace {

using train::check_at_least;
using train::check_one_of;
using train::reject_option;

constexpr int64_t kNanoPositions = 4096;

void check_counts(const RlConfig& c) {
  const std::pair<const char*, int64_t> positive[] = {
      {"num_rollout", c.num_rollout},
      {"rollout_batch_size", c.rollout_batch_size},
      {"n_samples_per_prompt", c.n_samples_per_prompt},
      {"sft_batch_size", c.sft_batch_size},
      {"rollout_max_response_len", c.rollout_max_response_len},
      {"over_sampling_batch_size", c.over_sampling_batch_size},
      {"max_filter_rounds", c.max_filter_rounds},
      {"max_running", c.max_running},
      {"reward_workers", c.reward_workers},
      {"eval_prompts", c.eval_prompts},
      {"save_interval", c.save_interval},
      {"keep_checkpoints", c.keep_checkpoints},
      {"threads", c.threads},
      {"shards", c.shards},
      {"rollout_engines", c.rollout_engines}};
  for (const auto& [option, value] : positive) {
    check_at_least(option, static_cast<double>(value), 1.0);
  }
  const std::pair<const char*, double> not_negative[] = {
      {"seed", static_cast<double>(c.seed)},
      {"rollout_seed", static_cast<double>(c.rollout_seed)},
      {"sft_steps", static_cast<double>(c.sft_steps)},
      {"sft_warmup_steps", static_cast<double>(c.sft_warmup_steps)},
      {"sft_lr", c.sft_lr},
      {"micro_batch_tokens", static_cast<double>(c.micro_batch_tokens)},
      {"rollout_max_prompt_len", static_cast<double>(c.rollout_max_prompt_len)},
      {"rollout_cache_mb", static_cast<double>(c.rollout_cache_mb)},
      {"max_sample_retries", static_cast<double>(c.max_sample_retries)},
      {"overlong_buffer_len", static_cast<double>(c.overlong_buffer_len)},
      {"overlong_penalty_factor", c.overlong_penalty_factor},
      {"eps_clip", c.eps_clip},
      {"eps_clip_high", c.eps_clip_high},
      {"kl_coef", c.kl_coef},
      {"kl_loss_coef", c.kl_loss_coef},
      {"lr", c.lr},
      {"lr_warmup_steps", static_cast<double>(c.lr_warmup_steps)},
      {"adam_epsilon", c.adam_epsilon},
      {"weight_decay", c.weight_decay},
      {"clip_grad", c.clip_grad},
      {"tis_clip_low", c.tis_clip_low},
      {"mis_lower", c.mis_lower},
      {"rs_lower", c.rs_lower},
      {"min_ess", c.min_ess},
      {"eval_interval", static_cast<double>(c.eval_interval)}};
  for (const auto& [option, value] : not_negative) {
    check_at_least(option, value, 0.0);
  }
  for (const auto& [option, value] :
       {std::pair<const char*, double>{"adam_beta1", c.adam_beta1}, {"adam_beta2", c.adam_beta2}}) {
    if (!(value >= 0.0 && value < 1.0)) {
      reject_option(option, fmt::format("{} is outside of [0, 1)", value));
    }
  }
  check_at_least("rollout_temperature", c.rollout_temperature, 1e-6);
  check_at_least("rollout_progress_timeout_s", c.rollout_progress_timeout_s, 0.001);
  check_at_least("reward_timeout_s", c.reward_timeout_s, 0.001);
  check_at_least("tis_clip", c.tis_clip, c.tis_clip_low);
}

void check_sampling(const RlConfig& c) {
  if (c.rollout_top_p != 1.0 || c.rollout_top_k != -1) {
    reject_option(c.rollout_top_p != 1.0 ? "rollout_top_p" : "rollout_top_k",
                  "filters change the distribution that was drawn from, and the mask of the kept "
                  "tokens is not recorded; leave top_p at 1 and top_k at -1");
  }
  const int64_t longest = c.rollout_max_prompt_len + c.rollout_max_response_len;
  if (c.model.empty() && longest > kNanoPositions) {
    reject_option(
        "rollout_max_response_len",
        fmt::format(
            "prompt and answer may have {} tokens, the model takes {}", longest, kNanoPositions));
  }
  if (c.overlong_buffer_len > c.rollout_max_response_len) {
    reject_option("overlong_buffer_len",
                  fmt::format("{} is longer than an answer of {} tokens",
                              c.overlong_buffer_len,
                              c.rollout_max_response_len));
  }
}

void check_rewards(const RlConfig& c) {
  check_one_of("on_reward_error", c.on_reward_error, {"zero", "drop_group", "fail"});
  if (!c.rm_command.empty() && !c.rm_url.empty()) {
    reject_option("rm_url", "there is an rm_command too; name one verifier");
  }
  static const std::set<std::string> kWithoutLabel = {
      "external", "remote_rm", "random", "deterministic_random"};
  const bool compares =
      !kWithoutLabel.contains(c.rm_type) && c.rm_pattern.empty() && c.rm_schema.empty();
  if (compares && !c.prompt_data.empty() && c.label_key.empty()) {
    reject_option("label_key",
                  fmt::format("rm_type {} compares answers with labels; name the key that holds "
                              "them in prompt_data",
                              c.rm_type));
  }
}

void check_algorithm(const RlConfig& c) {
  if (!policy::parse_estimator(c.advantage_estimator)) {
    reject_option("advantage_estimator", fmt::format("\"{}\" is unknown", c.advantage_estimator));
  }
  if (*policy::parse_estimator(c.advantage_estimator) == policy::Estimator::kPpo) {
    reject_option("advantage_estimator", "ppo needs a critic, which this program has not got");
  }
  if (!policy::parse_ratio_kind(c.ratio)) {
    reject_option("ratio", fmt::format("\"{}\" is unknown", c.ratio));
  }
  if (!policy::parse_loss_agg(c.loss_agg)) {
    reject_option("loss_agg", fmt::format("\"{}\" is unknown", c.loss_agg));
  }
  if (!policy::parse_kl_type(c.kl_loss_type)) {
    reject_option("kl_loss_type", fmt::format("\"{}\" is unknown", c.kl_loss_type));
  }
  if (!policy::parse_correction_kind(c.correction)) {
    reject_option("correction", fmt::format("\"{}\" is unknown", c.correction));
  }
  if (c.use_tis && c.correction != "none" && c.correction != "tis") {
    reject_option("correction",
                  fmt::format("{} and use_tis exclude each other; turn use_tis off", c.correction));
  }
  for (const auto& [option, level] :
       {std::pair<const char*, std::string>{"mis_level", c.mis_level}, {"rs_level", c.rs_level}}) {
    if (!policy::parse_ratio_level(level)) {
      reject_option(option, fmt::format("\"{}\" is unknown", level));
    }
  }
  if (!policy::parse_weight_mode(c.mis_mode)) {
    reject_option("mis_mode", fmt::format("\"{}\" is unknown", c.mis_mode));
  }
  correction_config(c).validate();
  if (c.advantage_estimator.starts_with("reinforce_plus_plus") && !c.normalize_advantages) {
    reject_option("normalize_advantages",
                  c.advantage_estimator + " needs whitened advantages; turn it on");
  }
  if (!c.freeze_indexer) {
    reject_option("freeze_indexer",
                  "the policy gradient does not reach the indexer; leave it frozen");
  }
  advantage_config(c).validate();
  loss_config(c).validate();
}

bool is_abacus(const std::string& task) {
  return task == "abacus";
}

void check_task(const std::string& task) {
  if (!is_abacus(task)) {
    train::NanoTask::check_name("task", task);
  }
}

/// What the run starts from and what it asks.
void check_start(const RlConfig& c) {
  check_one_of("thinking", c.thinking, {"off", "on", "alternate"});
  check_one_of("chat_profile", c.chat_profile, {"", "v4", "v4-0731", "v4.1"});
  const bool own_prompts = !c.prompt_data.empty();
  if (c.model.empty()) {
    if (is_abacus(c.task) || c.apply_chat_template || !c.export_to.empty()) {
      reject_option("model",
                    fmt::format("{} needs a checkpoint folder; name one",
                                is_abacus(c.task)       ? "task abacus"
                                : c.apply_chat_template ? "apply_chat_template"
                                                        : "export_to"));
    }
    return;
  }
  if (!own_prompts && !is_abacus(c.task)) {
    reject_option(
        "task",
        fmt::format("{} is made for the nano model; choose abacus, or name prompt_data", c.task));
  }
  if (c.sft_steps != 0) {
    reject_option("sft_steps",
                  fmt::format("{} steps, but a run from --model has no warm-up: set it to 0 and "
                              "teach with baleen train",
                              c.sft_steps));
  }
}

void check_exactness(const RlConfig& c) {
  check_one_of("exactness", c.exactness, {"batch", "off"});
  if (const comm::MeshShape mesh = train::mesh_shape(c); mesh.tp > 1 && c.exactness != "off") {
    reject_option("exactness",
                  fmt::format("{} tensor ranks add up in another order than the engine; set it to "
                              "off",
                              mesh.tp));
  }
  if (c.rollout_quant != "none") {
    for (std::size_t begin = 0; begin <= c.rollout_quant.size();) {
      const std::size_t end = std::min(c.rollout_quant.find('+', begin), c.rollout_quant.size());
      check_one_of("rollout_quant",
                   c.rollout_quant.substr(begin, end - begin),
                   {"none", "bf16", "fp8", "fp4", "fp8kv"});
      begin = end + 1;
    }
    if (!c.model.empty()) {
      reject_option("rollout_quant", "a run from --model rolls out in the formats of its files");
    }
  }
  check_one_of("replay", c.replay, {"none", "routes", "picks", "both"});
  if (c.rollout_quant != "none" && c.exactness != "off") {
    reject_option("exactness",
                  fmt::format("weights rounded to {} give other numbers than the trainer's; "
                              "set it to off",
                              c.rollout_quant));
  }
}

}  // namespace

RlConfig default_rl_config(const std::string& task, const std::string& algo) {
  check_task(task);
  RlConfig c;
  c.task = task;
  c.algo = algo;
  if (is_abacus(task)) {
    c.thinking = "alternate";
    c.rm_type = "answer_exact";
    c.rollout_max_response_len = 64;
    c.sft_steps = 0;
    c.lr = 1e-4;
  }
  if (algo == "dapo") {
    c.eps_clip_high = 0.28;
    c.loss_agg = "token_mean";
    c.filter = "nonzero_std";
    c.max_filter_rounds = 2;
    c.on_exhausted = "shrink";
  } else if (algo == "dr_grpo") {
    c.advantage_estimator = "dr_grpo";
    c.loss_agg = "const";
  } else if (algo == "gspo") {
    c.ratio = "sequence";
    c.eps_clip = 3e-4;
    c.eps_clip_high = 4e-4;
  } else if (algo == "cispo") {
    c.ratio = "cispo";
    c.loss_agg = "token_mean";
  } else if (algo == "rloo") {
    c.advantage_estimator = "rloo";
  } else if (algo == "reinforce_plus_plus" || algo == "reinforce_plus_plus_baseline") {
    c.advantage_estimator = algo;
    c.normalize_advantages = true;
  } else if (algo != "grpo") {
    reject_option("algo",
                  fmt::format("\"{}\" is none of dapo, grpo, dr_grpo, gspo, cispo, rloo, "
                              "reinforce_plus_plus, reinforce_plus_plus_baseline",
                              algo));
  }
  c.num_steps_per_rollout = 2;
  return c;
}

void settle(RlConfig& c) {
  if (c.rollout_seed < 0) {
    c.rollout_seed = c.seed;
  }
  if (!c.rm_command.empty()) {
    c.rm_type = "external";
  } else if (!c.rm_url.empty()) {
    c.rm_type = "remote_rm";
  }
  const auto given = [](int64_t value) { return value == 0 ? std::nullopt : std::optional(value); };
  const policy::BatchSizes sizes =
      policy::solve_batch({.rollout_batch_size = given(c.rollout_batch_size),
                           .n_samples_per_prompt = given(c.n_samples_per_prompt),
                           .global_batch_size = given(c.global_batch_size),
                           .num_steps_per_rollout = given(c.num_steps_per_rollout)},
                          /*data_parallel=*/1,
                          /*dynamic_batch=*/false);
  c.rollout_batch_size = sizes.prompts;
  c.n_samples_per_prompt = sizes.samples_per_prompt;
  c.global_batch_size = sizes.samples_per_step;
  c.num_steps_per_rollout = sizes.steps_per_rollout;
  if (c.over_sampling_batch_size == 0) {
    c.over_sampling_batch_size = c.rollout_batch_size;
  }
}

void validate(const RlConfig& c) {
  check_task(c.task);
  check_start(c);
  if (c.out.empty()) {
    reject_option("out", "name a folder for checkpoints and metrics");
  }
  check_counts(c);
  if (c.global_batch_size % c.n_samples_per_prompt != 0) {
    reject_option("global_batch_size",
                  fmt::format("{} answers per step would cut a group of {} in two",
                              c.global_batch_size,
                              c.n_samples_per_prompt));
  }
  check_sampling(c);
  check_one_of("filter", c.filter, {"none", "nonzero_std"});
  check_one_of("on_exhausted", c.on_exhausted, {"fail", "shrink"});
  check_one_of("keep_order", c.keep_order, {"submit", "finish"});
  if (c.filter == "nonzero_std" && c.n_samples_per_prompt < 2) {
    reject_option("n_samples_per_prompt", "one answer has no spread that nonzero_std could keep");
  }
  check_rewards(c);
  check_algorithm(c);
  check_exactness(c);
}

policy::AdvantageConfig advantage_config(const RlConfig& c) {
  policy::AdvantageConfig out;
  out.estimator = policy::parse_estimator(c.advantage_estimator).value();
  out.grpo_std_normalization = c.grpo_std_normalization;
  out.normalize_advantages = c.normalize_advantages;
  out.gamma = c.gamma;
  out.kl_coef = c.kl_coef;
  out.kl_type = policy::parse_kl_type(c.kl_loss_type).value();
  return out;
}

policy::PolicyLossConfig loss_config(const RlConfig& c) {
  policy::PolicyLossConfig out;
  out.ratio = policy::parse_ratio_kind(c.ratio).value();
  out.aggregation.agg = policy::parse_loss_agg(c.loss_agg).value();
  out.aggregation.constant_length = static_cast<double>(c.rollout_max_response_len);
  out.eps_clip = c.eps_clip;
  out.eps_clip_high = c.eps_clip_high;
  if (c.eps_clip_c != 0.0) {
    out.eps_clip_c = c.eps_clip_c;
  }
  out.cispo_eps_high = c.cispo_eps_high;
  out.kl_loss_coef = c.kl_loss_coef;
  out.kl_loss_type = policy::parse_kl_type(c.kl_loss_type).value();
  out.use_unbiased_kl = c.use_unbiased_kl;
  out.entropy_coef = c.entropy_coef;
  out.use_opsm = c.use_opsm;
  out.opsm_delta = c.opsm_delta;
  return out;
}

policy::CorrectionConfig correction_config(const RlConfig& c) {
  const auto bounds = [](double lower, double upper) {
    return policy::RatioBounds{lower > 0.0 ? std::optional(lower) : std::nullopt, upper};
  };
  policy::CorrectionConfig out;
  out.kind = c.use_tis ? policy::CorrectionKind::kTis
                       : policy::parse_correction_kind(c.correction).value();
  out.tis_clip = c.tis_clip;
  out.tis_clip_low = c.tis_clip_low;
  out.level = policy::parse_ratio_level(c.mis_level).value();
  out.mode = policy::parse_weight_mode(c.mis_mode).value();
  out.bounds = bounds(c.mis_lower, c.mis_upper);
  out.use_rs = c.use_rs;
  out.rs_level = policy::parse_ratio_level(c.rs_level).value();
  out.rs_bounds = bounds(c.rs_lower, c.rs_upper);
  out.rs_veto_threshold = c.rs_veto_threshold;
  out.batch_normalize = c.mis_batch_normalize;
  return out;
}

bool compares_with_rollout(const RlConfig& c) {
  return c.get_mismatch_metrics || correction_config(c).kind != policy::CorrectionKind::kNone;
}

namespace {

std::string numerics_name(const RlConfig& c, bool rounded, bool rounded_rows) {
  std::string name = rounded ? "reference" : "plain";
  name += rounded_rows ? "+fp8kv" : "";
  return name + (c.exactness == "off" ? "" : "+invariant");
}

}  // namespace

std::string rollout_numerics(const RlConfig& c, bool rounded) {
  return numerics_name(c, rounded, c.rollout_quant.find("fp8kv") != std::string::npos);
}

std::string trainer_numerics(const RlConfig& c, bool rounded) {
  return numerics_name(c, rounded, /*rounded_rows=*/false);
}

int64_t groups_per_step(const RlConfig& c) {
  return c.global_batch_size / c.n_samples_per_prompt;
}

train::RunSettings rl_settings(const RlConfig& config) {
  RlConfig shown = config;
  std::set<std::string> left_out(train::mesh_option_names().begin(),
                                 train::mesh_option_names().end());
  left_out.merge(std::set<std::string>{"out",
                                       "model",
                                       "export_to",
                                       "num_rollout",
                                       "save_interval",
                                       "keep_checkpoints",
                                       "threads",
                                       "rollout_engines",
                                       "eval_interval",
                                       "eval_prompts",
                                       "eval_prompt_data",
                                       "skip_eval_before_train",
                                       "prompt_data",
                                       "rollout_wal",
                                       "save_debug_rollout_data",
                                       "eval_rm_type",
                                       "max_running",
                                       "rollout_progress_timeout_s",
                                       "reward_workers",
                                       "rm_url",
                                       "rm_command"});
  return train::option_settings(train::options_of(shown), left_out);
}

}  // namespace baleen::rl
