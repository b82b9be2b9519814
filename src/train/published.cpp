#include "train/published.h"

#include <map>
#include <span>
#include <string>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"
#include "train/commit_folder.h"
#include "weights/checkpoint_writer.h"
#include "weights/config_json.h"

namespace baleen::train {
namespace {

weights::WeightFormat stored_as(ops::LinearFormat format) {
  return format == ops::LinearFormat::kFp8   ? weights::WeightFormat::kFp8
         : format == ops::LinearFormat::kFp4 ? weights::WeightFormat::kFp4
                                             : weights::WeightFormat::kBf16;
}

}  // namespace

weights::EncodedParameter encode_published(const at::Tensor& value,
                                           const weights::Parameter& parameter,
                                           weights::WeightFormat format) {
  const at::Tensor host = value.detach().to(at::kCPU).contiguous();
  const auto count = static_cast<std::size_t>(host.numel());
  if (parameter.kind == weights::ParameterKind::kTable) {
    return weights::encode_table(std::span(host.const_data_ptr<int64_t>(), count));
  }
  if (host.scalar_type() == at::kDouble) {
    return weights::encode_parameter(
        std::span(host.const_data_ptr<double>(), count), parameter.shape, format);
  }
  return weights::encode_parameter(
      std::span(host.const_data_ptr<float>(), count), parameter.shape, format);
}

weights::CheckpointFormat published_format(const model::ModelParameters& params, bool rounded) {
  if (!rounded) {
    return {.matrices = weights::WeightFormat::kF32, .experts = weights::WeightFormat::kF32};
  }
  const model::BlockParameters& block = params.blocks.front();
  return {.matrices = stored_as(block.attention.wq_a.format),
          .experts = stored_as(block.moe.w1.format)};
}

void write_published(const model::ModelParameters& params,
                     const std::filesystem::path& folder,
                     const weights::CheckpointFormat& format) {
  std::map<std::string, at::Tensor> values;
  model::ModelParameters shown = params;
  model::for_each_published_tensor(shown, [&](const std::string& name, const at::Tensor& value) {
    values.emplace(name, value);  // views; nothing is copied yet
  });
  ModelConfig config = params.config;
  const bool quantised = format.matrices == weights::WeightFormat::kFp8;
  if (quantised && !config.quantization_config) {
    config.quantization_config.emplace();
  } else if (!quantised) {
    config.quantization_config.reset();
  }
  config.expert_dtype = format.experts == weights::WeightFormat::kFp4   ? "fp4"
                        : format.experts == weights::WeightFormat::kFp8 ? "fp8"
                                                                        : "";
  weights::CheckpointWriter writer(folder, config, format);
  for (const weights::Parameter& parameter : writer.parameters()) {
    const auto found = values.find(parameter.name);
    BALEEN_CHECK(found != values.end(), "{} has no value", parameter.name);
    writer.put(parameter, encode_published(found->second, parameter, writer.format_of(parameter)));
  }
  writer.finish(weights::write_config_json(config));
}

void copy_tokenizer(const std::filesystem::path& source, const std::filesystem::path& target) {
  for (const char* file : {"tokenizer.json", "tokenizer_config.json", "generation_config.json"}) {
    if (!source.empty() && std::filesystem::exists(source / file)) {
      std::filesystem::copy_file(source / file, target / file);
    }
  }
}

void check_export_folder(const std::string& target) {
  if (!target.empty() && std::filesystem::exists(std::filesystem::path(target) / "config.json")) {
    throw ConfigError(fmt::format("export_to: there is a model in {} already", target));
  }
}

void export_model(const model::ModelParameters& values,
                  bool rounded,
                  const std::filesystem::path& source,
                  const std::filesystem::path& target) {
  const std::filesystem::path whole = target.lexically_normal();
  const bool plain = whole.has_filename();  // no slash at its end
  const std::filesystem::path name = plain ? whole.filename() : whole.parent_path().filename();
  const std::filesystem::path root =
      plain ? whole.parent_path() : whole.parent_path().parent_path();
  CommitFolder folder(root.empty() ? std::filesystem::path(".") : root, name.string());
  write_published(values, folder.path(), published_format(values, rounded));
  copy_tokenizer(source, folder.path());
  folder.commit();
}

}  // namespace baleen::train
