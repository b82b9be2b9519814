#include "model/parameters.h"

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>

#include <ATen/ops/empty.h>

#include "base/check.h"

namespace baleen::model {
namespace {

using Role = ParameterRole;

constexpr int64_t kWorthAThread = int64_t{1} << 18;  // numbers of a stack's member

/// Walks the structs in published order; the only place that knows the published names.
class Walk {
 public:
  Walk(ModelParameters& params, const MatrixVisitor& visit)
      : params_(params), config_(params.config), visit_(visit) {}

  void run() {
    const int64_t hidden = config_.hidden_size;
    tensor("embed.weight", params_.embed, Role::kEmbedding, {config_.vocab_size, hidden});
    tensor("head.weight", params_.head, Role::kOutputHead, {config_.vocab_size, hidden});
    head("", params_.final_head);
    for (std::size_t i = 0; i < params_.blocks.size(); ++i) {
      block("layers." + std::to_string(i) + ".", params_.blocks[i]);
    }
    for (std::size_t i = 0; i < params_.mtp.size(); ++i) {
      mtp("mtp." + std::to_string(i) + ".", params_.mtp[i]);
    }
  }

 private:
  void tensor(std::string name, at::Tensor& value, Role role, std::vector<int64_t> shape) {
    visit_(ParameterInfo{std::move(name), role, std::move(shape), 0}, value, nullptr);
  }

  void matrix(std::string name, Matrix& value, Role role, int64_t out, int64_t in) {
    visit_(ParameterInfo{std::move(name), role, {out, in}, 0}, value.weight, &value.format);
  }

  void experts(std::string name, Matrix& value, int64_t out, int64_t in) {
    const int64_t count = config_.n_routed_experts;
    visit_(ParameterInfo{std::move(name), Role::kExpertMatrix, {count, out, in}, count},
           value.weight,
           &value.format);
  }

  void hyper(const std::string& name, HyperConnectionParameters& hc, int64_t rows, int64_t scales) {
    const int64_t width = config_.hc_mult * config_.hidden_size;
    tensor(name + "_fn", hc.fn, Role::kHyperFn, {rows, width});
    tensor(name + "_base", hc.base, Role::kHyperBase, {rows});
    tensor(name + "_scale", hc.scale, Role::kHyperScale, {scales});
  }

  void head(const std::string& prefix, HeadParameters& value) {
    tensor(prefix + "norm.weight", value.norm, Role::kNorm, {config_.hidden_size});
    hyper(prefix + "hc_head", value.hc, config_.hc_mult, 1);
  }

  void compressor(const std::string& prefix,
                  CompressorParameters& value,
                  const LayerSpec& spec,
                  int64_t width) {
    const int64_t channels = spec.kind == LayerKind::kC4 ? 2 * width : width;
    const int64_t hidden = config_.hidden_size;
    tensor(prefix + "ape", value.ape, Role::kApe, {spec.ratio, channels});
    tensor(prefix + "wkv.weight", value.wkv, Role::kUnquantizedMatrix, {channels, hidden});
    tensor(prefix + "wgate.weight", value.wgate, Role::kUnquantizedMatrix, {channels, hidden});
    tensor(prefix + "norm.weight", value.norm, Role::kNorm, {width});
  }

  void attention(const std::string& prefix, AttentionParameters& value, const LayerSpec& spec) {
    const int64_t hidden = config_.hidden_size;
    const int64_t heads = config_.num_attention_heads;
    const int64_t width = config_.head_dim;
    const int64_t rank = config_.q_lora_rank;
    const int64_t latent = config_.o_groups * config_.o_lora_rank;
    tensor(prefix + "attn_sink", value.attn_sink, Role::kSink, {heads});
    matrix(prefix + "wq_a.weight", value.wq_a, Role::kDenseMatrix, rank, hidden);
    tensor(prefix + "q_norm.weight", value.q_norm, Role::kNorm, {rank});
    matrix(prefix + "wq_b.weight", value.wq_b, Role::kDenseMatrix, heads * width, rank);
    matrix(prefix + "wkv.weight", value.wkv, Role::kDenseMatrix, width, hidden);
    tensor(prefix + "kv_norm.weight", value.kv_norm, Role::kNorm, {width});
    matrix(prefix + "wo_a.weight",
           value.wo_a,
           Role::kOutputLatent,
           latent,
           heads * width / config_.o_groups);
    matrix(prefix + "wo_b.weight", value.wo_b, Role::kDenseMatrix, hidden, latent);
    if (value.compressor) {
      compressor(prefix + "compressor.", *value.compressor, spec, width);
    }
    if (value.indexer) {
      const int64_t index_heads = config_.index_n_heads;
      const int64_t index_width = config_.index_head_dim;
      matrix(prefix + "indexer.wq_b.weight",
             value.indexer->wq_b,
             Role::kDenseMatrix,
             index_heads * index_width,
             rank);
      tensor(prefix + "indexer.weights_proj.weight",
             value.indexer->weights_proj,
             Role::kUnquantizedMatrix,
             {index_heads, hidden});
      compressor(prefix + "indexer.compressor.", value.indexer->compressor, spec, index_width);
    }
  }

