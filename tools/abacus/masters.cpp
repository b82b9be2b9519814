#include "abacus/masters.h"

#include <cmath>
#include <string>

#include <ATen/ATen.h>

#include "abacus/draws.h"
#include "base/check.h"

namespace baleen::abacus {
namespace {

using model::ModelParameters;
using model::ParameterInfo;
using model::ParameterRole;

/// 64-bit FNV-1a: every tensor has its own random stream, by name.
uint64_t name_hash(const std::string& name) {
  uint64_t hash = 0xCBF29CE484222325ULL;
  for (const char c : name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
  }
  return hash;
}

at::Tensor normal_values(const std::vector<int64_t>& shape,
                         double deviation,
                         uint64_t seed,
                         const std::string& name) {
  at::Tensor values = at::empty(shape, at::kFloat);
  float* out = values.mutable_data_ptr<float>();
  Draws draws(seed, Draws::kParameters, name_hash(name));
  for (int64_t i = 0; i < values.numel(); i += 2) {
    const uint32_t radius = draws.word();
    const numerics::NormalPair pair = numerics::normal_pair(radius, draws.word());
    out[i] = static_cast<float>(deviation) * pair.first;
    if (i + 1 < values.numel()) {
      out[i + 1] = static_cast<float>(deviation) * pair.second;
    }
  }
  return values;
}

/// Rows of distinct experts.
at::Tensor hash_table(const std::vector<int64_t>& shape, int64_t num_experts, uint64_t seed) {
  at::Tensor table = at::empty(shape, at::kLong);
  int64_t* out = table.mutable_data_ptr<int64_t>();
  for (int64_t token = 0; token < shape[0]; ++token) {
    Draws draws(seed, Draws::kHashTable, static_cast<uint64_t>(token));
    std::vector<int64_t> experts(static_cast<std::size_t>(num_experts));
    for (int64_t e = 0; e < num_experts; ++e) {
      experts[static_cast<std::size_t>(e)] = e;
    }
    for (int64_t slot = 0; slot < shape[1]; ++slot) {
      const auto other =
          static_cast<std::size_t>(slot + draws.below(static_cast<int>(num_experts - slot)));
      std::swap(experts[static_cast<std::size_t>(slot)], experts[other]);
      out[token * shape[1] + slot] = experts[static_cast<std::size_t>(slot)];
    }
  }
  return table;
}

bool has_part(const std::string& name, const char* part) {
  return name.find(part) != std::string::npos;
}

/// Matrices N(0, 1/inputs), the two that write into the residual streams and the head at half that
/// variance or less; gates of the compressors near 0, so that entries begin as plain means.
double matrix_deviation(const ParameterInfo& info, const std::vector<int64_t>& shape) {
  const double inputs = static_cast<double>(shape.back());
  switch (info.role) {
    case ParameterRole::kEmbedding:
      return 1.0;
    case ParameterRole::kOutputHead:
      return 0.5 / std::sqrt(inputs);
    case ParameterRole::kHyperFn:
      return 0.02;
    default:
      break;
  }
  if (has_part(info.name, "wgate")) {
    return 0.02;
  }
  if (has_part(info.name, ".wo_b")) {
    return std::sqrt(0.5 / inputs);
  }
  if (has_part(info.name, ".w2")) {
    return 0.5 / std::sqrt(inputs);
  }
  return 1.0 / std::sqrt(inputs);
}

/// Zero but for the residual mixing, which begins close to the identity.
at::Tensor mixing_base(const std::vector<int64_t>& shape, int64_t streams) {
  at::Tensor base = at::zeros(shape, at::kFloat);
  if (shape[0] == (2 + streams) * streams) {
    base.narrow(0, 2 * streams, streams * streams).view({streams, streams}).fill_diagonal_(3.0);
  }
  return base;
}

at::Tensor fresh_value(const ModelConfig& config,
                       uint64_t seed,
                       const ParameterInfo& info,
                       const std::string& name,
                       const std::vector<int64_t>& shape) {
  switch (info.role) {
    case ParameterRole::kNorm:
      return at::ones(shape, at::kFloat);
    case ParameterRole::kHyperBase:
      return mixing_base(shape, config.hc_mult);
    case ParameterRole::kHyperScale:
      return at::full(shape, 0.1, at::kFloat);
    case ParameterRole::kSink:
    case ParameterRole::kApe:
    case ParameterRole::kRouterBias:
      return at::zeros(shape, at::kFloat);
    case ParameterRole::kHashTable:
      return hash_table(shape, config.n_routed_experts, seed);
    default:
      return normal_values(shape, matrix_deviation(info, shape), seed, name);
  }
}

/// Which flat tensor a parameter lies in.
std::size_t group_of(const ParameterInfo& info) {
  switch (info.role) {
    case ParameterRole::kEmbedding:
    case ParameterRole::kOutputHead:
    case ParameterRole::kDenseMatrix:
    case ParameterRole::kOutputLatent:
    case ParameterRole::kExpertMatrix:
    case ParameterRole::kUnquantizedMatrix:
      return 0;
    default:
      return 1;
  }
}

}  // namespace

Masters::Masters(const ModelConfig& config, uint64_t seed, at::Device device)
    : layout_(model::make_empty_parameters(config)) {
  model::fill_parameters(
      layout_,
      at::TensorOptions().dtype(at::kFloat),
      [&](const ParameterInfo& info, const std::string& name, const std::vector<int64_t>& shape) {
        return fresh_value(config, seed, info, name, shape);
      });
  model::set_formats(layout_, {ops::LinearFormat::kFp8, ops::LinearFormat::kFp4});
  std::vector<at::Tensor> parts[2];
  model::for_each_parameter(layout_, [&](const ParameterInfo& info, at::Tensor& value) {
    if (info.trainable()) {
      const std::size_t group = group_of(info);
      parts[group].push_back(value.reshape({-1}));
      sizes_[group].push_back(value.numel());
      return;
    }
    value = value.to(device);
    if (info.role == ParameterRole::kRouterBias) {
      router_biases_.push_back(value);
    }
  });
  for (std::size_t group = 0; group < 2; ++group) {
    flat_[group] = at::cat(parts[group]).to(device).requires_grad_(true);
  }
}

void Masters::take(const model::ModelParameters& params) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> theirs;
  ModelParameters source = params;
  model::for_each_parameter(
      source, [&](const ParameterInfo&, at::Tensor& value) { theirs.push_back(value); });
  std::size_t next = 0;
  ModelParameters own = views();
  model::for_each_parameter(own, [&](const ParameterInfo& info, at::Tensor& value) {
    BALEEN_CHECK(next < theirs.size() && theirs[next].sizes() == value.sizes(),
                 "{} is missing or of another shape",
                 info.name);
    value.copy_(theirs[next++]);
  });
}

model::ModelParameters Masters::views() const {
  std::vector<at::Tensor> parts[2];
  for (std::size_t group = 0; group < 2; ++group) {
    parts[group] = flat_[group].split_with_sizes(sizes_[group]);
  }
  std::size_t next[2] = {0, 0};
  ModelParameters params = layout_;
  model::for_each_parameter(params, [&](const ParameterInfo& info, at::Tensor& value) {
    if (info.trainable()) {
      const std::size_t group = group_of(info);
      value = parts[group][next[group]++].view(info.shape);
    }
  });
  return params;
}

}  // namespace baleen::abacus
