#pragma once
// One matrix product computed with a chosen tensor instruction, to prove which choices leave every
// bit as it is: the number of columns, the side a matrix is on, whether A comes from shared memory
// or from registers. Invariant mode lets tile shapes vary freely only on cards where all of them
// agree. out[r, t] = start[r, t] + sum_k weights[r, k] * tokens[t, k], K groups ascending. Sync:
// none; capture-safe.
//
//   launch_mma_probe({.weights = w, .tokens = x, .start = c, .out = y, .rows = 64, .num_tokens =
//   768,
//                     .k = 128, .columns = 64}, stream);

#include <cstdint>

#include "device/stream_handle.h"

namespace baleen::kernels {

enum class MmaFormat { kBf16, kE4m3 };  // 16 and 32 products per instruction
enum class MmaOrder { kWeightsAsA, kTokensAsA };
enum class MmaSource { kShared, kRegisters };

struct MmaProbeParams {
  const uint8_t* weights = nullptr;  // [rows, k] of the format
  const uint8_t* tokens = nullptr;   // [num_tokens, k]
  const float* start = nullptr;      // f32 [rows, num_tokens]
  float* out = nullptr;              // f32 [rows, num_tokens]
  int rows = 0;                      // multiple of 64; of `columns` too when tokens are A
  int num_tokens = 0;                // multiple of `columns`; of 64 when tokens are A
  int k = 0;                         // multiple of 128
  MmaFormat format = MmaFormat::kE4m3;
  int columns = 8;  // N of the instruction: 8, 16, 24, 64, 128 or 256
  MmaOrder order = MmaOrder::kWeightsAsA;
  MmaSource source = MmaSource::kShared;
  /// 0: one running sum in the tensor core. Otherwise a fresh sum every so many k, added in FP32.
  int promote_every = 0;  // 0, 64 or 128
};
void launch_mma_probe(const MmaProbeParams& params, device::StreamHandle stream);

}  // namespace baleen::kernels
