#include "model/fake_quantized.h"

#include "ops/fake_quantize.h"
#include "ops/rounding.h"

namespace baleen::model {

at::Tensor fake_quantized(const ParameterInfo& info,
                          const at::Tensor& master,
                          ops::LinearFormat format) {
  switch (info.role) {
    case ParameterRole::kDenseMatrix:
    case ParameterRole::kExpertMatrix:
      return ops::fake_quantize_weight(master, format);
    case ParameterRole::kOutputLatent:
      return ops::round_bf16(ops::fake_quantize_weight(master, format));
    case ParameterRole::kEmbedding:
    case ParameterRole::kOutputHead:
    case ParameterRole::kUnquantizedMatrix:
    case ParameterRole::kNorm:
      return ops::round_bf16(master);
    case ParameterRole::kHyperFn:
    case ParameterRole::kHyperBase:
    case ParameterRole::kHyperScale:
    case ParameterRole::kSink:
    case ParameterRole::kApe:
    case ParameterRole::kRouterBias:
    case ParameterRole::kHashTable:
      break;  // float32 or integers in the file
  }
  return master;
}

ModelParameters fake_quantized(const ModelParameters& masters) {
  ModelParameters served = masters;  // tensors are shared until replaced below
  for_each_matrix_or_tensor(
      served, [](const ParameterInfo& info, at::Tensor& value, ops::LinearFormat* format) {
        value =
            fake_quantized(info, value, format == nullptr ? ops::LinearFormat::kPlain : *format);
      });
  return served;
}

}  // namespace baleen::model
