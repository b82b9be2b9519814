#pragma once
// Oracle of the finished query heads, in double with the kernel's rounding points: bf16 after the
// norm, the rotation and the transform; E2M1 groups of 32 in index heads.
//
//   std::vector<double> q = query_head_oracle(row, frequencies, position, 1e-6);       // 512
//   IndexHeadBytes k = index_head_oracle(row, frequencies, position);                  // 128

#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "kernels/cache_entry/cache_entry_oracle.h"

namespace baleen::kernels {

inline std::vector<double> query_head_oracle(std::span<const double> row,
                                             std::span<const float> frequencies,
                                             int32_t position,
                                             double eps) {
  return finish_kv_oracle(row, {}, frequencies, position, eps);  // the same steps, no weight
}

struct IndexHeadBytes {
  std::vector<uint8_t> codes;
  float scale = 0.0F;
};

inline IndexHeadBytes index_head_oracle(std::span<const double> row,
                                        std::span<const float> frequencies,
                                        int32_t position) {
  std::vector<double> head(row.begin(), row.end());
  std::vector<double> angles;
  for (const float frequency : frequencies) {
    angles.push_back(static_cast<double>(static_cast<float>(position) * frequency));
  }
  rope_oracle(head, angles, 1, /*inverse=*/false);
  round_row(head);
  head = hadamard_oracle(head);
  round_row(head);
  const EntryBytes entry = index_key_entry_oracle(head, IndexKeyFormat::kFp4InFp8);
  IndexHeadBytes bytes{.codes = entry.values};
  std::memcpy(&bytes.scale, entry.scales.data(), sizeof(bytes.scale));
  return bytes;
}

}  // namespace baleen::kernels
