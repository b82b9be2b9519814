#pragma once
// Packs the weight matrix of a linear from the row-major form of a checkpoint into the tiles the
// kernels read (linear_layout.h). Done once per matrix when weights are loaded; host code, any
// thread, nothing is allocated.
//
//   std::vector<uint8_t> packed(packed_weight_bytes({rows, cols, WeightFormat::kE4m3}));
//   pack_weight({rows, cols, WeightFormat::kE4m3}, codes_as_bytes, packed);

#include <cstdint>
#include <span>

#include "kernels/linear/linear.h"

namespace baleen::kernels {

struct WeightShape {
  int64_t rows = 0;  // outputs
  int64_t cols = 0;  // inputs, a multiple of 128
  WeightFormat format = WeightFormat::kE4m3;
};

/// Rows are rounded up to 64; for kE4m3AsBf16 to 128.
int64_t packed_weight_bytes(const WeightShape& shape);

/// `row_major` holds rows * cols elements (1 byte e4m3, 2 bytes bf16); `packed` has
/// packed_weight_bytes(shape). Wrong sizes are a programmer error (checked).
void pack_weight(const WeightShape& shape,
                 std::span<const uint8_t> row_major,
                 std::span<uint8_t> packed);

}  // namespace baleen::kernels
