#pragma once
// Packs expert matrices from their checkpoint form into the device form of expert_tiles.h, once at
// load time. Owner: the loader. Any thread; allocates the result.
//
//   const ExpertMatrix gate{.codes = w1, .scales = s1, .rows = 512, .inputs = 4096};
//   std::vector<std::byte> tiles = pack_up_fp4(gate, up, "layers.3.ffn.experts.7.w1/w3");
//
// Rows of w1 and w3 are interleaved in eights: tile rows 16w + g and 16w + g + 8 are gate and up of
// channel 32 * tile + 8w + g, the two accumulator rows of one lane.
// Every UE8M0 scale up to code 248 (2^121) is kept exactly, whatever its neighbours are; NaN scales
// and larger ones are refused with the tensor's name, the row and the stretch of 128 inputs (larger
// ones only where the group's codes are not all zero). Rows are a multiple of 64 (of each of w1 and
// w3: 32), inputs of 128.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace baleen::kernels {

/// FP4: codes [rows, inputs / 2] with the even input in the low nibble, UE8M0 scales [rows, inputs
/// / 32]. FP8: codes [rows, inputs] e4m3, UE8M0 scales [ceil(rows / 128), inputs / 128].
struct ExpertMatrix {
  std::span<const uint8_t> codes;
  std::span<const uint8_t> scales;
  int64_t rows = 0;
  int64_t inputs = 0;
};

std::vector<std::byte> pack_up_fp4(const ExpertMatrix& gate,
                                   const ExpertMatrix& up,
                                   const std::string& name);
std::vector<std::byte> pack_down_fp4(const ExpertMatrix& down, const std::string& name);
std::vector<std::byte> pack_up_fp8(const ExpertMatrix& gate,
                                   const ExpertMatrix& up,
                                   const std::string& name);
std::vector<std::byte> pack_down_fp8(const ExpertMatrix& down, const std::string& name);

/// Bytes of the packed form of [rows, inputs].
int64_t packed_expert_bytes(int64_t rows, int64_t inputs, bool fp8);

}  // namespace baleen::kernels
