#include "weights/config_json.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <boost/json.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/log.h"
#include "weights/json_fields.h"
#include "weights/mapped_file.h"

namespace baleen::weights {
namespace {

namespace json = boost::json;

constexpr int64_t kC4Ratio = 4;      // published value of a kC4 layer
constexpr int64_t kC128Ratio = 128;  // published value of a kC128 layer
constexpr const char* kSwaName = "sliding_attention";
constexpr const char* kC4Name = "compressed_sparse_attention";
constexpr const char* kC128Name = "heavily_compressed_attention";
constexpr const char* kHashName = "hash_moe";
constexpr const char* kMoeName = "moe";

/// Key names of the reference program and of converters.
const std::multimap<std::string, std::string>& aliases() {
  static const std::multimap<std::string, std::string> kAliases = {
      {"dim", "hidden_size"},
      {"moe_inter_dim", "moe_intermediate_size"},
      {"n_layers", "num_hidden_layers"},
      {"n_mtp_layers", "num_nextn_predict_layers"},
      {"n_hash_layers", "num_hash_layers"},
      {"n_heads", "num_attention_heads"},
      {"n_activated_experts", "num_experts_per_tok"},
      {"num_local_experts", "n_routed_experts"},
      {"score_func", "scoring_func"},
      {"route_scale", "routed_scaling_factor"},
      {"rope_head_dim", "qk_rope_head_dim"},
      {"window_size", "sliding_window"},
      {"norm_eps", "rms_norm_eps"},
      {"beta_fast", "rope_scaling.beta_fast"},
      {"beta_slow", "rope_scaling.beta_slow"},
  };
  return kAliases;
}

/// Keys that say nothing about the forward pass.
constexpr const char* kHarmlessKeys[] = {
    "architectures",
    "torch_dtype",
    "dtype",
    "transformers_version",
    "use_cache",
    "attention_dropout",
    "pad_token_id",
    "model_type",
    "_name_or_path",
    "output_router_logits",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "aux_loss_alpha",
    "seq_aux",
    "ep_size",
    "pretraining_tp",
    "auto_map",
    "temperature",
    "scale_fmt",
    "scale_dtype",
    "return_dict",
    "output_attentions",
    "output_hidden_states",
    "id2label",
    "label2id",
    "problem_type",
    "is_encoder_decoder",
    "chunk_size_feed_forward",
    "max_batch_size",
    "max_seq_len",
    "tokenizer_class",
};

/// Published names of the values that this program fixes.
void check_fixed_values(JsonFields& fields) {
  fields.expect("model_type", "deepseek_v4");
  fields.expect("hidden_act", "silu");
  fields.expect("scoring_func", "sqrtsoftplus");
  fields.expect("topk_method", "noaux_tc");
  fields.expect("norm_topk_prob", true);
  fields.expect("tie_word_embeddings", false);
  fields.expect("attention_bias", false);
  fields.expect("mlp_bias", false);
  fields.expect("num_key_value_heads", 1);
}

YarnConfig read_yarn(JsonFields& scaling) {
  YarnConfig yarn;
  yarn.factor = scaling.number("factor");
  yarn.original_max_position_embeddings = scaling.integer("original_max_position_embeddings");
  yarn.beta_fast = scaling.number("beta_fast", yarn.beta_fast);
  yarn.beta_slow = scaling.number("beta_slow", yarn.beta_slow);
  if (yarn.factor <= 0 || yarn.original_max_position_embeddings <= 0) {
    scaling.refuse("factor", "factor and original_max_position_embeddings must be positive");
  }
  for (const char* key : {"mscale", "mscale_all_dim", "attention_factor"}) {
    if (scaling.has(key) && scaling.number(key) != 1.0) {
      scaling.refuse(key, "only 1 is supported");
    }
  }
  return yarn;
}

/// One dictionary of RoPE settings: base, and YaRN where its type says so.
struct RopeEntry {
  std::optional<double> theta;
  std::optional<YarnConfig> yarn;
  std::optional<double> partial_rotary_factor;
};

RopeEntry read_rope_entry(const json::object& object, const std::string& where) {
  JsonFields fields(object, where, {{"type", "rope_type"}});
  RopeEntry entry;
  if (fields.has("rope_theta")) {
    entry.theta = fields.number("rope_theta");
  }
  if (fields.has("partial_rotary_factor")) {
    entry.partial_rotary_factor = fields.number("partial_rotary_factor");
  }
  const std::string type = fields.text("rope_type").value_or("default");
  if (type == "yarn") {
    entry.yarn = read_yarn(fields);
  } else if (type != "default") {
    fields.refuse("rope_type", fmt::format("expected \"yarn\" or \"default\", got \"{}\"", type));
  }
  return entry;
}

void read_rope(JsonFields& fields, ModelConfig& config) {
  std::optional<double> partial;
  if (fields.has("partial_rotary_factor")) {
    partial = fields.number("partial_rotary_factor");
  }
  if (fields.has("rope_theta")) {
    config.rope_theta = fields.number("rope_theta");
  }
  if (fields.has("compress_rope_theta")) {
    config.compress_rope_theta = fields.number("compress_rope_theta");
  }
  const auto take_plain = [&](const char* key) {
    const json::object* object = fields.object(key);
    if (object == nullptr) {
      return;
    }
    const RopeEntry entry = read_rope_entry(*object, fields.where() + ": " + key);
    config.rope_theta = entry.theta.value_or(config.rope_theta);
    config.yarn = entry.yarn ? entry.yarn : config.yarn;
    partial = entry.partial_rotary_factor ? entry.partial_rotary_factor : partial;
  };
  take_plain("rope_scaling");
  const json::object* parameters = fields.object("rope_parameters");
  if (parameters != nullptr && (parameters->contains("main") || parameters->contains("compress"))) {
    const std::string where = fields.where() + ": rope_parameters";
    JsonFields parts(*parameters, where);
    if (const json::object* main = parts.object("main")) {
      const RopeEntry entry = read_rope_entry(*main, where + ".main");
      if (entry.yarn) {
        parts.refuse("main", "YaRN is applied to the compressed layers only");
      }
      config.rope_theta = entry.theta.value_or(config.rope_theta);
      partial = entry.partial_rotary_factor ? entry.partial_rotary_factor : partial;
    }
    if (const json::object* compress = parts.object("compress")) {
      const RopeEntry entry = read_rope_entry(*compress, where + ".compress");
      config.compress_rope_theta = entry.theta.value_or(config.compress_rope_theta);
      config.yarn = entry.yarn;
      partial = entry.partial_rotary_factor ? entry.partial_rotary_factor : partial;
    }
  } else {
    take_plain("rope_parameters");
  }
  if (!config.yarn && fields.has("rope_factor")) {  // reference program: flat keys
    YarnConfig yarn;
    yarn.factor = fields.number("rope_factor");
    yarn.original_max_position_embeddings = fields.integer("original_seq_len");
    yarn.beta_fast = fields.number("rope_scaling.beta_fast", yarn.beta_fast);
    yarn.beta_slow = fields.number("rope_scaling.beta_slow", yarn.beta_slow);
    config.yarn = yarn;
  }
  if (fields.has("qk_rope_head_dim")) {
    config.qk_rope_head_dim = fields.integer("qk_rope_head_dim");
  } else if (partial) {
    const double width = *partial * static_cast<double>(config.head_dim);
    config.qk_rope_head_dim = static_cast<int64_t>(std::lround(width));
    if (std::abs(width - std::round(width)) > 1e-6) {
      fields.refuse("partial_rotary_factor",
                    fmt::format("{} of head_dim {} is no integer", *partial, config.head_dim));
    }
  } else {
    fields.refuse("qk_rope_head_dim", "the key is missing (and so is partial_rotary_factor)");
  }
}

void read_quantization(JsonFields& fields, ModelConfig& config) {
  if (const json::object* object = fields.object("quantization_config")) {
    JsonFields parts(*object, fields.where() + ": quantization_config");
    parts.expect("quant_method", "fp8");
    parts.expect("fmt", "e4m3");
    parts.expect("scale_fmt", "ue8m0");
    parts.expect("activation_scheme", "dynamic");
    QuantizationConfig quantization;
    if (parts.has("weight_block_size")) {
      const std::vector<int64_t> block = parts.integers("weight_block_size");
      if (block !=
          std::vector<int64_t>{quantization.weight_block_rows, quantization.weight_block_cols}) {
        parts.refuse("weight_block_size",
                     fmt::format("only [128, 128] is supported, got [{}]", fmt::join(block, ", ")));
      }
    }
    config.quantization_config = quantization;
  } else if (fields.has("quantization_config")) {
    fields.refuse("quantization_config", "expected an object");
  } else if (fields.text("dtype") == "fp8") {  // reference program
    config.quantization_config = QuantizationConfig{};
  }
  const std::string experts = fields.text("expert_dtype").value_or("");
  if (experts == "fp4" || experts == "fp8") {
    config.expert_dtype = experts;
  } else if (!experts.empty() && experts != "bf16" && experts != "bfloat16") {
    fields.refuse("expert_dtype", fmt::format("expected fp4, fp8 or bf16, got {}", experts));
  }
}

LayerSpec published_layer(JsonFields& fields, std::size_t index, int64_t ratio) {
  LayerSpec layer;
  layer.ratio = ratio;
  if (ratio == kC4Ratio) {
    layer.kind = LayerKind::kC4;
  } else if (ratio == kC128Ratio) {
    layer.kind = LayerKind::kC128;
  } else if (ratio != 0) {
    fields.refuse("compress_ratios",
                  fmt::format("entry {} is {}, expected 0, 4 or 128", index, ratio));
  }
  return layer;
}

void read_published_layers(JsonFields& fields, ModelConfig& config) {
  const std::vector<int64_t> ratios = fields.integers("compress_ratios");
  const int64_t expected = config.num_hidden_layers + config.num_nextn_predict_layers;
  if (static_cast<int64_t>(ratios.size()) < expected) {
    fields.refuse("compress_ratios",
                  fmt::format("expected at least {} entries (num_hidden_layers {} + "
                              "num_nextn_predict_layers {}), found {}",
                              expected,
                              config.num_hidden_layers,
                              config.num_nextn_predict_layers,
                              ratios.size()));
  }
  for (std::size_t i = 0; i < ratios.size(); ++i) {
    const LayerSpec layer = published_layer(fields, i, ratios[i]);
    if (static_cast<int64_t>(i) >= config.num_hidden_layers && layer.ratio != 0) {
      fields.refuse(
          "compress_ratios",
          fmt::format(
              "entry {} belongs to an MTP or drafter block and must be 0, got {}", i, layer.ratio));
    }
    if (static_cast<int64_t>(i) < expected) {
      config.layers.push_back(layer);
    }
  }
}

void read_port_layers(JsonFields& fields, ModelConfig& config) {
  const std::vector<std::string> types = fields.texts("layer_types");
  if (static_cast<int64_t>(types.size()) != config.num_hidden_layers) {
    fields.refuse("layer_types",
                  fmt::format("expected {} entries (num_hidden_layers), found {}",
                              config.num_hidden_layers,
                              types.size()));
  }
  std::map<std::string, int64_t> rates = {{kC4Name, kC4Ratio}, {kC128Name, kC128Ratio}};
  if (const json::object* object = fields.object("compress_rates")) {
    JsonFields parts(*object, fields.where() + ": compress_rates");
    for (auto& [name, rate] : rates) {
      rate = parts.integer(name, rate);
      if (rate <= 0) {
        parts.refuse(name, fmt::format("must be positive, got {}", rate));
      }
    }
    for (const std::string& key : parts.unused()) {
      parts.refuse(key, "unknown layer type");
    }
  }
  for (const std::string& type : types) {
    LayerSpec layer;
    if (type == kC4Name) {
      layer = {LayerKind::kC4, rates[kC4Name], false};
    } else if (type == kC128Name) {
      layer = {LayerKind::kC128, rates[kC128Name], false};
    } else if (type != kSwaName) {
      fields.refuse("layer_types", fmt::format("unknown layer type \"{}\"", type));
    }
    config.layers.push_back(layer);
  }
  config.layers.resize(
      static_cast<std::size_t>(config.num_hidden_layers + config.num_nextn_predict_layers));
}

void read_hash_layers(JsonFields& fields, ModelConfig& config) {
  if (fields.has("mlp_layer_types")) {
    const std::vector<std::string> types = fields.texts("mlp_layer_types");
    if (static_cast<int64_t>(types.size()) != config.num_hidden_layers) {
      fields.refuse("mlp_layer_types",
                    fmt::format("expected {} entries (num_hidden_layers), found {}",
                                config.num_hidden_layers,
                                types.size()));
    }
    for (std::size_t i = 0; i < types.size(); ++i) {
      if (types[i] != kHashName && types[i] != kMoeName) {
        fields.refuse("mlp_layer_types", fmt::format("unknown layer type \"{}\"", types[i]));
      }
      config.layers[i].hash_routed = types[i] == kHashName;
    }
    fields.ignore("num_hash_layers");
    return;
  }
  const int64_t count = fields.integer("num_hash_layers");
  if (count < 0 || count > config.num_hidden_layers) {
    fields.refuse(
        "num_hash_layers",
        fmt::format(
            "expected 0 to num_hidden_layers ({}), got {}", config.num_hidden_layers, count));
  }
  for (int64_t i = 0; i < count; ++i) {
    config.layers[static_cast<std::size_t>(i)].hash_routed = true;
  }
}

int64_t first_integer(JsonFields& fields, std::string_view key, int64_t fallback) {
  const json::value* value = fields.find(key);
  if (value != nullptr && value->is_array()) {  // several end tokens: the first is the main one
    const std::vector<int64_t> all = fields.integers(key);
    return all.empty() ? fallback : all.front();
  }
  return fields.integer(key, fallback);
}

}  // namespace

ParsedConfig parse_config_json(const std::string& text, const std::string& where) {
  const json::object object = parse_json_object(text, where);
  JsonFields fields(object, where, aliases());
  ParsedConfig parsed;
  ModelConfig& config = parsed.config;
  check_fixed_values(fields);
  config.vocab_size = fields.integer("vocab_size");
  config.hidden_size = fields.integer("hidden_size");
  config.num_hidden_layers = fields.integer("num_hidden_layers");
  config.num_nextn_predict_layers = fields.integer("num_nextn_predict_layers", 0);
  config.num_attention_heads = fields.integer("num_attention_heads");
  config.head_dim = fields.integer("head_dim");
  config.q_lora_rank = fields.integer("q_lora_rank");
  config.o_groups = fields.integer("o_groups");
  config.o_lora_rank = fields.integer("o_lora_rank");
  config.sliding_window = fields.integer("sliding_window");
  config.n_routed_experts = fields.integer("n_routed_experts");
  config.num_experts_per_tok = fields.integer("num_experts_per_tok");
  config.n_shared_experts = fields.integer("n_shared_experts", 1);
  config.moe_intermediate_size = fields.integer("moe_intermediate_size");
  config.routed_scaling_factor = fields.number("routed_scaling_factor");
  config.swiglu_limit = fields.number("swiglu_limit");
  config.hc_mult = fields.integer("hc_mult");
  config.hc_sinkhorn_iters = fields.integer("hc_sinkhorn_iters");
  config.hc_eps = fields.number("hc_eps", config.hc_eps);
  config.rms_norm_eps = fields.number("rms_norm_eps", config.rms_norm_eps);
  config.bos_token_id = first_integer(fields, "bos_token_id", 0);
  config.eos_token_id = first_integer(fields, "eos_token_id", 1);
  config.initializer_range = fields.number("initializer_range", config.initializer_range);
  for (const auto& member : object) {
    if (std::string_view(member.key()).starts_with("dspark_")) {
      parsed.has_dspark_keys = true;
      fields.ignore(member.key());
    }
  }
  if (config.num_hidden_layers <= 0 || config.num_nextn_predict_layers < 0) {
    fields.refuse("num_hidden_layers",
                  "must be positive, and num_nextn_predict_layers not below 0");
  }
  read_rope(fields, config);
  const int64_t trained_context =
      config.yarn
          ? static_cast<int64_t>(config.yarn->factor *
                                 static_cast<double>(config.yarn->original_max_position_embeddings))
          : 0;
  config.max_position_embeddings =
      fields.integer("max_position_embeddings",
                     trained_context > 0 ? std::optional<int64_t>(trained_context) : std::nullopt);
  read_quantization(fields, config);
  parsed.port_form = !fields.has("compress_ratios");
  if (!parsed.port_form) {
    read_published_layers(fields, config);
    fields.ignore("layer_types");
    fields.ignore("compress_rates");
  } else if (fields.has("layer_types")) {
    read_port_layers(fields, config);
  } else {
    fields.refuse("compress_ratios", "the key is missing (and so is layer_types)");
  }
  read_hash_layers(fields, config);
  if (config.count_layers(LayerKind::kC4) > 0) {
    config.index_n_heads = fields.integer("index_n_heads");
    config.index_head_dim = fields.integer("index_head_dim");
    config.index_topk = fields.integer("index_topk");
  } else {
    config.index_n_heads = fields.integer("index_n_heads", 0);
    config.index_head_dim = fields.integer("index_head_dim", 0);
    config.index_topk = fields.integer("index_topk", 0);
  }
  if (parsed.has_dspark_keys) {
    // DSpark blocks have other tensors than MTP blocks; the model runs without them.
    config.num_nextn_predict_layers = 0;
    config.layers.resize(static_cast<std::size_t>(config.num_hidden_layers));
  }
  for (const char* key : kHarmlessKeys) {
    fields.ignore(key);
  }
  for (const char* key : {"original_seq_len", "rope_factor", "qk_rope_head_dim"}) {
    fields.ignore(key);
  }
  parsed.unknown_keys = fields.unused();
  try {
    validate(config);
  } catch (const ConfigError& error) {
    throw ConfigError(fmt::format("{}: {}", where, error.what()));
  }
  return parsed;
}

ParsedConfig read_config_json(const std::filesystem::path& path) {
  ParsedConfig parsed = parse_config_json(read_text_file(path), path.string());
  if (!parsed.unknown_keys.empty()) {
    log::warn("weights",
              "config_keys_unknown file={} keys={}",
              path.string(),
              fmt::join(parsed.unknown_keys, ","));
  }
  return parsed;
}

}  // namespace baleen::weights
