#pragma once
// Stored parameters to values by tensor operators on the device that wants them: a quarter to an
// eighth of the bytes travel, and the device dequantises. The values are those of
// weights::decode_parameter, to the bit.
//
//   at::Tensor w = decode_on(checkpoint.stored(name), options.device(), at::kFloat);

#include <ATen/core/Tensor.h>

#include "weights/checkpoint.h"

namespace baleen::model {

/// Whether decode_on covers the format: FP8, FP4, bf16, f32 and f64.
bool decodes_on_device(weights::WeightFormat format);

/// `dtype`: kFloat or kDouble. Throws CheckpointError when a scale is NaN.
at::Tensor decode_on(const weights::StoredParameter& stored,
                     at::Device device,
                     at::ScalarType dtype);

}  // namespace baleen::model
