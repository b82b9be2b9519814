#pragma once
// Oracle of one cached row: 448 e4m3 codes with a UE8M0 scale per 64, then 64 bf16 values, as the
// attention kernels read it. Values round to bf16 where a scale leaves its range; the codes 0x7F
// and 0xFF, which no writer stores, read as +-480 times the scale.
//
//   std::vector<double> row = kernels::kv_row_oracle(values, scales);   // 576 and 8 bytes

#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/cache_entry/cache_entry_layout.h"
#include "numerics/bfloat16.h"
#include "numerics/float8.h"

namespace baleen::kernels {

inline std::vector<double> kv_row_oracle(const uint8_t* values, const uint8_t* scales) {
  std::vector<double> row(kKvDims);
  for (int i = 0; i < kKvNopeDims; ++i) {
    const bool unused = (values[i] & 0x7F) == 0x7F;
    const double code = unused ? (values[i] >= 0x80 ? -480.0 : 480.0)
                               : static_cast<double>(numerics::e4m3_to_float(values[i]));
    row[static_cast<std::size_t>(i)] =
        numerics::round_to_bf16(std::ldexp(code, scales[i / kKvScaleDims] - 127));
  }
  const uint8_t* rope = values + kKvNopeDims;
  for (int i = 0; i < kKvRopeDims; ++i) {
    const auto bits = static_cast<uint16_t>(rope[2 * i] | (rope[2 * i + 1] << 8));
    row[static_cast<std::size_t>(kKvNopeDims + i)] =
        static_cast<double>(numerics::bf16_to_float(bits));
  }
  return row;
}

}  // namespace baleen::kernels
