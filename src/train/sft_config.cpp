#include "train/sft_config.h"

#include <set>
#include <utility>

#include <fmt/format.h>

#include "train/loss_scale.h"
#include "train/nano_tasks.h"
#include "train/option_list.h"
#include "weights/mapped_file.h"

namespace baleen::train {
namespace {

void check_ranges(const SftConfig& c) {
  check_at_least("steps", static_cast<double>(c.steps), 1);
  check_at_least("seed", static_cast<double>(c.seed), 0);
  check_at_least("global_batch_size", static_cast<double>(c.global_batch_size), 1);
  check_at_least("micro_batch_tokens", static_cast<double>(c.micro_batch_tokens), 0);
  check_at_least("max_length", static_cast<double>(c.max_length), 2);
  check_at_least("pad_multiple", static_cast<double>(c.pad_multiple), 1);
  check_at_least("mtp_loss_scaling", c.mtp_loss_scaling, 0.0);
  check_at_least("balance_loss_scaling", c.balance_loss_scaling, 0.0);
  check_at_least("index_loss_scaling", c.index_loss_scaling, 0.0);
  check_at_least("expert_bias_rate", c.expert_bias_rate, 0.0);
  check_at_least("prompt_weight", c.prompt_weight, 0.0);
  check_at_least("max_bad_lines", static_cast<double>(c.max_bad_lines), 0);
  check_at_least("save_interval", static_cast<double>(c.save_interval), 0);
  check_at_least("keep_checkpoints", static_cast<double>(c.keep_checkpoints), 1);
  check_at_least("threads", static_cast<double>(c.threads), 1);
  check_at_least("shards", static_cast<double>(c.shards), 1);
  if (c.log_probs_chunk_size == 0 || c.log_probs_chunk_size < -1) {
    reject_option(
        "log_probs_chunk_size",
        fmt::format("{} is neither positive nor -1 for all rows", c.log_probs_chunk_size));
  }
}

void check_sources(const SftConfig& c) {
  if (!c.task.empty()) {
    NanoTask::check_name("task", c.task);
    if (!c.model.empty() || !c.data.empty() || c.fresh) {
      reject_option("task",
                    "the nano job brings its model and data; leave out model, data and fresh");
    }
    return;
  }
  if (c.model.empty()) {
    reject_option("model", "name a checkpoint folder, or choose a built-in job with task = sort");
  }
  if (c.data.empty()) {
    reject_option("data", "name at least one JSON-lines file");
  }
}

}  // namespace

SftConfig default_config(const std::string& task) {
  SftConfig config;
  if (!task.empty()) {
    config.task = task;
    config.steps = 160;
    config.global_batch_size = 64;
    config.lr = 1e-3;
    config.lr_warmup_steps = 20;
    config.weight_decay = 0.0;
  }
  return config;
}

void read_sft_config(const std::filesystem::path& path, SftConfig& config) {
  read_options(options_of(config), weights::read_text_file(path), path.string());
}

void validate(const SftConfig& c) {
  check_sources(c);
  if (c.output.empty()) {
    reject_option("output", "name a folder for checkpoints and metrics");
  }
  check_ranges(c);
  check(c, c.steps);
  parse_loss_aggregation(c.loss_agg);
  check_one_of("precision", c.precision, {"checkpoint", "f32", "bf16", "fp8", "fp4"});
  check_one_of("attention_qat", c.attention_qat, {"auto", "on", "off"});
  check_one_of("recompute", c.recompute, {"none", "block"});
  check_one_of("freeze_mhc", c.freeze_mhc, {"none", "comb", "all"});
  check_one_of("thinking", c.thinking, {"auto", "on", "off"});
  check_one_of("chat_profile", c.chat_profile, {"", "v4", "v4-0731", "v4.1"});
  for (const std::string& role : c.train_roles) {
    check_one_of("train_roles", role, {"system", "user", "assistant"});
  }
  const comm::MeshShape shape = mesh_shape(c);
  if (shape.world_size() > 1 && c.shards > 1) {
    reject_option("shards", "threads that share out a step are for one rank; leave it at 1");
  }
  check_on_mesh(c, shape);
  if (c.freeze_indexer != (c.index_loss_scaling == 0.0)) {
    reject_option(
        "freeze_indexer",
        c.freeze_indexer
            ? "the indexer is frozen, but index_loss_scaling asks to train it; set it to false"
            : "no gradient reaches the indexer without index_loss_scaling; set it to true");
  }
}

std::string sft_config_json(const SftConfig& config) {
  SftConfig shown = config;
  return options_json(options_of(shown));
}

RunSettings run_settings(const SftConfig& config) {
  std::set<std::string> decide_nothing = {"output",
                                          "export_to",
                                          "save_interval",
                                          "keep_checkpoints",
                                          "threads",
                                          "max_bad_lines",
                                          "model",
                                          "data"};
  decide_nothing.insert(mesh_option_names().begin(), mesh_option_names().end());
  if (config.lr_decay_style == "constant") {
    decide_nothing.insert("steps");
  }
  SftConfig shown = config;
  return option_settings(options_of(shown), decide_nothing);
}

}  // namespace baleen::train
