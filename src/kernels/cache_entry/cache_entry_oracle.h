#pragma once
// Oracle of cached rows: from a projection's or a pool's row to the bytes in the page. All
// arithmetic in double; rounding points: the input, the normalised, the rotated and (index keys)
// the transformed values are bf16; block scales follow numerics/block_scale.h. The angle is the
// float32 product position * frequency.
//
//   std::vector<double> kv = finish_kv_oracle(row, weight, frequencies, position, 1e-6);
//   EntryBytes entry = kv_entry_oracle(kv);            // 576 value bytes, 8 scale bytes

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "kernels/cache_entry/cache_entry_layout.h"
#include "kernels/hadamard/hadamard_oracle.h"
#include "kernels/rms_norm/rms_norm_oracle.h"
#include "kernels/rope/rope_oracle.h"
#include "numerics/bfloat16.h"
#include "numerics/block_scale.h"

namespace baleen::kernels {

struct EntryBytes {
  std::vector<uint8_t> values, scales;
};

inline void round_row(std::span<double> row) {
  for (double& value : row) {
    value = numerics::round_to_bf16(value);
  }
}

inline std::vector<double> finish_kv_oracle(std::span<const double> input,
                                            std::span<const double> weight,
                                            std::span<const float> frequencies,
                                            int32_t position,
                                            double eps) {
  std::vector<double> row(input.begin(), input.end());
  round_row(row);
  row = rms_norm_oracle(row, weight, eps);
  round_row(row);
  std::vector<double> angles;
  for (const float frequency : frequencies) {
    angles.push_back(static_cast<double>(static_cast<float>(position) * frequency));
  }
  rope_oracle(row, angles, 1, /*inverse=*/false);
  round_row(row);
  return row;
}

inline std::vector<double> finish_index_key_oracle(std::span<const double> input,
                                                   std::span<const double> weight,
                                                   std::span<const float> frequencies,
                                                   int32_t position,
                                                   double eps) {
  std::vector<double> row =
      hadamard_oracle(finish_kv_oracle(input, weight, frequencies, position, eps));
  round_row(row);
  return row;
}

inline EntryBytes kv_entry_oracle(std::span<const double> row) {
  EntryBytes entry{.values = std::vector<uint8_t>(kKvValueBytes),
                   .scales = std::vector<uint8_t>(kKvScaleBytes)};
  numerics::quantize_q8(row.first(kKvNopeDims),
                        kKvScaleDims,
                        std::span(entry.values).first(kKvNopeDims),
                        std::span(entry.scales).first(kKvScales));
  for (std::size_t i = 0; i < kKvRopeDims; ++i) {
    const uint16_t code = numerics::bf16_from_double(row[kKvNopeDims + i]);
    std::memcpy(&entry.values[kKvNopeDims + 2 * i], &code, sizeof(code));
  }
  return entry;
}

inline EntryBytes index_key_entry_oracle(std::span<const double> row, IndexKeyFormat format) {
  EntryBytes entry{
      .values = std::vector<uint8_t>(static_cast<std::size_t>(index_value_bytes(format))),
      .scales = std::vector<uint8_t>(kIndexScaleBytes)};
  if (format == IndexKeyFormat::kFp8) {
    uint8_t code = 0;
    numerics::quantize_q8(row, kIndexDims, entry.values, std::span(&code, 1));
    const float scale = numerics::ue8m0_to_float(code);
    std::memcpy(entry.scales.data(), &scale, sizeof(scale));
    return entry;
  }
  float group_scales[kIndexDims / kIndexFp4Group];
  float largest_scale = 0.0F;
  for (std::size_t g = 0; g < std::size(group_scales); ++g) {
    const auto group = row.subspan(g * kIndexFp4Group, kIndexFp4Group);
    group_scales[g] = numerics::q4_scale(static_cast<float>(numerics::largest_magnitude(group)));
    largest_scale = std::max(largest_scale, group_scales[g]);
    if (format == IndexKeyFormat::kFp4) {
      entry.scales[g] = numerics::ue8m0_from_pow2(group_scales[g]);
    }
  }
  const float stored_scale = largest_scale / 64.0F;
  for (std::size_t i = 0; i < row.size(); ++i) {
    const auto scale = static_cast<double>(group_scales[i / kIndexFp4Group]);
    const uint8_t code = numerics::e2m1_from(row[i] / scale);
    if (format == IndexKeyFormat::kFp4) {
      entry.values[i / 2] = static_cast<uint8_t>(entry.values[i / 2] | code << (i % 2 * 4));
    } else {
      entry.values[i] = numerics::e4m3_from(static_cast<double>(numerics::e2m1_to_float(code)) *
                                            scale / static_cast<double>(stored_scale));
    }
  }
  if (format == IndexKeyFormat::kFp4InFp8) {
    std::memcpy(entry.scales.data(), &stored_scale, sizeof(stored_scale));
  }
  return entry;
}

}  // namespace baleen::kernels
