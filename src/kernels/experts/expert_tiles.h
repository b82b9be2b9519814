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
// of one row. The three bits of a magnitude, put under an e4m3 code's exponent and mantissa (bits
// 4..2), are the magnitude times 2^-6, sub-normal or not: a code becomes e4m3 by moving its bits.
// Byte k of a word holds code k where e4m3 has it (sign in bit 7, magnitude in bits 4..2) and code
// k + 4 in the rest (sign in bit 5, magnitude in bits 6, 1 and 0, from the highest down).
//
// Exponent word, FP4: byte j = UE8M0 code of group j (32 inputs) + 6, which takes the 2^-6 back.
// The product of each group is scaled by itself, so that scales may span whatever they like. FP8:
// the UE8M0 code of the block as a float's exponent field (bits 23..30).

#include <cstdint>

#include "numerics/host_device.h"

namespace baleen::kernels {

inline constexpr int kExpertTileRows = 64;
inline constexpr int kExpertBlockInputs = 128;  // inputs that share an activation scale
inline constexpr int kExpertWordBytes = 256;    // exponent words of a block
inline constexpr int kFp4BlockBytes = 4096 + kExpertWordBytes;
inline constexpr int kFp8BlockBytes = 8192 + kExpertWordBytes;
inline constexpr int kMagnitudeShift = 6;   // e4m3 codes hold the weight times 2^-6
inline constexpr int kMostScaleCode = 248;  // + 6 is still a normal float's exponent

/// Eight FP4 codes of one row to two registers of four e4m3 codes: codes 0..3 and 4..7.
BALEEN_HOST_DEVICE inline void expand_word(uint32_t word, uint32_t& first, uint32_t& second) {
  first = word & 0x9C9C9C9CU;
  second = ((word << 2) & 0x8C8C8C8CU) | ((word >> 2) & 0x10101010U);
}
/// Where code `n` of a word goes: the inverse of expand_word.
BALEEN_HOST_DEVICE inline uint32_t placed_code(uint32_t code, int n) {
  const uint32_t sign = code >> 3;
  const uint32_t magnitude = code & 7U;
  const uint32_t byte =
      n < 4 ? sign << 7 | magnitude << 2 : (magnitude & 4U) << 4 | sign << 5 | (magnitude & 3U);
  return byte << (8 * (n % 4));
}

/// What the product of group `group` is multiplied with (FP4).
BALEEN_HOST_DEVICE inline float group_scale(uint32_t word, int group) {
  const uint32_t moved = group < 3 ? word << (23 - 8 * group) : word >> 1;
  return numerics::float_from_bits(moved & 0x7F800000U);
}
/// What the product of a block is multiplied with (FP8).
BALEEN_HOST_DEVICE inline float block_scale(uint32_t word) {
  return numerics::float_from_bits(word & 0x7F800000U);
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
