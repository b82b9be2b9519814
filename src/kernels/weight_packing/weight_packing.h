#pragma once
// Packs weights on the card, from the row-major bytes of a checkpoint in device memory to the form
// that the kernels read: the bytes of kernels/linear's pack_weight and kernels/experts' pack_*,
// which are the oracles. For loading: one thread per few bytes, nothing tuned.
//
//   launch_pack_weight({rows, cols, WeightFormat::kE4m3}, codes, packed, stream);
//   launch_pack_expert({.codes = {w1, w3}, .scales = {s1, s3}, .packed = up, .rows = 2048,
//                       .inputs = 4096}, stream);
//
// Errors: sizes as for the host's functions (checked). Scale codes are not: see usual_scales. Sync:
// none; allocates nothing.

#include <cstddef>
#include <cstdint>
#include <span>

#include "device/stream_handle.h"
#include "kernels/linear/linear_pack.h"

namespace baleen::kernels {

/// `row_major`: u8 [rows, cols · element]; `packed`: packed_weight_bytes(shape) zeroed bytes.
void launch_pack_weight(const WeightShape& shape,
                        const uint8_t* row_major,
                        uint8_t* packed,
                        device::StreamHandle stream);

/// One matrix (down), or gate and up, whose rows alternate in eights in the packed form.
struct PackExpertParams {
  const uint8_t* codes[2] = {};  // FP4 u8 [rows, inputs / 2], FP8 u8 [rows, inputs]; second or null
  const uint8_t* scales[2] = {};  // FP4 [rows, inputs / 32], FP8 [ceil(rows / 128), inputs / 128]
  std::byte* packed = nullptr;    // out
  int64_t rows = 0;               // of each: a multiple of 64, of 32 where there are two
  int64_t inputs = 0;             // a multiple of 128
  bool fp8 = false;
};
void launch_pack_expert(const PackExpertParams& params, device::StreamHandle stream);

/// Whether no scale code needs the host's functions, which refuse some and say which.
bool usual_expert_scales(std::span<const uint8_t> scales, bool fp8);

}  // namespace baleen::kernels
