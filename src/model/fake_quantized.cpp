#include "model/fake_quantized.h"

#include "ops/fake_quantize.h"
#include "ops/rounding.h"

namespace baleen::model {

ModelParameters fake_quantized(const ModelParameters& masters) {
  ModelParameters served = masters;  // tensors are shared until replaced below
  for_each_matrix_or_tensor(
      served, [](const ParameterInfo& info, at::Tensor& value, ops::LinearFormat* format) {
        switch (info.role) {
          case ParameterRole::kDenseMatrix:
          case ParameterRole::kExpertMatrix:
            value = ops::fake_quantize_weight(value, *format);
            return;
          case ParameterRole::kOutputLatent:
            value = ops::round_bf16(ops::fake_quantize_weight(value, *format));
            return;
          case ParameterRole::kEmbedding:
          case ParameterRole::kOutputHead:
          case ParameterRole::kUnquantizedMatrix:
          case ParameterRole::kNorm:
            value = ops::round_bf16(value);
            return;
          case ParameterRole::kHyperFn:
          case ParameterRole::kHyperBase:
          case ParameterRole::kHyperScale:
          case ParameterRole::kSink:
          case ParameterRole::kApe:
          case ParameterRole::kRouterBias:
          case ParameterRole::kHashTable:
            return;  // float32 or integers in the file
        }
      });
  return served;
}

}  // namespace baleen::model
