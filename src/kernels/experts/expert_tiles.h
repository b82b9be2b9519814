#pragma once
// Device form of expert weights: tiles of 64 output rows, each a run of blocks of 128 inputs,
// contiguous so that one-dimensional bulk copies fetch any run of blocks. A block holds the codes
// in the order in which the lanes of a warp group feed them to m64nNk32 as the register operand,
// then one word of exponents per row. Written by expert_packing.h, read by the kernels; pure
// functions.
//
//   block (FP4):  4 warps x 2 halves: lane's 16 bytes = codes of two instructions (4,096 bytes)
//                 64 exponent words                                               (256 bytes)
//   block (FP8):  4 instructions: lane's 16 bytes = codes of one instruction      (8,192 bytes)
//                 64 exponent words                                               (256 bytes)
//
// A lane (group g = lane / 4, quad q = lane % 4) of warp w holds rows 16w + g and 16w + g + 8 at
// inputs 32j + 4q + {0..3} and 32j + 16 + 4q + {0..3} of instruction j: an FP4 word has the 8 codes
// of one row. Magnitude n lies in bits 4n..4n+2; the sign of n < 4 in bit 8n + 7, of n >= 4 in bit
// 8(n - 4) + 3, so that a byte permute with the word as selector gives four e4m3 magnitudes and one
// mask gives their signs.
//
// Exponent word: bits 4j..4j+3 = offset of group j (32 inputs) + 8, in 0..14; bits 23..30 = the
// base exponent as a float's exponent field. The weight is e4m3 * 2^(base - 127), where e4m3 = e2m1
// * 2^offset is exact for offsets -8..6. FP8 blocks use the base alone.

#include <cstdint>

#include "numerics/host_device.h"

#if defined(__CUDACC__)
#include "kernels/ptx/byte_permute.cuh"
#endif

namespace baleen::kernels {

inline constexpr int kExpertTileRows = 64;
inline constexpr int kExpertBlockInputs = 128;  // inputs that share an activation scale
inline constexpr int kExpertWordBytes = 256;    // exponent words of a block
inline constexpr int kFp4BlockBytes = 4096 + kExpertWordBytes;
inline constexpr int kFp8BlockBytes = 8192 + kExpertWordBytes;
inline constexpr int kLeastOffset = -8;        // 0.5 * 2^-8 = 2^-9, the smallest e4m3 number
inline constexpr int kMostOffset = 6;          // 6 * 2^6 = 384 <= 448
inline constexpr int kLeastNormalOffset = -5;  // from here on every magnitude is a normal e4m3

/// e4m3 magnitudes of the FP4 magnitudes 0..3 (`low`) and 4..7 (`high`), one per byte.
struct ExpertMagnitudes {
  uint32_t low = 0;
  uint32_t high = 0;
};

/// For offsets of at least -5: the exponent is added to every magnitude but 0. `biased` is 3..14.
BALEEN_HOST_DEVICE inline ExpertMagnitudes shifted_magnitudes(uint32_t biased) {
  // The byte constants minus 8 * 8 steps of the bias, modulo 2^32: no byte borrows in the end.
  return {biased * 0x08080800U + (0x3C383000U - 0x40404000U),
          biased * 0x08080808U + (0x4C484440U - 0x40404040U)};
}

/// e4m3 code of `twice` / 2 * 2^(biased - 8), exact for twice in {0, 1, 2, 3, 4, 6, 8, 12}.
BALEEN_HOST_DEVICE inline uint32_t scaled_magnitude(uint32_t twice, uint32_t biased) {
  // twice * 2^(biased - 9) = quanta * 2^-9 with quanta = twice << biased.
  const uint32_t quanta = twice << biased;
  if (quanta < 8) {
    return quanta;
  }
  uint32_t exponent = 0;
  uint32_t mantissa = quanta;
  while (mantissa >= 16) {
    mantissa >>= 1;
    ++exponent;
  }
  return ((exponent + 1) << 3) | (mantissa & 7);
}

/// The same for every offset; entry of the table that the kernels keep in shared memory.
BALEEN_HOST_DEVICE inline ExpertMagnitudes table_magnitudes(uint32_t biased) {
  return {scaled_magnitude(0, biased) | scaled_magnitude(1, biased) << 8 |
              scaled_magnitude(2, biased) << 16 | scaled_magnitude(3, biased) << 24,
          scaled_magnitude(4, biased) | scaled_magnitude(6, biased) << 8 |
              scaled_magnitude(8, biased) << 16 | scaled_magnitude(12, biased) << 24};
}

/// Four bytes of the eight in (high, low), chosen by the selector's low four nibbles, each below 8.
BALEEN_HOST_DEVICE inline uint32_t choose_bytes(ExpertMagnitudes from, uint32_t selector) {
#if defined(__CUDA_ARCH__)
  return ptx::permute_bytes(from.low, from.high, selector);
#else
  const uint64_t bytes = (static_cast<uint64_t>(from.high) << 32) | from.low;
  uint32_t chosen = 0;
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t at = (selector >> (4 * i)) & 7U;
    chosen |= static_cast<uint32_t>((bytes >> (8 * at)) & 0xFFU) << (8 * i);
  }
  return chosen;
#endif
}

/// Eight FP4 codes of one row to two registers of four e4m3 codes.
BALEEN_HOST_DEVICE inline void expand_word(uint32_t word,
                                           ExpertMagnitudes magnitudes,
                                           uint32_t& first,
                                           uint32_t& second) {
  const uint32_t selector = word & 0x77777777U;
  first = choose_bytes(magnitudes, selector) | (word & 0x80808080U);
  second = choose_bytes(magnitudes, selector >> 16) | ((word << 4) & 0x80808080U);
}

/// 2^(base - 127) of an exponent word.
BALEEN_HOST_DEVICE inline float word_scale(uint32_t word) {
  return numerics::float_from_bits(word & 0x7F800000U);
}
BALEEN_HOST_DEVICE inline uint32_t word_offset(uint32_t word, int group) {
  return (word >> (4 * group)) & 15U;  // biased by 8
}

/// Place of the 16 bytes of a lane: `part` is the half (FP4, 2 instructions each) or the
/// instruction (FP8).
BALEEN_HOST_DEVICE inline int lane_place(int part, int thread) {
  return part * 2048 + thread * 16;  // thread = 32 * warp + lane within the warp group
}
/// Place of the exponent word of row 16 * warp + group + 8 * upper, from the end of the codes.
BALEEN_HOST_DEVICE inline int word_place(int warp, int group, int upper) {
  return (warp * 8 + group) * 8 + upper * 4;
}

}  // namespace baleen::kernels
