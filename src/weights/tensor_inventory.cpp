#include "weights/tensor_inventory.h"

#include <numeric>

#include <fmt/format.h>

#include "base/check.h"
#include "numerics/weight_format.h"

namespace baleen::weights {
namespace {

/// Collects the parameters of one block under its prefix.
class Collector {
 public:
  Collector(std::vector<Parameter>& out, std::string prefix, LayerIndex layer)
      : out_(out), prefix_(std::move(prefix)), layer_(layer) {}

  void add(std::string_view name, ParameterKind kind, std::vector<int64_t> shape) {
    out_.push_back({prefix_ + std::string(name), kind, std::move(shape), layer_});
  }
  void matrix(std::string_view name, int64_t rows, int64_t cols) {
    add(name, ParameterKind::kMatrix, {rows, cols});
  }
  void bf16(std::string_view name, std::vector<int64_t> shape) {
    add(name, ParameterKind::kBf16, std::move(shape));
  }
  void f32(std::string_view name, std::vector<int64_t> shape) {
    add(name, ParameterKind::kF32, std::move(shape));
  }

 private:
  std::vector<Parameter>& out_;
  std::string prefix_;
  LayerIndex layer_;
};

void add_hc_head(Collector& out, const ModelConfig& config) {
  out.f32("hc_head_fn", {config.hc_mult, config.hc_mult * config.hidden_size});
  out.f32("hc_head_base", {config.hc_mult});
  out.f32("hc_head_scale", {1});
}

void add_hyper_connections(Collector& out, const ModelConfig& config) {
  const int64_t mixes = (2 + config.hc_mult) * config.hc_mult;
  for (const char* part : {"attn", "ffn"}) {
    out.f32(fmt::format("hc_{}_fn", part), {mixes, config.hc_mult * config.hidden_size});
    out.f32(fmt::format("hc_{}_base", part), {mixes});
    out.f32(fmt::format("hc_{}_scale", part), {3});
  }
}

/// Rows (entry width) are doubled where groups overlap: carry half, own half.
void add_compressor(Collector& out,
                    const std::string& prefix,
                    const ModelConfig& config,
                    const LayerSpec& layer,
                    int64_t width) {
  const int64_t halves = layer.kind == LayerKind::kC4 ? 2 : 1;
  out.f32(prefix + "ape", {layer.ratio, halves * width});
  out.bf16(prefix + "wkv.weight", {halves * width, config.hidden_size});
  out.bf16(prefix + "wgate.weight", {halves * width, config.hidden_size});
  out.bf16(prefix + "norm.weight", {width});
}

void add_attention(Collector& out, const ModelConfig& config, const LayerSpec& layer) {
  const int64_t head_width = config.num_attention_heads * config.head_dim;
  const int64_t out_latent = config.o_groups * config.o_lora_rank;
  out.f32("attn.attn_sink", {config.num_attention_heads});
  out.matrix("attn.wq_a.weight", config.q_lora_rank, config.hidden_size);
  out.bf16("attn.q_norm.weight", {config.q_lora_rank});
  out.matrix("attn.wq_b.weight", head_width, config.q_lora_rank);
  out.matrix("attn.wkv.weight", config.head_dim, config.hidden_size);
  out.bf16("attn.kv_norm.weight", {config.head_dim});
  out.matrix("attn.wo_a.weight", out_latent, head_width / config.o_groups);
  out.matrix("attn.wo_b.weight", config.hidden_size, out_latent);
  if (layer.kind != LayerKind::kSwa) {
    add_compressor(out, "attn.compressor.", config, layer, config.head_dim);
  }
  if (layer.kind == LayerKind::kC4) {
    out.matrix("attn.indexer.wq_b.weight",
               config.index_n_heads * config.index_head_dim,
               config.q_lora_rank);
    out.bf16("attn.indexer.weights_proj.weight", {config.index_n_heads, config.hidden_size});
    add_compressor(out, "attn.indexer.compressor.", config, layer, config.index_head_dim);
  }
}

void add_moe(Collector& out, const ModelConfig& config, const LayerSpec& layer) {
  out.bf16("ffn.gate.weight", {config.n_routed_experts, config.hidden_size});
  if (layer.hash_routed) {
    out.add(
        "ffn.gate.tid2eid", ParameterKind::kTable, {config.vocab_size, config.num_experts_per_tok});
  } else {
    out.f32("ffn.gate.bias", {config.n_routed_experts});
  }
  const int64_t width = config.moe_intermediate_size;
  const auto add_expert = [&](const std::string& prefix, ParameterKind kind) {
    out.add(prefix + "w1.weight", kind, {width, config.hidden_size});
    out.add(prefix + "w2.weight", kind, {config.hidden_size, width});
    out.add(prefix + "w3.weight", kind, {width, config.hidden_size});
  };
  add_expert("ffn.shared_experts.", ParameterKind::kMatrix);
  for (int64_t expert = 0; expert < config.n_routed_experts; ++expert) {
    add_expert(fmt::format("ffn.experts.{}.", expert), ParameterKind::kExpertMatrix);
  }
}

void add_layer(Collector& out, const ModelConfig& config, const LayerSpec& layer) {
  out.bf16("attn_norm.weight", {config.hidden_size});
  out.bf16("ffn_norm.weight", {config.hidden_size});
  add_hyper_connections(out, config);
  add_attention(out, config, layer);
  add_moe(out, config, layer);
}

}  // namespace

int64_t Parameter::num_elements() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

const char* weight_format_name(WeightFormat format) {
  switch (format) {
    case WeightFormat::kBf16:
      return "bf16";
    case WeightFormat::kF16:
      return "f16";
    case WeightFormat::kF32:
      return "f32";
    case WeightFormat::kF64:
      return "f64";
    case WeightFormat::kFp8:
      return "fp8";
    case WeightFormat::kFp4:
      return "fp4";
    case WeightFormat::kI64:
      return "i64";
    case WeightFormat::kI32:
      return "i32";
  }
  return "unknown";
}

WeightFormat CheckpointFormat::format_of(ParameterKind kind) const {
  switch (kind) {
    case ParameterKind::kMatrix:
      return matrices;
    case ParameterKind::kExpertMatrix:
      return experts;
    case ParameterKind::kBf16:
      return matrices == WeightFormat::kF32 || matrices == WeightFormat::kF64 ? matrices
                                                                              : WeightFormat::kBf16;
    case ParameterKind::kF32:
      return matrices == WeightFormat::kF64 ? matrices : WeightFormat::kF32;
    case ParameterKind::kTable:
      return WeightFormat::kI64;
  }
  return WeightFormat::kF32;
}

std::string layer_prefix(const ModelConfig& config, LayerIndex layer) {
  return layer.value() < config.num_hidden_layers
             ? fmt::format("layers.{}.", layer.value())
             : fmt::format("mtp.{}.", layer.value() - config.num_hidden_layers);
}

std::vector<Parameter> parameter_inventory(const ModelConfig& config) {
  std::vector<Parameter> parameters;
  Collector globals(parameters, "", LayerIndex());
  globals.bf16("embed.weight", {config.vocab_size, config.hidden_size});
  globals.bf16("head.weight", {config.vocab_size, config.hidden_size});
  globals.bf16("norm.weight", {config.hidden_size});
  add_hc_head(globals, config);
  for (std::size_t i = 0; i < config.layers.size(); ++i) {
    const LayerIndex layer(static_cast<int32_t>(i));
    Collector block(parameters, layer_prefix(config, layer), layer);
    add_layer(block, config, config.layers[i]);
    if (layer.value() >= config.num_hidden_layers) {
      block.matrix("e_proj.weight", config.hidden_size, config.hidden_size);
      block.matrix("h_proj.weight", config.hidden_size, config.hidden_size);
      for (const char* norm : {"enorm.weight", "hnorm.weight", "norm.weight"}) {
        block.bf16(norm, {config.hidden_size});
      }
      add_hc_head(block, config);
    }
  }
  return parameters;
}

std::string scale_name(std::string_view weight_name) {
  constexpr std::string_view kSuffix = ".weight";
  BALEEN_CHECK(weight_name.ends_with(kSuffix), "{}", weight_name);
  weight_name.remove_suffix(kSuffix.size());
  return std::string(weight_name) + ".scale";
}

std::vector<TensorSpec> stored_forms(const Parameter& parameter, WeightFormat format) {
  const std::vector<int64_t>& shape = parameter.shape;
  switch (format) {
    case WeightFormat::kBf16:
      return {{parameter.name, DType::kBf16, shape}};
    case WeightFormat::kF16:
      return {{parameter.name, DType::kF16, shape}};
    case WeightFormat::kF32:
      return {{parameter.name, DType::kF32, shape}};
    case WeightFormat::kF64:
      return {{parameter.name, DType::kF64, shape}};
    case WeightFormat::kI64:
      return {{parameter.name, DType::kI64, shape}};
    case WeightFormat::kI32:
      return {{parameter.name, DType::kI32, shape}};
    case WeightFormat::kFp8: {
      const numerics::TileShape tiles{shape[0], shape[1]};
      return {
          {parameter.name, DType::kF8E4m3, shape},
          {scale_name(parameter.name), DType::kF8E8m0, {tiles.scale_rows(), tiles.scale_cols()}}};
    }
    case WeightFormat::kFp4:
      BALEEN_CHECK(shape[1] % numerics::kFp4Group == 0, "{} cols={}", parameter.name, shape[1]);
      return {
          {parameter.name, DType::kI8, {shape[0], shape[1] / 2}},
          {scale_name(parameter.name), DType::kF8E8m0, {shape[0], shape[1] / numerics::kFp4Group}}};
  }
  return {};
}

std::vector<TensorSpec> stored_tensors(const ModelConfig& config, const CheckpointFormat& format) {
  std::vector<TensorSpec> tensors;
  for (const Parameter& parameter : parameter_inventory(config)) {
    for (TensorSpec& spec : stored_forms(parameter, format.format_of(parameter.kind))) {
      tensors.push_back(std::move(spec));
    }
  }
  return tensors;
}

}  // namespace baleen::weights
