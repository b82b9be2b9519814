#include "model/load_parameters.h"

#include <algorithm>
#include <functional>
#include <span>
#include <string>
#include <thread>

#include <ATen/ops/empty.h>

#include "base/check.h"
#include "base/error.h"
#include "model/device_decode.h"
#include "ops/rounding.h"

namespace baleen::model {
namespace {

ops::LinearFormat linear_format(weights::WeightFormat format) {
  switch (format) {
    case weights::WeightFormat::kFp8:
      return ops::LinearFormat::kFp8;
    case weights::WeightFormat::kFp4:
      return ops::LinearFormat::kFp4;
    default:
      return ops::LinearFormat::kPlain;
  }
}

template <class Number>
std::span<Number> elements(at::Tensor& tensor) {
  return {tensor.data_ptr<Number>(), static_cast<std::size_t>(tensor.numel())};
}

at::Tensor read_tensor(const weights::Checkpoint& checkpoint,
                       const ParameterInfo& info,
                       const std::string& name,
                       const std::vector<int64_t>& shape,
                       at::ScalarType dtype,
                       at::Device device) {
  if (info.role == ParameterRole::kHashTable) {
    at::Tensor table = at::empty(shape, at::kLong);
    checkpoint.read_int64(name, elements<int64_t>(table));
    return table;
  }
  at::Tensor value;
  if (device.type() != at::kCPU && decodes_on_device(checkpoint.format(name))) {
    value = decode_on(checkpoint.stored(name), device, dtype);
    checkpoint.report_read(name);
  } else if (dtype == at::kDouble) {
    value = at::empty(shape, dtype);
    checkpoint.read_double(name, elements<double>(value));
  } else {
    value = at::empty(shape, dtype);
    checkpoint.read_float(name, elements<float>(value));
  }
  const bool quantized = linear_format(checkpoint.format(name)) != ops::LinearFormat::kPlain;
  // The reference program dequantises this matrix to bf16 once and leaves its input alone.
  return info.role == ParameterRole::kOutputLatent && quantized ? ops::round_bf16(value) : value;
}

/// Dequantising is the slow part, so members of a stack are read in as many threads as there are
/// processors, up to a number whose buffers stay small.
int32_t reading_threads() {
  constexpr unsigned kMost = 16;
  return static_cast<int32_t>(std::clamp(std::thread::hardware_concurrency(), 1U, kMost));
}

void fill_from(const weights::Checkpoint& checkpoint,
               const at::TensorOptions& options,
               ModelParameters& params,
               const std::function<bool(const ParameterInfo&)>& wanted) {
  const at::ScalarType dtype = c10::typeMetaToScalarType(options.dtype());
  BALEEN_CHECK(dtype == at::kFloat || dtype == at::kDouble, "compute dtype");
  fill_parameters(
      params,
      options,
      [&](const ParameterInfo& info, const std::string& name, const std::vector<int64_t>& shape) {
        return read_tensor(checkpoint, info, name, shape, dtype, options.device());
      },
      wanted,
      reading_threads());
}

ops::LinearFormat stored_format(const weights::Checkpoint& checkpoint, const ParameterInfo& info) {
  if (info.stack == 0) {
    return linear_format(checkpoint.format(info.name));
  }
  const weights::WeightFormat first = checkpoint.format(info.member_name(0));
  for (int64_t expert = 1; expert < info.stack; ++expert) {
    const std::string name = info.member_name(expert);
    if (checkpoint.format(name) != first) {
      throw CheckpointError(checkpoint.stored(name).source + ": stored as " +
                            weights::weight_format_name(checkpoint.format(name)) +
                            ", but expert 0 of this layer as " +
                            weights::weight_format_name(first));
    }
  }
  return linear_format(first);
}

}  // namespace

ModelParameters load_parameters(const weights::Checkpoint& checkpoint,
                                const at::TensorOptions& options,
                                bool layers) {
  ModelParameters params = make_empty_parameters(checkpoint.config());
  if (!params.mtp.empty() && !checkpoint.contains("mtp.0.norm.weight")) {
    params.mtp.clear();
  }
  for_each_matrix_or_tensor(params,
                            [&](const ParameterInfo& info, at::Tensor&, ops::LinearFormat* format) {
                              if (format != nullptr) {
                                *format = stored_format(checkpoint, info);
                              }
                            });
  fill_from(checkpoint, options, params, [layers](const ParameterInfo& info) {
    return layers || info.role == ParameterRole::kHashTable ||
           !(info.name.starts_with("layers.") || info.name.starts_with("mtp."));
  });
  return params;
}

std::string main_layer(std::size_t block) {
  return "layers." + std::to_string(block) + ".";
}

void load_layer(const weights::Checkpoint& checkpoint,
                const at::TensorOptions& options,
                const std::string& layer,
                ModelParameters& params) {
  fill_from(checkpoint, options, params, [&layer](const ParameterInfo& info) {
    return info.name.starts_with(layer) && info.role != ParameterRole::kHashTable;
  });
}

void drop_layer(const std::string& layer, ModelParameters& params) {
  for_each_parameter(params, [&](const ParameterInfo& info, at::Tensor& value) {
    if (info.name.starts_with(layer) && info.role != ParameterRole::kHashTable) {
      value.reset();
    }
  });
}

ModelParameters load_parameters(const std::filesystem::path& folder,
                                const at::TensorOptions& options,
                                bool with_mtp) {
  weights::OpenOptions open_options;
  open_options.load_mtp = with_mtp;
  return load_parameters(weights::Checkpoint::open(folder, open_options), options);
}

}  // namespace baleen::model
