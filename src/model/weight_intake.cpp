#include "model/weight_intake.h"

#include <span>

#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include "base/error.h"
#include "ops/rounding.h"

namespace baleen::model {
namespace {

bool is_plain(weights::WeightFormat format) {
  return format == weights::WeightFormat::kBf16 || format == weights::WeightFormat::kF16 ||
         format == weights::WeightFormat::kF32 || format == weights::WeightFormat::kF64;
}

bool holds(ops::LinearFormat held, weights::WeightFormat sent) {
  switch (held) {
    case ops::LinearFormat::kPlain:
      return is_plain(sent);
    case ops::LinearFormat::kFp8:
      return sent == weights::WeightFormat::kFp8;
    case ops::LinearFormat::kFp4:
      return sent == weights::WeightFormat::kFp4;
  }
  return false;
}

const char* class_name(ops::LinearFormat format) {
  return format == ops::LinearFormat::kFp8   ? "fp8"
         : format == ops::LinearFormat::kFp4 ? "fp4"
                                             : "plain numbers";
}

template <class Number>
std::span<Number> numbers_of(at::Tensor& tensor) {
  return {tensor.data_ptr<Number>(), static_cast<std::size_t>(tensor.numel())};
}

uint64_t digest_of(std::string_view name, const at::Tensor& value) {
  const at::Tensor host = value.detach().to(at::kCPU).contiguous();
  const std::span<const std::byte> bytes(static_cast<const std::byte*>(host.const_data_ptr()),
                                         static_cast<std::size_t>(host.nbytes()));
  return weights::tensor_digest(name, {bytes});
}

}  // namespace

WeightIntake::WeightIntake(ModelParameters& params) : has_mtp_(!params.mtp.empty()) {
  for_each_matrix_or_tensor(
      params, [&](const ParameterInfo& info, at::Tensor& value, ops::LinearFormat* format) {
        const ops::LinearFormat held = format == nullptr ? ops::LinearFormat::kPlain : *format;
        if (info.stack == 0) {
          places_.emplace(info.name, Place{value.detach(), info.role, held});
        }
        for (int64_t member = 0; member < info.stack; ++member) {
          places_.emplace(info.member_name(member), Place{value.detach()[member], info.role, held});
        }
      });
}

void WeightIntake::check(const weights::WeightManifest& manifest) const {
  std::size_t found = 0;
  for (const weights::ManifestEntry& entry : manifest.entries) {
    const std::string& name = entry.parameter.name;
    const auto place = places_.find(name);
    if (place == places_.end()) {
      if (!has_mtp_ && name.starts_with("mtp.")) {
        continue;
      }
      throw CheckpointError(name + ": is sent, but the model has no such tensor");
    }
    ++found;
    const Place& held = place->second;
    if (held.value.sizes() != at::IntArrayRef(entry.parameter.shape)) {
      throw CheckpointError(name + ": is sent with " +
                            std::to_string(entry.parameter.num_elements()) +
                            " numbers, the model holds " + std::to_string(held.value.numel()) +
                            ", or in another shape");
    }
    const bool is_table = held.role == ParameterRole::kHashTable;
    const bool fits = is_table ? entry.format == weights::WeightFormat::kI64 ||
                                     entry.format == weights::WeightFormat::kI32
                               : holds(held.format, entry.format);
    if (!fits) {
      throw CheckpointError(name + ": is sent as " + weights::weight_format_name(entry.format) +
                            ", the model holds " +
                            (is_table ? "integers" : class_name(held.format)));
    }
  }
  if (found == places_.size()) {
    return;
  }
  std::unordered_map<std::string_view, bool> sent;
  for (const weights::ManifestEntry& entry : manifest.entries) {
    sent[entry.parameter.name] = true;
  }
  for (const auto& [name, place] : places_) {
    if (!sent.contains(name)) {
      throw CheckpointError(name + ": is not sent");
    }
  }
}

void WeightIntake::write(const weights::StreamedTensor& tensor,
                         const weights::ManifestEntry& entry) {
  const auto found = places_.find(tensor.name);
  if (found == places_.end()) {
    return;
  }
  const c10::InferenceMode inference;  // a model that was loaded holds tensors of that kind
  Place& place = found->second;
  const std::vector<int64_t>& shape = entry.parameter.shape;
  const std::span<const std::byte> stored(tensor.encoded.values);
  if (place.role == ParameterRole::kHashTable) {
    at::Tensor table = at::empty(shape, at::kLong);
    weights::decode_table(stored, entry.format, numbers_of<int64_t>(table));
    place.value.copy_(table);
    return;
  }
  at::Tensor value = at::empty(shape, place.value.scalar_type());
  if (value.scalar_type() == at::kDouble) {
    weights::decode_parameter(
        stored, tensor.encoded.scales, shape, entry.format, numbers_of<double>(value));
  } else {
    weights::decode_parameter(
        stored, tensor.encoded.scales, shape, entry.format, numbers_of<float>(value));
  }
  const bool rounds =
      place.role == ParameterRole::kOutputLatent && place.format != ops::LinearFormat::kPlain;
  place.value.copy_(rounds ? ops::round_bf16(value) : value);
}

uint64_t WeightIntake::value_digest(std::string_view name) const {
  return digest_of(name, places_.at(std::string(name)).value);
}

weights::TensorDigests value_digests(const ModelParameters& params) {
  weights::TensorDigests digests;
  ModelParameters shown = params;
  for_each_published_tensor(shown, [&](const std::string& name, const at::Tensor& value) {
    digests.emplace_back(name, digest_of(name, value));
  });
  return digests;
}

}  // namespace baleen::model
