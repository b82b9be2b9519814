#include "model/initialize.h"

#include <cmath>
#include <string>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/normal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>

namespace baleen::model {
namespace {

/// 64-bit FNV-1a of the name, mixed with the seed.
uint64_t stream_seed(uint64_t seed, const std::string& name) {
  uint64_t hash = 0xCBF29CE484222325ULL ^ (seed * 0x9E3779B97F4A7C15ULL);
  for (const char c : name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
  }
  return hash;
}

at::Tensor normal_tensor(const std::vector<int64_t>& shape,
                         double mean,
                         double deviation,
                         at::Generator& generator) {
  at::Tensor value = at::empty(shape, at::kDouble);
  if (deviation == 0.0) {
    return value.fill_(mean);
  }
  return value.normal_(mean, deviation, generator);
}

double deviation_by_inputs(const ParameterInfo& info, const std::vector<int64_t>& shape) {
  const double unit = 1.0 / std::sqrt(static_cast<double>(shape.back()));
  switch (info.role) {
    case ParameterRole::kEmbedding:
      return 1.0;
    case ParameterRole::kOutputHead:
      return 0.5 * unit;
    case ParameterRole::kHyperFn:
      return 0.02;
    default:
      return info.role == ParameterRole::kExpertMatrix && info.name.ends_with(".w2.weight")
                 ? 0.5 * unit
                 : unit;
  }
}

/// Adds to the rows of a mixing bias that stand for the residual mixing; those of a head have none.
void add_comb_diagonal(at::Tensor& base, int64_t streams, double value) {
  if (base.size(0) == (2 + streams) * streams) {
    base.narrow(0, 2 * streams, streams * streams).view({streams, streams}).diagonal().add_(value);
  }
}

}  // namespace

ModelParameters make_fresh_parameters(const ModelConfig& config,
                                      const FreshOptions& fresh,
                                      const at::TensorOptions& options) {
  const double matrix_std = fresh.matrix_std > 0.0 ? fresh.matrix_std : config.initializer_range;
  ModelParameters params = make_empty_parameters(config);
  fill_parameters(
      params,
      options,
      [&](const ParameterInfo& info, const std::string& name, const std::vector<int64_t>& shape) {
        at::Generator generator =
            at::make_generator<at::CPUGeneratorImpl>(stream_seed(fresh.seed, name));
        switch (info.role) {
          case ParameterRole::kHashTable: {
            const at::Tensor order = at::rand({shape[0], config.n_routed_experts}, generator);
            return order.argsort(int64_t{-1}).narrow(-1, 0, shape[1]);
          }
          case ParameterRole::kNorm:
            return normal_tensor(shape, 1.0, fresh.vector_noise, generator);
          case ParameterRole::kHyperScale:
            return normal_tensor(shape, fresh.hyper_scale, fresh.vector_noise, generator);
          case ParameterRole::kHyperBase: {
            at::Tensor base = normal_tensor(shape, 0.0, fresh.vector_noise, generator);
            add_comb_diagonal(base, config.hc_mult, fresh.comb_diagonal);
            return base;
          }
          case ParameterRole::kSink:
          case ParameterRole::kApe:
          case ParameterRole::kRouterBias:
            return normal_tensor(shape, 0.0, fresh.vector_noise, generator);
          default:
            return normal_tensor(shape,
                                 0.0,
                                 fresh.by_inputs ? deviation_by_inputs(info, shape) : matrix_std,
                                 generator);
        }
      });
  return params;
}

}  // namespace baleen::model