  void moe(const std::string& prefix, MoeParameters& value, const LayerSpec& spec) {
    const int64_t hidden = config_.hidden_size;
    const int64_t inner = config_.moe_intermediate_size;
    tensor(prefix + "gate.weight",
           value.gate_weight,
           Role::kUnquantizedMatrix,
           {config_.n_routed_experts, hidden});
    if (spec.hash_routed) {
      tensor(prefix + "gate.tid2eid",
             value.tid2eid,
             Role::kHashTable,
             {config_.vocab_size, config_.num_experts_per_tok});
    } else {
      tensor(prefix + "gate.bias", value.gate_bias, Role::kRouterBias, {config_.n_routed_experts});
    }
    experts(prefix + "experts.*.w1.weight", value.w1, inner, hidden);
    experts(prefix + "experts.*.w3.weight", value.w3, inner, hidden);
    experts(prefix + "experts.*.w2.weight", value.w2, hidden, inner);
    const std::string shared = prefix + "shared_experts.";
    matrix(shared + "w1.weight", value.shared_w1, Role::kDenseMatrix, inner, hidden);
    matrix(shared + "w3.weight", value.shared_w3, Role::kDenseMatrix, inner, hidden);
    matrix(shared + "w2.weight", value.shared_w2, Role::kDenseMatrix, hidden, inner);
  }

  void block(const std::string& prefix, BlockParameters& value) {
    const int64_t rows = (2 + config_.hc_mult) * config_.hc_mult;
    tensor(prefix + "attn_norm.weight", value.attn_norm, Role::kNorm, {config_.hidden_size});
    tensor(prefix + "ffn_norm.weight", value.ffn_norm, Role::kNorm, {config_.hidden_size});
    hyper(prefix + "hc_attn", value.hc_attn, rows, 3);
    hyper(prefix + "hc_ffn", value.hc_ffn, rows, 3);
    attention(prefix + "attn.", value.attention, value.spec);
    moe(prefix + "ffn.", value.moe, value.spec);
  }

  void mtp(const std::string& prefix, MtpParameters& value) {
    const int64_t hidden = config_.hidden_size;
    matrix(prefix + "e_proj.weight", value.e_proj, Role::kDenseMatrix, hidden, hidden);
    matrix(prefix + "h_proj.weight", value.h_proj, Role::kDenseMatrix, hidden, hidden);
    tensor(prefix + "enorm.weight", value.enorm, Role::kNorm, {hidden});
    tensor(prefix + "hnorm.weight", value.hnorm, Role::kNorm, {hidden});
    block(prefix, value.block);
    head(prefix, value.head);
  }

  ModelParameters& params_;
  const ModelConfig& config_;
  const MatrixVisitor& visit_;
};

/// What `make` gives for 0 .. count, each in a thread of its own. The first exception is thrown
/// again.
std::vector<at::Tensor> in_threads(int64_t count, const std::function<at::Tensor(int64_t)>& make) {
  std::vector<at::Tensor> made(static_cast<std::size_t>(count));
  if (count == 1) {
    made[0] = make(0);
    return made;
  }
  std::vector<std::exception_ptr> errors(made.size());
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < made.size(); ++i) {
      threads.emplace_back([&, i] {
        try {
          made[i] = make(static_cast<int64_t>(i));
        } catch (...) {
          errors[i] = std::current_exception();
        }
      });
    }
  }
  for (const std::exception_ptr& error : errors) {
    if (error) {
      std::rethrow_exception(error);
    }
  }
  return made;
}

