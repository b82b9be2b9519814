#pragma once
// What a caller of the compressor's launchers must have got right. Host code, any thread.
//
//   check_compressor_params(params);   // aborts with the values

#include <cstdint>

#include "base/check.h"
#include "kernels/compressor_pool/compressor_pool.h"

namespace baleen::kernels {

inline bool is_aligned_16(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
}

inline void check_compressor_params(const CompressorPoolParams& p) {
  BALEEN_CHECK(p.max_entries >= 0, "max_entries={}", p.max_entries);
  if (p.max_entries == 0) {
    return;
  }
  BALEEN_CHECK(p.row_stride % 4 == 0 && p.row_stride >= 2 * compressor_row_width(p.kind),
               "row_stride={} width={}",
               p.row_stride,
               compressor_row_width(p.kind));
  BALEEN_CHECK(p.rows != nullptr && p.plan != nullptr && p.norm_weight != nullptr &&
               p.frequencies != nullptr);
  BALEEN_CHECK(is_aligned_16(p.rows) && is_aligned_16(p.ape) && is_aligned_16(p.ring) &&
               is_aligned_16(p.norm_weight) && is_aligned_16(p.plan));
  BALEEN_CHECK(p.ring == nullptr || p.ring_size >= compressor_window(p.kind),
               "ring_size={} window={}",
               p.ring_size,
               compressor_window(p.kind));
  const bool is_index = p.kind == CompressorKind::kIndex;
  BALEEN_CHECK(is_index ? p.index_pool.base != nullptr && p.index_pool.rows_per_page > 0
                        : p.kv_pool.base != nullptr && p.kv_pool.rows_per_page > 0,
               "kind={}",
               static_cast<int>(p.kind));
}

}  // namespace baleen::kernels
