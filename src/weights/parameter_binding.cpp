#include "weights/parameter_binding.h"

#include <set>

#include <fmt/format.h>

#include "base/error.h"
#include "numerics/weight_format.h"

namespace baleen::weights {
namespace {

/// How a tensor of this type holds the parameter; none when it cannot.
std::optional<WeightFormat> format_for(const Parameter& parameter, DType dtype) {
  const bool table = parameter.kind == ParameterKind::kTable;
  switch (dtype) {
    case DType::kBf16:
      return table ? std::nullopt : std::optional(WeightFormat::kBf16);
    case DType::kF16:
      return table ? std::nullopt : std::optional(WeightFormat::kF16);
    case DType::kF32:
      return table ? std::nullopt : std::optional(WeightFormat::kF32);
    case DType::kF64:
      return table ? std::nullopt : std::optional(WeightFormat::kF64);
    case DType::kF8E4m3:
      if (parameter.kind == ParameterKind::kMatrix ||
          parameter.kind == ParameterKind::kExpertMatrix) {
        return WeightFormat::kFp8;
      }
      return std::nullopt;
    case DType::kI8:
    case DType::kU8:
      if (parameter.kind == ParameterKind::kExpertMatrix) {
        return WeightFormat::kFp4;
      }
      return std::nullopt;
    case DType::kI64:
      return table ? std::optional(WeightFormat::kI64) : std::nullopt;
    case DType::kI32:
      return table ? std::optional(WeightFormat::kI32) : std::nullopt;
    case DType::kF8E8m0:
      return std::nullopt;
  }
  return std::nullopt;
}

const char* accepted_types(ParameterKind kind) {
  switch (kind) {
    case ParameterKind::kMatrix:
      return "F8_E4M3, BF16, F16, F32 or F64";
    case ParameterKind::kExpertMatrix:
      return "I8 (packed FP4), F8_E4M3, BF16, F16, F32 or F64";
    case ParameterKind::kBf16:
    case ParameterKind::kF32:
      return "BF16, F16, F32 or F64";
    case ParameterKind::kTable:
      return "I64 or I32";
  }
  return "";
}

}  // namespace

ParameterBinding::ParameterBinding(const ShardSet& shards, const ModelConfig& config)
    : shards_(shards), config_(config) {
  for (const ShardSet::Entry& entry : shards.entries()) {
    const NormalName name = normalise_name(entry.tensor->name, config.num_hidden_layers);
    if (name.dropped) {
      dropped_.push_back(entry);
    } else if (name.fused != FusedExperts::kNone) {
      add_fused(name, entry);
    } else {
      add(name.name, {entry, entry.tensor->shape});
    }
  }
}

std::string ParameterBinding::place(const BoundTensor& tensor) const {
  return fmt::format("{}: tensor {}", shards_.file_name(tensor.entry), tensor.entry.tensor->name);
}

void ParameterBinding::add(const std::string& name, BoundTensor tensor) {
  const auto [twin, fresh] = tensors_.emplace(name, tensor);
  if (!fresh) {
    throw CheckpointError(fmt::format("two stored tensors are the parameter {}: {} and {}",
                                      name,
                                      place(twin->second),
                                      place(tensor)));
  }
}

void ParameterBinding::add_fused(const NormalName& name, const ShardSet::Entry& entry) {
  const StoredTensor& tensor = *entry.tensor;
  const bool gate_up = name.fused == FusedExperts::kGateUp;
  const int64_t parts = gate_up ? 2 : 1;
  if (tensor.shape.size() != 3 || tensor.shape[0] != config_.n_routed_experts ||
      tensor.shape[1] % parts != 0) {
    throw CheckpointError(
        fmt::format("{}: tensor {}: fused experts have shape {}, expected [{}, {}, {}]",
                    shards_.file_name(entry),
                    tensor.name,
                    shape_text(tensor.shape),
                    config_.n_routed_experts,
                    gate_up ? 2 * config_.moe_intermediate_size : config_.hidden_size,
                    gate_up ? config_.hidden_size : config_.moe_intermediate_size));
  }
  const std::vector<int64_t> shape = {tensor.shape[1] / parts, tensor.shape[2]};
  const auto slice_bytes =
      static_cast<std::size_t>(shape[0] * shape[1] * dtype_bytes(tensor.dtype));
  const char* leaf = name.fused_scale ? "scale" : "weight";
  std::size_t first_byte = 0;
  for (int64_t expert = 0; expert < tensor.shape[0]; ++expert) {
    for (const char* part : gate_up ? std::vector{"w1", "w3"} : std::vector{"w2"}) {
      add(fmt::format("{}{}.{}.{}", name.name, expert, part, leaf), {entry, shape, first_byte});
      first_byte += slice_bytes;
    }
  }
}

bool ParameterBinding::has_any_below(std::string_view prefix) const {
  const auto found = tensors_.lower_bound(prefix);
  return found != tensors_.end() && found->first.starts_with(prefix);
}

std::span<const std::byte> ParameterBinding::bytes(const BoundTensor& tensor) const {
  int64_t count = dtype_bytes(tensor.entry.tensor->dtype);
  for (const int64_t extent : tensor.shape) {
    count *= extent;
  }
  return shards_.bytes(tensor.entry).subspan(tensor.first_byte, static_cast<std::size_t>(count));
}

bool ParameterBinding::bind(const Parameter& parameter, StoredParameter& out) {
  const auto found = tensors_.find(parameter.name);
  if (found == tensors_.end()) {
    return false;
  }
  BoundTensor& tensor = found->second;
  const DType dtype = tensor.entry.tensor->dtype;
  const std::optional<WeightFormat> format = format_for(parameter, dtype);
  if (!format) {
    throw CheckpointError(fmt::format("{}: type {} cannot hold {}, expected {}",
                                      place(tensor),
                                      dtype_name(dtype),
                                      parameter.name,
                                      accepted_types(parameter.kind)));
  }
  if (*format == WeightFormat::kFp4 && parameter.shape[1] % numerics::kFp4Group != 0) {
    throw CheckpointError(
        fmt::format("{}: FP4 needs an input width that is a multiple of {}, got {}",
                    place(tensor),
                    numerics::kFp4Group,
                    parameter.shape[1]));
  }
  const std::vector<TensorSpec> forms = stored_forms(parameter, *format);
  if (tensor.shape != forms[0].shape) {
    throw CheckpointError(fmt::format("{}: shape of {} is {}, expected {} by config.json",
                                      place(tensor),
                                      parameter.name,
                                      shape_text(tensor.shape),
                                      shape_text(forms[0].shape)));
  }
  tensor.used = true;
  out.format = *format;
  out.shape = parameter.shape;
  out.values = bytes(tensor);
  out.source = place(tensor);
  if (forms.size() == 1) {
    return true;
  }
  const auto scale = tensors_.find(forms[1].name);
  if (scale == tensors_.end()) {
    throw CheckpointError(fmt::format("{}: {} is {}, but its scale tensor {} is not there",
                                      place(tensor),
                                      parameter.name,
                                      weight_format_name(*format),
                                      forms[1].name));
  }
  BoundTensor& scales = scale->second;
  if (scales.entry.tensor->dtype != DType::kF8E8m0 || scales.shape != forms[1].shape) {
    throw CheckpointError(fmt::format("{}: the scale {} is {} {}, expected {} F8_E8M0",
                                      place(scales),
                                      forms[1].name,
                                      shape_text(scales.shape),
                                      dtype_name(scales.entry.tensor->dtype),
                                      shape_text(forms[1].shape)));
  }
  scales.used = true;
  const std::span<const std::byte> raw = bytes(scales);
  out.scales = {reinterpret_cast<const uint8_t*>(raw.data()), raw.size()};
  return true;
}

std::vector<std::string> ParameterBinding::unused() const {
  std::set<std::string> names;  // a fused tensor counts once
  for (const auto& [name, tensor] : tensors_) {
    if (!tensor.used) {
      names.insert(tensor.entry.tensor->name);
    }
  }
  for (const ShardSet::Entry& entry : dropped_) {
    names.insert(entry.tensor->name);
  }
  return {names.begin(), names.end()};
}

bool ParameterBinding::is_drafter(const std::string& stored_name) const {
  const NormalName name = normalise_name(stored_name, config_.num_hidden_layers);
  return name.dropped || name.name.starts_with("mtp.");
}

}  // namespace baleen::weights
