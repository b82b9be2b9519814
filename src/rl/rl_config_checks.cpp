// What of a config is refused, and why: validate() of rl_config.h.
#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "http/client.h"
#include "rl/rl_config.h"
#include "train/nano_tasks.h"
#include "train/option_list.h"

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
      {"tis_clip_low", c.tis_clip_low},
      {"mis_lower", c.mis_lower},
      {"rs_lower", c.rs_lower},
      {"min_ess", c.min_ess},
      {"eval_interval", static_cast<double>(c.eval_interval)}};
  for (const auto& [option, value] : not_negative) {
    check_at_least(option, value, 0.0);
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

void check_engines(const RlConfig& c) {
  check_one_of("async", c.async, {"off", "one-step"});
  if (c.rollout_url.empty()) {
    return;
  }
  for (const std::string& url : c.rollout_url) {
    try {
      const http::Client checked(url, {});
    } catch (const ConfigError& error) {
      reject_option("rollout_url", error.what());
    }
  }
  if (c.model.empty()) {
    reject_option("rollout_url", "a server serves a folder; name the same one with model");
  }
  if (c.replay != "none" || c.rollout_quant != "none") {
    reject_option("rollout_url",
                  "servers compute as the trainer does; leave replay and rollout_quant at none");
  }
  if (train::mesh_shape(c).world_size() != 1) {
    reject_option("rollout_url", "the weights are sent by one rank; leave ranks out");
  }
}

}  // namespace

bool is_abacus(const std::string& task) {
  return task == "abacus";
}

void check_task(const std::string& task) {
  if (!is_abacus(task)) {
    train::NanoTask::check_name("task", task);
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
  train::check(c, policy_steps(c));
  train::check_on_mesh(c, train::mesh_shape(c));
  check_exactness(c);
  check_engines(c);
}

}  // namespace baleen::rl