BlockParameters empty_block(const LayerSpec& spec) {
  BlockParameters block;
  block.spec = spec;
  if (spec.kind != LayerKind::kSwa) {
    block.attention.compressor.emplace();
  }
  if (spec.kind == LayerKind::kC4) {
    block.attention.indexer.emplace();
  }
  return block;
}

}  // namespace

std::string ParameterInfo::member_name(int64_t expert) const {
  const std::size_t star = name.find('*');
  BALEEN_CHECK(star != std::string::npos && expert < stack, "{} has no member {}", name, expert);
  return name.substr(0, star) + std::to_string(expert) + name.substr(star + 1);
}

void for_each_matrix_or_tensor(ModelParameters& params, const MatrixVisitor& visit) {
  Walk(params, visit).run();
}

void for_each_parameter(ModelParameters& params, const ParameterVisitor& visit) {
  for_each_matrix_or_tensor(
      params, [&visit](const ParameterInfo& info, at::Tensor& value, ops::LinearFormat*) {
        visit(info, value);
      });
}

void for_each_published_tensor(ModelParameters& params,
                               const std::function<void(const std::string&, at::Tensor)>& visit) {
  for_each_parameter(params, [&visit](const ParameterInfo& info, at::Tensor& value) {
    if (info.stack == 0) {
      visit(info.name, value);
    }
    for (int64_t expert = 0; expert < info.stack; ++expert) {
      visit(info.member_name(expert), value.select(0, expert));
    }
  });
}

void fill_parameters(ModelParameters& params,
                     const at::TensorOptions& options,
                     const TensorSource& source,
                     const std::function<bool(const ParameterInfo&)>& wanted,
                     int32_t num_threads) {
  for_each_parameter(params, [&](const ParameterInfo& info, at::Tensor& value) {
    if (wanted && !wanted(info)) {
      return;
    }
    const bool integers = info.role == Role::kHashTable;
    const auto target = integers ? options.dtype(at::kLong) : options;
    value = at::empty(info.shape, target);
    const std::vector<int64_t> member_shape(info.shape.begin() + (info.stack > 0 ? 1 : 0),
                                            info.shape.end());
    const auto copy =
        [&](const at::Tensor& destination, const std::string& name, const at::Tensor& tensor) {
          BALEEN_CHECK(tensor.sizes() == at::IntArrayRef(member_shape), "shape of {}", name);
          destination.copy_(tensor);
        };
    if (info.stack == 0) {
      copy(value, info.name, source(info, info.name, member_shape));
    }
    for (int64_t begin = 0; begin < info.stack;) {
      const bool large = value.numel() / info.stack >= kWorthAThread;
      const int64_t count = std::min<int64_t>(large ? num_threads : 1, info.stack - begin);
      const std::vector<at::Tensor> members = in_threads(count, [&](int64_t i) {
        return source(info, info.member_name(begin + i), member_shape);
      });
      for (int64_t i = 0; i < count; ++i) {
        copy(value.select(0, begin + i),
             info.member_name(begin + i),
             members[static_cast<std::size_t>(i)]);
      }
      begin += count;
    }
  });
}

void set_formats(ModelParameters& params, const FormatPlan& plan) {
  for_each_matrix_or_tensor(
      params, [&plan](const ParameterInfo& info, at::Tensor&, ops::LinearFormat* format) {
        if (format != nullptr) {
          *format = info.role == Role::kExpertMatrix ? plan.experts : plan.dense;
        }
      });
}

ModelParameters make_empty_parameters(const ModelConfig& config) {
  validate(config);
  ModelParameters params;
  params.config = config;
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    params.blocks.push_back(empty_block(config.layers[static_cast<std::size_t>(i)]));
  }
  for (int64_t i = 0; i < config.num_nextn_predict_layers; ++i) {
    params.mtp.emplace_back().block = empty_block(config.mtp_layer(i));
  }
  return params;
}

int64_t parameter_bytes(ModelParameters& params) {
  int64_t bytes = 0;
  for_each_parameter(params, [&bytes](const ParameterInfo&, at::Tensor& value) {
    bytes += value.defined() ? static_cast<int64_t>(value.nbytes()) : 0;
  });
  return bytes;
}

void convert_parameters(ModelParameters& params, at::ScalarType dtype, at::Device device) {
  for_each_parameter(params, [&](const ParameterInfo&, at::Tensor& value) {
    if (value.defined()) {
      value = value.to(device, value.is_floating_point() ? dtype : value.scalar_type());
    }
  });
}

}  // namespace baleen::model
