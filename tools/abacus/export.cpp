#include "abacus/export.h"

#include <cstdint>
#include <map>
#include <span>
#include <string>

#include <ATen/ATen.h>

#include "base/check.h"
#include "weights/checkpoint_writer.h"
#include "weights/config_json.h"

namespace baleen::abacus {

void write_published(const model::ModelParameters& params, const std::filesystem::path& folder) {
  std::map<std::string, at::Tensor> values;
  model::ModelParameters copy = params;
  model::for_each_published_tensor(copy, [&](const std::string& name, const at::Tensor& value) {
    values.emplace(name, value.detach().to(at::kCPU).contiguous());
  });
  weights::CheckpointWriter writer(folder, params.config, {});
  for (const weights::Parameter& parameter : writer.parameters()) {
    const auto found = values.find(parameter.name);
    BALEEN_CHECK(found != values.end(), "{} has no value", parameter.name);
    const at::Tensor& value = found->second;
    const auto count = static_cast<std::size_t>(value.numel());
    writer.put(parameter,
               parameter.kind == weights::ParameterKind::kTable
                   ? weights::encode_table(std::span(value.const_data_ptr<int64_t>(), count))
                   : weights::encode_parameter(std::span(value.const_data_ptr<float>(), count),
                                               parameter.shape,
                                               writer.format_of(parameter)));
  }
  writer.finish(weights::write_config_json(params.config));
}

}  // namespace baleen::abacus
