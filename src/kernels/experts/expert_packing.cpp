#include "kernels/experts/expert_packing.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/error.h"
#include "kernels/experts/expert_tiles.h"
#include "numerics/weight_format.h"

namespace baleen::kernels {
namespace {

constexpr int kGroups = kExpertBlockInputs / static_cast<int>(numerics::kFp4Group);

/// Where a tile row comes from.
struct SourceRow {
  const ExpertMatrix* matrix = nullptr;
  int64_t row = 0;
};

SourceRow interleaved_row(const ExpertMatrix& gate,
                          const ExpertMatrix& up,
                          int64_t tile,
                          int64_t tile_row) {
  const int64_t channel = 32 * tile + 8 * (tile_row / 16) + tile_row % 8;
  return {tile_row % 16 < 8 ? &gate : &up, channel};
}

void check_shape(const ExpertMatrix& matrix, int64_t row_unit, bool fp8, const std::string& name) {
  const int64_t rows = matrix.rows;
  const int64_t inputs = matrix.inputs;
  if (rows <= 0 || rows % row_unit != 0 || inputs <= 0 || inputs % kExpertBlockInputs != 0) {
    throw CheckpointError(name + ": an expert matrix of " + std::to_string(rows) + " x " +
                          std::to_string(inputs) + "; rows must be a multiple of " +
                          std::to_string(row_unit) + ", inputs of 128");
  }
  const int64_t codes = fp8 ? rows * inputs : rows * inputs / 2;
  const int64_t scales = fp8 ? numerics::ceil_div(rows, 128) * (inputs / kExpertBlockInputs)
                             : rows * inputs / numerics::kFp4Group;
  BALEEN_CHECK(static_cast<int64_t>(matrix.codes.size()) == codes &&
                   static_cast<int64_t>(matrix.scales.size()) == scales,
               "{}: codes={} of {} scales={} of {}",
               name,
               matrix.codes.size(),
               codes,
               matrix.scales.size(),
               scales);
}

uint32_t fp4_code(const SourceRow& source, int64_t input) {
  const uint8_t byte =
      source.matrix
          ->codes[static_cast<std::size_t>(source.row * source.matrix->inputs / 2 + input / 2)];
  return input % 2 == 0 ? numerics::low_nibble(byte) : numerics::high_nibble(byte);
}

uint32_t fp4_word(const SourceRow& source, int64_t first_input) {
  uint32_t word = 0;
  for (int n = 0; n < 8; ++n) {
    // Inputs 4q + {0..3} feed the first register, 16 inputs further the second.
    word |= placed_code(fp4_code(source, first_input + n % 4 + 16 * (n / 4)), n);
  }
  return word;
}

bool all_zero(const SourceRow& source, int64_t first_input) {
  for (int64_t i = 0; i < numerics::kFp4Group; ++i) {
    if ((fp4_code(source, first_input + i) & 7U) != 0) {
      return false;
    }
  }
  return true;
}

/// Exponent word of one row's stretch; refuses what a float's exponent cannot hold.
uint32_t fp4_exponents(const SourceRow& source, int64_t block, const std::string& name) {
  uint32_t word = 0;
  for (int j = 0; j < kGroups; ++j) {
    const int64_t input = block * kExpertBlockInputs + j * numerics::kFp4Group;
    const uint32_t code = source.matrix->scales[static_cast<std::size_t>(
        (source.row * source.matrix->inputs + input) / numerics::kFp4Group)];
    const auto refuse = [&](const std::string& why) {
      throw CheckpointError(name + ": row " + std::to_string(source.row) + ", stretch " +
                            std::to_string(block) + ": " + why);
    };
    if (code == 255) {
      refuse("a scale is NaN");
    }
    const bool empty = all_zero(source, input);  // any exponent is right
    if (!empty && code > kMostScaleCode) {
      refuse("scale code " + std::to_string(code) + " is above " + std::to_string(kMostScaleCode));
    }
    word |= (empty ? 127U : code + kMagnitudeShift) << (8 * j);
  }
  return word;
}

void store_word(std::byte* place, uint32_t word) {
  std::memcpy(place, &word, sizeof(word));
}

/// `row_of(tile, tile row)` names the source of a row.
template <class RowOf>
std::vector<std::byte> pack_fp4(int64_t tiles,
                                int64_t inputs,
                                RowOf&& row_of,
                                const std::string& name) {
  const int64_t blocks = inputs / kExpertBlockInputs;
  std::vector<std::byte> packed(static_cast<std::size_t>(tiles * blocks * kFp4BlockBytes));
  std::byte* block_begin = packed.data();
  for (int64_t tile = 0; tile < tiles; ++tile) {
    for (int64_t block = 0; block < blocks; ++block, block_begin += kFp4BlockBytes) {
      for (int thread = 0; thread < 128; ++thread) {
        const int row = 16 * (thread / 32) + thread % 32 / 4;
        const SourceRow sources[2] = {row_of(tile, row), row_of(tile, row + 8)};
        for (int instruction = 0; instruction < 4; ++instruction) {
          std::byte* place =
              block_begin + lane_place(instruction / 2, thread) + instruction % 2 * 8;
          const int64_t input = block * kExpertBlockInputs + instruction * 32 + thread % 4 * 4;
          store_word(place, fp4_word(sources[0], input));
          store_word(place + 4, fp4_word(sources[1], input));
        }
        if (thread % 4 == 0) {
          for (int upper = 0; upper < 2; ++upper) {
            store_word(block_begin + 4096 + word_place(thread / 32, thread % 32 / 4, upper),
                       fp4_exponents(sources[upper], block, name));
          }
        }
      }
    }
  }
  return packed;
}

template <class RowOf>
std::vector<std::byte> pack_fp8(int64_t tiles,
                                int64_t inputs,
                                RowOf&& row_of,
                                const std::string& name) {
  const int64_t blocks = inputs / kExpertBlockInputs;
  std::vector<std::byte> packed(static_cast<std::size_t>(tiles * blocks * kFp8BlockBytes));
  std::byte* block_begin = packed.data();
  for (int64_t tile = 0; tile < tiles; ++tile) {
    for (int64_t block = 0; block < blocks; ++block, block_begin += kFp8BlockBytes) {
      for (int thread = 0; thread < 128; ++thread) {
        const int row = 16 * (thread / 32) + thread % 32 / 4;
        for (int part = 0; part < 16; ++part) {
          // Register r of instruction j: row + 8 * (r % 2), inputs from 4q + 16 * (r / 2).
          const int instruction = part / 4;
          const int reg = part % 4;
          const SourceRow source = row_of(tile, row + 8 * (reg % 2));
          const int64_t input =
              block * kExpertBlockInputs + instruction * 32 + thread % 4 * 4 + 16 * (reg / 2);
          std::memcpy(
              block_begin + lane_place(instruction, thread) + reg * 4,
              &source.matrix
                   ->codes[static_cast<std::size_t>(source.row * source.matrix->inputs + input)],
              4);
        }
        for (int upper = 0; upper < 2 && thread % 4 == 0; ++upper) {
          const SourceRow source = row_of(tile, row + 8 * upper);
          const uint8_t scale =
              source.matrix->scales[static_cast<std::size_t>(source.row / 128 * blocks + block)];
          if (scale == 0 || scale == 255) {
            throw CheckpointError(name + ": row " + std::to_string(source.row) + ", stretch " +
                                  std::to_string(block) + ": scale code " + std::to_string(scale) +
                                  " is not a normal number");
          }
          store_word(block_begin + 8192 + word_place(thread / 32, thread % 32 / 4, upper),
                     static_cast<uint32_t>(scale) << 23);
        }
      }
    }
  }
  return packed;
}

auto interleave(const ExpertMatrix& gate, const ExpertMatrix& up) {
  return [&gate, &up](int64_t tile, int64_t row) { return interleaved_row(gate, up, tile, row); };
}
auto plain(const ExpertMatrix& matrix) {
  return [&matrix](int64_t tile, int64_t row) {
    return SourceRow{&matrix, tile * kExpertTileRows + row};
  };
}
void check_pair(const ExpertMatrix& gate,
                const ExpertMatrix& up,
                bool fp8,
                const std::string& name) {
  check_shape(gate, kExpertTileRows / 2, fp8, name);
  check_shape(up, kExpertTileRows / 2, fp8, name);
  BALEEN_CHECK(gate.rows == up.rows && gate.inputs == up.inputs,
               "{}: gate {} x {}, up {} x {}",
               name,
               gate.rows,
               gate.inputs,
               up.rows,
               up.inputs);
}

}  // namespace

std::vector<std::byte> pack_up_fp4(const ExpertMatrix& gate,
                                   const ExpertMatrix& up,
                                   const std::string& name) {
  check_pair(gate, up, false, name);
  return pack_fp4(2 * gate.rows / kExpertTileRows, gate.inputs, interleave(gate, up), name);
}

std::vector<std::byte> pack_down_fp4(const ExpertMatrix& down, const std::string& name) {
  check_shape(down, kExpertTileRows, false, name);
  return pack_fp4(down.rows / kExpertTileRows, down.inputs, plain(down), name);
}

std::vector<std::byte> pack_up_fp8(const ExpertMatrix& gate,
                                   const ExpertMatrix& up,
                                   const std::string& name) {
  check_pair(gate, up, true, name);
  return pack_fp8(2 * gate.rows / kExpertTileRows, gate.inputs, interleave(gate, up), name);
}

std::vector<std::byte> pack_down_fp8(const ExpertMatrix& down, const std::string& name) {
  check_shape(down, kExpertTileRows, true, name);
  return pack_fp8(down.rows / kExpertTileRows, down.inputs, plain(down), name);
}

int64_t packed_expert_bytes(int64_t rows, int64_t inputs, bool fp8) {
  return rows / kExpertTileRows * (inputs / kExpertBlockInputs) *
         (fp8 ? kFp8BlockBytes : kFp4BlockBytes);
}

}  // namespace baleen::kernels
