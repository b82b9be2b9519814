#include "model/hash_fill.h"

#include <string>
#include <vector>

#include <ATen/ops/empty.h>

#include "weights/toy_parameters.h"

namespace baleen::model {
namespace {

double mixed(uint32_t hash, uint32_t index) {
  uint32_t h = hash + index * 0x9E3779B1U;
  h ^= h >> 16;
  h *= 0x85EBCA6BU;
  h ^= h >> 13;
  h *= 0xC2B2AE35U;
  h ^= h >> 16;
  return 2.0 * (static_cast<double>(h >> 8) / 16777216.0 - 0.5);
}

}  // namespace

double hash_fill_value(std::string_view name, uint32_t index) {
  return mixed(weights::fnv1a(name), index);
}

ModelParameters make_hash_filled(const ModelConfig& config,
                                 const HashFill& fill,
                                 const at::TensorOptions& options) {
  ModelParameters params = make_empty_parameters(config);
  fill_parameters(
      params,
      options,
      [&](const ParameterInfo& info, const std::string& name, const std::vector<int64_t>& shape) {
        if (info.role == ParameterRole::kHashTable) {
          at::Tensor table = at::empty(shape, at::kLong);
          int64_t* data = table.data_ptr<int64_t>();
          for (int64_t i = 0; i < table.numel(); ++i) {
            const int64_t token = i / shape[1];
            const int64_t slot = i % shape[1];
            data[i] = (5 * token + 1 + 2 * slot) % config.n_routed_experts;
          }
          return table;
        }
        const double offset = info.role == ParameterRole::kNorm ? 1.0 : 0.0;
        const double scale = info.role == ParameterRole::kNorm        ? fill.norm
                             : info.role == ParameterRole::kEmbedding ? fill.embedding
                                                                      : fill.other;
        at::Tensor value = at::empty(shape, at::kDouble);
        double* data = value.data_ptr<double>();
        const uint32_t hash = weights::fnv1a(fill.salt + name);
        for (int64_t i = 0; i < value.numel(); ++i) {
          data[i] = offset + scale * mixed(hash, static_cast<uint32_t>(i));
        }
        return value;
      });
  return params;
}

ModelConfig golden_toy_config() {
  return weights::toy_config();
}

}  // namespace baleen::model
