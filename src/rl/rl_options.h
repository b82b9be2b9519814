#pragma once
// Name and help of every option of `baleen rl`: one list for the command line, the config file and
// the record of a run. For train/option_list.h.
//
//   train::OptionList options = train::options_of(config);

#include <concepts>
#include <type_traits>

#include "rl/rl_config.h"
#include "train/option_list.h"

namespace baleen::rl {

/// visit(name, field, help) for every option, in the order of the help.
template <class Config, class Visit>
  requires std::same_as<std::remove_const_t<Config>, RlConfig>
void for_each_option(Config& c, Visit&& visit) {
  visit("model",
        c.model,
        "checkpoint folder to start from, with its tokenizer; empty: the nano model");
  visit("task",
        c.task,
        "sort, parity, add or recall: problems that the nano model is made for; abacus: sums and "
        "differences in the chat format of --model");
  visit("algo",
        c.algo,
        "recipe that sets the defaults below: dapo, grpo, dr_grpo, gspo, cispo, rloo, "
        "reinforce_plus_plus, reinforce_plus_plus_baseline");
  visit("prompt_data",
        c.prompt_data,
        "JSON-lines files of prompts instead of the task's own stream; FILE@[A:B] takes a slice");
  visit("eval_prompt_data",
        c.eval_prompt_data,
        "JSON-lines files for the evaluation; empty: the task's");
  visit("input_key", c.input_key, "key of the prompt in a line");
  visit("label_key", c.label_key, "key of the right answer; empty: there is none");
  visit("metadata_key", c.metadata_key, "key of an object that the verifier gets");
  visit("rollout_shuffle", c.rollout_shuffle, "another order of the prompts in every epoch");
  visit("rollout_max_prompt_len",
        c.rollout_max_prompt_len,
        "tokens; longer prompts are left out and counted; 0: no limit");
  visit("apply_chat_template",
        c.apply_chat_template,
        "prompts are what a user says, or lists of messages, in the prompt format of --model");
  visit("thinking", c.thinking, "off, on or alternate: prompts in thinking mode");
  visit("chat_profile", c.chat_profile, "prompt format; empty: as the checkpoint says");
  visit("out", c.out, "folder for checkpoints, metrics.jsonl and pictures; continues there");
  visit("export_to", c.export_to, "folder for the trained model in the published format");
  visit("publish_to",
        c.publish_to,
        "folder for every version of the weights (v3) and what changed (v3.delta), for engines of "
        "other processes; the last two stay");
  visit("seed", c.seed, "of weights, warm-up and rollouts");
  visit("rollout_seed", c.rollout_seed, "of prompts and draws; -1: as seed");
  visit("sft_steps", c.sft_steps, "supervised steps before the first rollout; 0: none");
  visit("sft_batch_size", c.sft_batch_size, "problems per supervised step");
  visit("sft_lr", c.sft_lr, "learning rate of the supervised steps");
  visit("sft_warmup_steps", c.sft_warmup_steps, "linear warm-up of that rate, steps");
  visit("num_rollout", c.num_rollout, "rollouts of the whole run");
  visit("rollout_batch_size",
        c.rollout_batch_size,
        "prompts per rollout; of these four numbers one may be 0 and follows from the others");
  visit("n_samples_per_prompt", c.n_samples_per_prompt, "answers per prompt");
  visit("global_batch_size", c.global_batch_size, "answers per optimizer step");
  visit("num_steps_per_rollout", c.num_steps_per_rollout, "optimizer steps per rollout");
  visit("micro_batch_tokens", c.micro_batch_tokens, "tokens per forward; 0: all of a step");
  visit("rollout_temperature", c.rollout_temperature, "of the draws");
  visit("rollout_top_p", c.rollout_top_p, "1: no filter, as the losses need it");
  visit("rollout_top_k", c.rollout_top_k, "-1: no filter, as the losses need it");
  visit("rollout_max_response_len", c.rollout_max_response_len, "tokens of an answer");
  visit("over_sampling_batch_size",
        c.over_sampling_batch_size,
        "prompts submitted whenever too few are pending; 0: rollout_batch_size");
  visit("filter",
        c.filter,
        "none, or nonzero_std: drop prompts whose answers are all right or all wrong");
  visit("max_filter_rounds", c.max_filter_rounds, "how often a rollout may submit prompts");
  visit("on_exhausted", c.on_exhausted, "fail, or shrink: train on the prompts that were kept");
  visit("keep_order",
        c.keep_order,
        "submit: the first prompts submitted that pass, the same in every run; finish: the first "
        "that are done");
  visit("partial_rollout", c.partial_rollout, "answers that are cut off go on in the next rollout");
  visit("mask_offpolicy_in_partial_rollout",
        c.mask_offpolicy_in_partial_rollout,
        "do not train tokens of older weights");
  visit("drop_all_truncated",
        c.drop_all_truncated,
        "drop prompts whose answers all hit the length limit");
  visit("rollout_progress_timeout_s",
        c.rollout_progress_timeout_s,
        "seconds without a finished answer that end the run");
  visit("max_sample_retries", c.max_sample_retries, "of an answer that failed");
  visit("max_running", c.max_running, "answers generated at once");
  visit("rollout_cache_mb",
        c.rollout_cache_mb,
        "MiB of shared prefix cache; 0: none, answers keep their own state");
  visit(
      "rollout_wal", c.rollout_wal, "log every token, so that an ended run does not draw it again");
  visit("save_debug_rollout_data",
        c.save_debug_rollout_data,
        "folder for one column file per rollout; empty: none");
  visit("load_debug_rollout_data",
        c.load_debug_rollout_data,
        "folder of such files: train on those rollouts instead of drawing them");
  visit("rm_type",
        c.rm_type,
        "verifier: exact, math, dapo, deepscaler, gpqa, f1, regex, json_schema, random, "
        "deterministic_random, perhaps with boxed_ or answer_ before it");
  visit("eval_rm_type", c.eval_rm_type, "verifier of the evaluation; empty: rm_type");
  visit("rm_command",
        c.rm_command,
        "a verifier of your own: program and arguments; reads and writes JSON lines");
  visit("rm_url", c.rm_url, "a verifier of your own: address that is asked by POST");
  visit("rm_pattern", c.rm_pattern, "regular expression of rm_type regex; empty: the label");
  visit("rm_schema", c.rm_schema, "JSON schema of rm_type json_schema; empty: the label");
  visit("reward_workers", c.reward_workers, "verifications at once");
  visit("reward_timeout_s", c.reward_timeout_s, "seconds for one");
  visit("on_reward_error", c.on_reward_error, "zero, drop_group or fail");
  visit("overlong_buffer_len",
        c.overlong_buffer_len,
        "tokens before the length limit in which the reward falls; 0: none");
  visit("overlong_penalty_factor", c.overlong_penalty_factor, "reward lost at the limit");
  visit("mask_truncated", c.mask_truncated, "do not train answers that hit the limit");
  visit("advantage_estimator",
        c.advantage_estimator,
        "grpo, dr_grpo, rloo, reinforce_plus_plus, reinforce_plus_plus_baseline");
  visit("grpo_std_normalization", c.grpo_std_normalization, "divide by the deviation of the group");
  visit("normalize_advantages", c.normalize_advantages, "whiten over all tokens of a rollout");
  visit("gamma", c.gamma, "discount of reinforce_plus_plus");
  visit("ratio", c.ratio, "token, sequence, sequence_token, cispo or none");
  visit("eps_clip", c.eps_clip, "the ratio is clipped below 1 - this");
  visit("eps_clip_high", c.eps_clip_high, "and above 1 + this");
  visit("eps_clip_c", c.eps_clip_c, "dual clip, above 1; 0: none");
  visit("cispo_eps_high", c.cispo_eps_high, "cap of the detached ratio of cispo is 1 + this");
  visit("loss_agg", c.loss_agg, "sample_mean, token_mean or const");
  visit("kl_coef", c.kl_coef, "KL to the start in the reward (reinforce_plus_plus*)");
  visit("kl_loss_coef", c.kl_loss_coef, "KL to the start in the loss");
  visit("kl_loss_type", c.kl_loss_type, "k1, k2, k3 or low_var_kl");
  visit("use_unbiased_kl", c.use_unbiased_kl, "weigh the KL by the ratio");
  visit("entropy_coef", c.entropy_coef, "of the entropy in the loss");
  visit("use_opsm", c.use_opsm, "mask answers with negative advantage that drifted");
  visit("opsm_delta", c.opsm_delta, "from where on");
  visit("advantage_scale",
        c.advantage_scale,
        "factor of the advantages; -1 is the control that must fail");
  visit("exactness",
        c.exactness,
        "batch: engine and trainer give equal bits; off: the faster kernels");
  visit("rollout_quant",
        c.rollout_quant,
        "none, or what the rollout's copy is rounded to, joined by +: bf16, fp8, fp4 (weights), "
        "fp8kv (rows and entries)");
  visit("replay",
        c.replay,
        "none, routes, picks or both: choices of the rollout that the trainer repeats");
  visit("use_rollout_logprobs",
        c.use_rollout_logprobs,
        "the rollout's log-probabilities anchor the ratio");
  visit("use_tis", c.use_tis, "weigh tokens by trainer over rollout, truncated");
  visit("tis_clip", c.tis_clip, "upper bound of that weight");
  visit("tis_clip_low", c.tis_clip_low, "lower bound of that weight");
  visit("correction",
        c.correction,
        "none, tis (the same as use_tis), icepop (0 outside tis_clip_low and tis_clip) or mis");
  visit("mis_level", c.mis_level, "what mis weighs: token, sequence or geometric");
  visit("mis_mode", c.mis_mode, "what its bounds do: truncate, clip or mask");
  visit("mis_upper", c.mis_upper, "upper bound of the weight of mis");
  visit("mis_lower", c.mis_lower, "its lower bound; 0: 1 / mis_upper");
  visit("use_rs", c.use_rs, "mis: drop what leaves bounds of its own");
  visit("rs_level", c.rs_level, "of what is dropped: token, sequence or geometric");
  visit("rs_upper", c.rs_upper, "upper bound of what is kept");
  visit("rs_lower", c.rs_lower, "its lower bound; 0: 1 / rs_upper");
  visit("rs_veto_threshold",
        c.rs_veto_threshold,
        "mis: an answer with a token whose ratio is below is dropped; 0: none");
  visit("mis_batch_normalize", c.mis_batch_normalize, "mis: divide weights by their mean");
  visit("get_mismatch_metrics", c.get_mismatch_metrics, "measure train/mis_* without a correction");
  visit("min_ess",
        c.min_ess,
        "end the run when the effective share of samples is below for three steps");
  train::for_each_optimizer_option(c, visit);
  visit("freeze_gate", c.freeze_gate, "router matrices");
  visit("freeze_indexer", c.freeze_indexer, "must be on: no policy gradient reaches it");
  visit(
      "eval_interval", c.eval_interval, "rollouts between evaluations; 0: at start and end alone");
  visit("eval_prompts", c.eval_prompts, "prompts of an evaluation");
  visit("skip_eval_before_train", c.skip_eval_before_train, "no evaluation of the start");
  visit("save_interval", c.save_interval, "rollouts between checkpoints; the end is always saved");
  visit("keep_checkpoints", c.keep_checkpoints, "newest ones that are kept");
  visit("threads", c.threads, "of one operator");
  visit("shards",
        c.shards,
        "threads that share out an optimizer step; their number decides the last bits");
  visit("rollout_engines",
        c.rollout_engines,
        "engines that share out the answers, each on a thread of its own");
  visit("async",
        c.async,
        "off, or one-step: a rollout is drawn while the one before is trained, by weights that are "
        "one step older; the rollout's log-probabilities then anchor the ratio");
  visit("rollout_url",
        c.rollout_url,
        "addresses of servers (baleen serve) that draw the answers instead of this process");
  train::for_each_mesh_option(c, visit);
}

}  // namespace baleen::rl
