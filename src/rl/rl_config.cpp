#include "rl/rl_config.h"

#include <optional>
#include <set>

#include <fmt/format.h>

#include "base/error.h"
#include "policy/batch_arithmetic.h"
#include "rl/rl_options.h"
#include "train/nano_tasks.h"

namespace baleen::rl {

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
    train::reject_option("algo",
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
  if (c.async == "one-step" && !compares_with_rollout(c)) {
    c.use_rollout_logprobs = true;  // nothing else ties a step to the weights that drew
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

int64_t policy_steps(const RlConfig& c) {
  return c.num_rollout * c.num_steps_per_rollout;
}

train::RunSettings rl_settings(const RlConfig& config) {
  RlConfig shown = config;
  std::set<std::string> left_out(train::mesh_option_names().begin(),
                                 train::mesh_option_names().end());
  left_out.merge(std::set<std::string>{"out",
                                       "model",
                                       "export_to",
                                       "publish_to",
                                       "save_interval",
                                       "keep_checkpoints",
                                       "threads",
                                       "rollout_engines",
                                       "rollout_url",
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
  if (config.lr_decay_style == "constant") {
    left_out.insert("num_rollout");  // else it decides how the rate falls
  }
  return train::option_settings(train::options_of(shown), left_out);
}

}  // namespace baleen::rl
