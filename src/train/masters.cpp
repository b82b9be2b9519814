#include "train/masters.h"

#include <utility>

#include <ATen/ATen.h>

#include "base/check.h"
#include "model/fake_quantized.h"

namespace baleen::train {
namespace {

using model::ModelParameters;
using model::ParameterInfo;
using model::ParameterRole;

at::Tensor view_of(const at::Tensor& flat, int64_t begin, const at::Tensor& like) {
  return flat.narrow(0, begin, like.numel()).view(like.sizes());
}

/// Type and device of the first tensor that there is; a pipeline stage may have no embedding.
at::TensorOptions options_of(ModelParameters& params) {
  at::TensorOptions options;
  bool found = false;
  model::for_each_parameter(params, [&](const ParameterInfo&, at::Tensor& value) {
    if (!found && value.defined() && value.is_floating_point()) {
      options = value.options().requires_grad(false);
      found = true;
    }
  });
  return options;
}

/// Matrices of the part that a rank holds of a stored tensor.
int64_t matrices_of_part(const ParameterInfo& info,
                         const at::Tensor& part,
                         const ModelConfig& config) {
  return logical_matrices(info, config) * part.size(0) / info.shape[0];
}

}  // namespace

Masters::Masters(ModelParameters params, const FreezeRules& rules, WeightRounding rounding)
    : rounding_(rounding), values_(std::move(params)) {
  const at::NoGradGuard no_grad;
  const at::TensorOptions options = options_of(values_);
  int64_t count = 0;
  model::for_each_parameter(values_, [&](const ParameterInfo& info, at::Tensor& value) {
    listed_.push_back({info, !rules.frozen(info)});
    if (!value.defined()) {
      return;  // another pipeline stage's
    }
    BALEEN_CHECK(!value.is_floating_point() ||
                     value.scalar_type() == c10::typeMetaToScalarType(options.dtype()),
                 "{} has another dtype than the tensors before it",
                 info.name);
    count += rules.frozen(info) ? 0 : value.numel();
  });
  flat_values_ = at::empty({count}, options);

  int64_t begin = 0;
  model::for_each_parameter(values_, [&](const ParameterInfo& info, at::Tensor& value) {
    if (!value.defined()) {
      return;
    }
    if (rules.frozen(info)) {
      value = value.detach();
      return;
    }
    TrainedTensor tensor;
    tensor.info = info;
    tensor.flat_begin = begin;
    tensor.value = view_of(flat_values_, begin, value);
    tensor.num_matrices = matrices_of_part(info, value, values_.config);
    tensor.still_rows = rules.still_rows(info, values_.config.hc_mult);
    tensor.value.copy_(value);
    value = tensor.value;  // lets the source go
    begin += tensor.value.numel();
    trained_.push_back(std::move(tensor));
  });

  // Behind the last source, so that they never stand beside these.
  flat_gradients_ = at::zeros({count}, options);
  for (TrainedTensor& tensor : trained_) {
    tensor.gradient = view_of(flat_gradients_, tensor.flat_begin, tensor.value);
  }
  if (rounding_ == WeightRounding::kServed) {
    flat_served_ = at::empty({count}, options);
  }
  leaves_ = leaves_over(flat_gradients_);
  refresh_served();
}

ModelParameters Masters::leaves_over(const at::Tensor& flat_gradients) const {
  ModelParameters leaves = values_;
  const at::Tensor& shown = rounding_ == WeightRounding::kServed ? flat_served_ : flat_values_;
  std::size_t next = 0;
  model::for_each_parameter(leaves, [&](const ParameterInfo& info, at::Tensor& value) {
    if (next == trained_.size() || trained_[next].info.name != info.name) {
      return;
    }
    const TrainedTensor& tensor = trained_[next++];
    value = view_of(shown, tensor.flat_begin, tensor.value).detach();
    value.set_requires_grad(true);
    value.mutable_grad() = view_of(flat_gradients, tensor.flat_begin, tensor.value);
  });
  BALEEN_CHECK(next == trained_.size(), "{} of {} tensors found", next, trained_.size());
  return leaves;
}

Masters::Shard Masters::new_shard() const {
  const at::NoGradGuard no_grad;
  Shard shard;
  shard.flat_gradients = at::zeros_like(flat_gradients_);
  shard.leaves = leaves_over(shard.flat_gradients);
  // Frozen tensors as they are served.
  std::vector<at::Tensor> served;
  ModelParameters shown = leaves_;
  model::for_each_parameter(
      shown, [&](const ParameterInfo&, at::Tensor& value) { served.push_back(value); });
  std::size_t next = 0;
  model::for_each_parameter(shard.leaves, [&](const ParameterInfo&, at::Tensor& value) {
    const at::Tensor& as_served = served[next++];
    if (value.defined() && !value.requires_grad()) {
      value = as_served;
    }
  });
  return shard;
}

void Masters::zero_gradients() {
  flat_gradients_.zero_();
}

void Masters::refresh_served() {
  if (rounding_ == WeightRounding::kNone) {
    return;
  }
  const at::NoGradGuard no_grad;
  std::size_t next = 0;
  ModelParameters sources = values_;
  std::vector<at::Tensor*> targets;
  model::for_each_parameter(
      leaves_, [&](const ParameterInfo&, at::Tensor& value) { targets.push_back(&value); });
  model::for_each_matrix_or_tensor(
      sources, [&](const ParameterInfo& info, at::Tensor& value, ops::LinearFormat* format) {
        at::Tensor& target = *targets[next++];
        if (!value.defined()) {
          return;
        }
        const at::Tensor served = model::fake_quantized(
            info, value, format == nullptr ? ops::LinearFormat::kPlain : *format);
        if (target.requires_grad()) {
          target.detach().copy_(served);
        } else {
          target = served;
        }
      });
}

int64_t Masters::bytes() const {
  int64_t bytes = static_cast<int64_t>(flat_gradients_.nbytes());
  ModelParameters held = values_;
  bytes += model::parameter_bytes(held);
  if (rounding_ == WeightRounding::kNone) {
    return bytes;
  }
  std::vector<const void*> master_data;
  model::for_each_parameter(held, [&](const ParameterInfo&, at::Tensor& value) {
    master_data.push_back(value.defined() ? value.const_data_ptr() : nullptr);
  });
  std::size_t next = 0;
  ModelParameters shown = leaves_;
  model::for_each_parameter(shown, [&](const ParameterInfo&, at::Tensor& value) {
    const void* master = master_data[next++];
    const bool own = value.defined() && value.const_data_ptr() != master;
    bytes += own ? static_cast<int64_t>(value.nbytes()) : 0;
  });
  return bytes;
}

int64_t logical_matrices(const ParameterInfo& info, const ModelConfig& config) {
  if (info.stack > 0) {
    return info.stack;
  }
  if (info.name.ends_with("attn.wq_b.weight")) {
    return config.num_attention_heads;
  }
  if (info.name.ends_with("indexer.wq_b.weight")) {
    return config.index_n_heads;
  }
  if (info.role == ParameterRole::kOutputLatent) {
    return config.o_groups;
  }
  const bool index_compressor = info.name.find(".indexer.compressor.") != std::string::npos;
  if (info.name.ends_with("compressor.wkv.weight") ||
      info.name.ends_with("compressor.wgate.weight")) {
    return info.shape[0] / (index_compressor ? config.index_head_dim : config.head_dim);
  }
  return 1;
}

bool is_hidden_matrix(const ParameterInfo& info) {
  switch (info.role) {
    case ParameterRole::kDenseMatrix:
    case ParameterRole::kOutputLatent:
    case ParameterRole::kExpertMatrix:
    case ParameterRole::kUnquantizedMatrix:
      return true;
    default:
      return false;
  }
}

bool decays(const ParameterInfo& info) {
  return is_hidden_matrix(info) || info.role == ParameterRole::kEmbedding ||
         info.role == ParameterRole::kOutputHead;
}

}  // namespace baleen::train
