#include "train/run_sources.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <xxhash.h>

#include "base/error.h"
#include "model/initialize.h"
#include "model/load_parameters.h"
#include "text/chat_profile.h"
#include "train/data_order.h"
#include "train/nano_model.h"
#include "train/nano_tasks.h"
#include "train/sft_data.h"
#include "weights/config_json.h"

namespace baleen::train {
namespace {

namespace fs = std::filesystem;

std::string digest_text(const std::string& text) {
  return fmt::format("{:016x}", XXH3_64bits(text.data(), text.size()));
}

ops::LinearFormat dense_format(const std::string& precision) {
  return precision == "fp8" || precision == "fp4" ? ops::LinearFormat::kFp8
                                                  : ops::LinearFormat::kPlain;
}

ops::LinearFormat expert_format(const std::string& precision) {
  return precision == "fp4" ? ops::LinearFormat::kFp4 : dense_format(precision);
}

/// Sets formats and numerics by the precision; the checkpoint's own stay with "checkpoint".
void apply_precision(const SftConfig& config, RunSources& sources) {
  const ModelConfig& shape = sources.params.config;
  std::string precision = config.precision;
  if (precision == "checkpoint" && !shape.quantization_config) {
    precision = "f32";
  }
  if (precision == "fp4" &&
      (shape.hidden_size % 32 != 0 || shape.moe_intermediate_size % 32 != 0)) {
    throw ConfigError("precision: fp4 needs expert widths that are multiples of 32; choose fp8");
  }
  const bool rounded = precision != "f32";
  if (precision != "checkpoint") {
    model::set_formats(sources.params, {dense_format(precision), expert_format(precision)});
  }
  sources.rounding = rounded ? WeightRounding::kServed : WeightRounding::kNone;
  sources.numerics = rounded ? ops::Numerics::reference() : ops::Numerics::plain();
  if (config.attention_qat == "on") {
    sources.numerics.kv_s8 = true;
    sources.numerics.indexer_quant = ops::IndexerQuant::kFp4;
  } else if (config.attention_qat == "off") {
    sources.numerics.kv_s8 = false;
    sources.numerics.indexer_quant = ops::IndexerQuant::kNone;
  }
  if (config.invariant) {
    sources.numerics.summation = ops::Summation::kInvariant;
  }
}

SftDataOptions data_options(const SftConfig& config, text::ChatProfile profile) {
  SftDataOptions options;
  options.max_length = config.max_length;
  options.max_bad_lines = config.max_bad_lines;
  options.chat.profile = profile;
  options.chat.drop_thinking = config.drop_thinking;
  options.chat.other_weight = static_cast<float>(config.prompt_weight);
  options.chat.thinking = config.thinking == "on"    ? ThinkingMode::kOn
                          : config.thinking == "off" ? ThinkingMode::kOff
                                                     : ThinkingMode::kAuto;
  options.chat.trained_roles.clear();
  for (const std::string& role : config.train_roles) {
    options.chat.trained_roles.insert(*text::parse_role(role));
  }
  return options;
}

void open_task(const SftConfig& config, RunSources& sources) {
  const auto seed = static_cast<uint64_t>(config.seed);
  sources.params =
      fresh_nano(nano_config({.with_mtp = config.mtp_loss_scaling > 0.0}), seed, at::kFloat);
  sources.sample = [task = NanoTask::by_name(config.task), seed](int64_t draw) {
    return task->training_sample(seed, draw);
  };
  sources.notes.push_back(fmt::format("task {}: nano model, seed {}", config.task, seed));
}

void open_files(const SftConfig& config, RunSources& sources) {
  const fs::path folder = config.model;
  const auto tokenizer = text::Tokenizer::load(folder / "tokenizer.json");
  const ModelConfig shape = weights::read_config_json(folder / "config.json").config;
  if (tokenizer->vocab_size() > shape.vocab_size) {
    throw ConfigError(fmt::format("{}: the tokenizer has {} tokens, the model {}",
                                  config.model,
                                  tokenizer->vocab_size(),
                                  shape.vocab_size));
  }
  if (config.max_length > shape.max_position_embeddings) {
    throw ConfigError(fmt::format("max_length: {} is longer than the model's {} positions",
                                  config.max_length,
                                  shape.max_position_embeddings));
  }
  const auto profile = text::choose_chat_profile(
      folder,
      config.chat_profile.empty() ? std::nullopt : std::optional<std::string>(config.chat_profile));
  const std::vector<fs::path> files(config.data.begin(), config.data.end());
  // Shared with the function that draws from it.
  const auto data = std::make_shared<const SftData>(
      SftData::read(files, *tokenizer, data_options(config, profile.profile)));
  for (const BadLine& line : data->named_bad_lines()) {
    sources.notes.push_back("left out: " + line.text());
  }
  sources.num_samples = data->size();
  sources.num_bad_lines = data->num_bad_lines();
  sources.notes.push_back(fmt::format("data: {} samples, {} tokens, {} lines left out",
                                      data->size(),
                                      data->num_tokens(),
                                      data->num_bad_lines()));
  sources.settings["data_digest"] = fmt::format("{:016x}", data->digest());
  const auto seed = static_cast<uint64_t>(config.seed);
  sources.sample = [data, seed](int64_t draw) {
    return data->sample(drawn_sample(seed, data->size(), draw), draw);
  };
  if (config.fresh) {
    model::FreshOptions fresh;
    fresh.seed = seed;
    fresh.by_inputs = true;
    fresh.hyper_scale = 0.1;
    fresh.comb_diagonal = 3.0;
    sources.params = model::make_fresh_parameters(shape, fresh, at::TensorOptions(at::kFloat));
    if (shape.quantization_config) {
      model::set_formats(
          sources.params,
          {ops::LinearFormat::kFp8,
           shape.expert_dtype == "fp4" ? ops::LinearFormat::kFp4 : ops::LinearFormat::kFp8});
    }
  } else {
    sources.params =
        model::load_parameters(folder, at::TensorOptions(at::kFloat), /*with_mtp=*/true);
  }
}

}  // namespace

RunSources open_sources(const SftConfig& config) {
  RunSources sources;
  sources.settings = run_settings(config);
  if (config.task.empty()) {
    open_files(config, sources);
  } else {
    open_task(config, sources);
  }
  if (config.mtp_loss_scaling > 0.0 && sources.params.mtp.size() != 1) {
    throw ConfigError(fmt::format("mtp_loss_scaling: the model has {} MTP blocks, 1 is supported",
                                  sources.params.mtp.size()));
  }
  apply_precision(config, sources);
  sources.settings["model_shape"] = digest_text(weights::write_config_json(sources.params.config));
  return sources;
}

TrainerConfig trainer_config(const SftConfig& config, const ops::Numerics& numerics) {
  TrainerConfig out;
  out.objective.numerics = numerics;
  out.objective.aggregation = parse_loss_aggregation(config.loss_agg);
  out.objective.constant_length = static_cast<double>(config.max_length);
  out.objective.mtp_weight = config.mtp_loss_scaling;
  out.objective.balance_weight = config.balance_loss_scaling;
  out.objective.index_weight = config.index_loss_scaling;
  out.objective.chunk_rows = config.log_probs_chunk_size;
  out.objective.recompute = config.recompute == "block" ? Recompute::kBlock : Recompute::kNone;
  apply(config, config.steps, out);
  out.bias_rate = config.expert_bias_rate;
  out.micro_batch_tokens = config.micro_batch_tokens;
  out.pad_multiple = config.pad_multiple;
  out.shards = config.shards;
  return out;
}

FreezeConfig freeze_config(const SftConfig& config) {
  FreezeConfig freeze;
  freeze.gate = config.freeze_gate;
  freeze.indexer = config.freeze_indexer;
  freeze.mtp = config.mtp_loss_scaling == 0.0;
  freeze.mixing = config.freeze_mhc == "all"    ? FreezeMixing::kAll
                  : config.freeze_mhc == "comb" ? FreezeMixing::kComb
                                                : FreezeMixing::kNone;
  freeze.patterns = config.freeze_params;
  return freeze;
}

}  // namespace baleen::train
