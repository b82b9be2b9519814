#pragma once
// Values of one parameter to the bytes a checkpoint stores, in any weight format, and back.
//
//   EncodedParameter e = encode_parameter(std::span<const float>(values), shape,
//   WeightFormat::kFp8);
//   decode_parameter(e.values, e.scales, shape, WeightFormat::kFp8, std::span<float>(back));

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "weights/tensor_inventory.h"

namespace baleen::weights {

struct EncodedParameter {
  std::vector<std::byte> values;
  std::vector<uint8_t> scales;  // UE8M0, for kFp8 and kFp4
};

/// Rounds once, to nearest even, from the given type. kFp8 and kFp4 take the power-of-two scale of
/// each tile or group; FP4 needs an input width that is a multiple of 32 (checked).
EncodedParameter encode_parameter(std::span<const float> values,
                                  const std::vector<int64_t>& shape,
                                  WeightFormat format);
EncodedParameter encode_parameter(std::span<const double> values,
                                  const std::vector<int64_t>& shape,
                                  WeightFormat format);
/// Routing tables.
EncodedParameter encode_table(std::span<const int64_t> values);

/// Exact for every format but f64 as float. Sizes must fit (checked). `stored` may be unaligned.
/// Throws CheckpointError when a scale is NaN.
void decode_parameter(std::span<const std::byte> stored,
                      std::span<const uint8_t> scales,
                      const std::vector<int64_t>& shape,
                      WeightFormat format,
                      std::span<float> values);
void decode_parameter(std::span<const std::byte> stored,
                      std::span<const uint8_t> scales,
                      const std::vector<int64_t>& shape,
                      WeightFormat format,
                      std::span<double> values);
/// Tables in kI64 or kI32 (checked).
void decode_table(std::span<const std::byte> stored,
                  WeightFormat format,
                  std::span<int64_t> values);

}  // namespace baleen::weights
