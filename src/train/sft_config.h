#pragma once
// Everything `baleen train` can be told, with one list of names for the command line, the JSON file
// and the record of the run. Filled once at start, then read.
//
//   SftConfig config = default_config(task);
//   read_sft_config("train.json", config);       // then flags on top
//   validate(config);

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <string>
#include <type_traits>
#include <vector>

#include "train/mesh_options.h"
#include "train/optimizer_options.h"
#include "train/run_settings.h"

namespace baleen::train {

struct SftConfig : OptimizerOptions, MeshOptions {
  // What is trained, on what
  std::string model;              // checkpoint folder with tokenizer; empty with a task
  bool fresh = false;             // random weights for the folder's config.json
  std::string task;               // the nano model on problems that it makes itself: nano_tasks.h
  std::vector<std::string> data;  // JSON-lines files
  std::string output;             // folder for checkpoints, metrics.jsonl, loss.svg
  std::string export_to;          // folder for the trained model in the published format
  int64_t seed = 1234;

  // Length and batches
  int64_t steps = 100;
  int64_t global_batch_size = 64;      // samples per step
  int64_t micro_batch_tokens = 16384;  // fed tokens per forward; 0: all of a step
  int64_t max_length = 4096;           // tokens of a sample
  int64_t pad_multiple = 1;

  // Loss
  std::string loss_agg = "token_mean";
  double mtp_loss_scaling = 0.0;
  double balance_loss_scaling = 0.0;
  double index_loss_scaling = 0.0;
  double expert_bias_rate = 0.0;
  int64_t log_probs_chunk_size = 1024;

  // Numbers and memory
  std::string precision = "checkpoint";
  std::string attention_qat = "auto";
  bool invariant = false;
  std::string recompute = "none";
  int64_t threads = 1;
  int64_t shards = 1;

  // Frozen parts
  bool freeze_gate = false;
  bool freeze_indexer = true;
  std::string freeze_mhc = "none";
  std::vector<std::string> freeze_params;

  // Data
  std::string chat_profile;  // empty: as the checkpoint says
  std::string thinking = "auto";
  bool drop_thinking = true;
  std::vector<std::string> train_roles = {"assistant"};
  double prompt_weight = 0.0;
  int64_t max_bad_lines = 0;

  // Saving
  int64_t save_interval = 0;  // steps; 0: at the end alone
  int64_t keep_checkpoints = 2;
};

/// visit(name, field, help) for every option, in the order of the help.
template <class Config, class Visit>
  requires std::same_as<std::remove_const_t<Config>, SftConfig>
void for_each_option(Config& c, Visit&& visit) {
  visit("model", c.model, "checkpoint folder to start from, with its tokenizer");
  visit("fresh", c.fresh, "random weights for the config.json of --model");
  visit(
      "task", c.task, "sort, parity, add or recall: train the built-in nano model; needs no files");
  visit("data", c.data, "JSON-lines files: {\"messages\": ...} or {\"prompt\", \"completion\"}");
  visit("output", c.output, "folder for checkpoints, metrics.jsonl and loss.svg; continues there");
  visit("export_to", c.export_to, "folder for the trained model in the published format");
  visit("seed", c.seed, "of data order and fresh weights");
  visit("steps", c.steps, "optimizer steps of the whole run");
  visit("global_batch_size", c.global_batch_size, "samples per step");
  visit("micro_batch_tokens", c.micro_batch_tokens, "tokens per forward; 0: all of a step");
  visit("max_length", c.max_length, "tokens of a sample; longer ones are bad lines");
  visit("pad_multiple", c.pad_multiple, "lengths rounded up to share a batch; 1: none");
  for_each_optimizer_option(c, visit);
  visit("loss_agg", c.loss_agg, "token_mean, sample_mean or const (per max_length tokens)");
  visit("mtp_loss_scaling", c.mtp_loss_scaling, "weight of the MTP loss; 0: the block is frozen");
  visit("balance_loss_scaling", c.balance_loss_scaling, "weight of the experts' balance loss");
  visit("index_loss_scaling", c.index_loss_scaling, "weight of the indexer's own objective");
  visit("expert_bias_rate", c.expert_bias_rate, "step of the router biases towards even loads");
  visit("log_probs_chunk_size", c.log_probs_chunk_size, "rows of logits held at a time; -1: all");
  visit("precision",
        c.precision,
        "checkpoint, f32, bf16, fp8 or fp4: what the forward rounds weights and activations to");
  visit(
      "attention_qat", c.attention_qat, "auto, on or off: round KV rows as the cache stores them");
  visit("invariant", c.invariant, "sums in one order per token, as an invariant engine has them");
  visit("recompute", c.recompute, "none or block: run blocks again in backward to save memory");
  visit("threads", c.threads, "of one operator");
  visit("shards", c.shards, "threads that share out a step; their number decides the last bits");
  for_each_mesh_option(c, visit);
  visit("freeze_gate", c.freeze_gate, "router matrices");
  visit("freeze_indexer", c.freeze_indexer, "must be off with index_loss_scaling, else on");
  visit("freeze_mhc", c.freeze_mhc, "none, comb or all of the hyper-connections' mixing");
  visit("freeze_params", c.freeze_params, "regular expressions that match whole parameter names");
  visit("chat_profile", c.chat_profile, "prompt format; empty: as the checkpoint says");
  visit("thinking", c.thinking, "auto, on or off: render conversations in thinking mode");
  visit("drop_thinking", c.drop_thinking, "leave out reasoning of earlier turns, as serving does");
  visit("train_roles", c.train_roles, "system, user, assistant: whose turns are trained");
  visit("prompt_weight", c.prompt_weight, "weight of all other tokens as targets");
  visit("max_bad_lines", c.max_bad_lines, "lines of the data that may be unusable");
  visit("save_interval", c.save_interval, "steps between checkpoints; 0: at the end alone");
  visit("keep_checkpoints", c.keep_checkpoints, "newest ones that are kept");
}

/// The defaults of a task: 160 steps of 64 problems. Without one, the general defaults.
SftConfig default_config(const std::string& task);

/// Sets the fields that the file names. Throws SystemError, or ConfigError naming file and key: an
/// unknown key with the nearest known one, a value of the wrong type.
void read_sft_config(const std::filesystem::path& path, SftConfig& config);

/// Throws ConfigError: one sentence with the option, what came and what to do.
void validate(const SftConfig& config);

/// The whole config as JSON text, one option a line.
std::string sft_config_json(const SftConfig& config);

/// The options that decide what the weights become, as text.
RunSettings run_settings(const SftConfig& config);

}  // namespace baleen::train
