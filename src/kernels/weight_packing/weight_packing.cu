#include <algorithm>
#include <cstdint>

#include "base/check.h"
#include "device/launch.h"
#include "kernels/experts/expert_tiles.h"
#include "kernels/linear/linear_layout.h"
#include "kernels/weight_packing/weight_packing.h"

namespace baleen::kernels {
namespace {

constexpr int kPackThreads = 128;  // of an expert's block: the lanes of a warp group

/// A thread per 16 bytes of a row.
__global__ void __launch_bounds__(kPackThreads) pack_weight_kernel(
    const uint8_t* row_major, uint8_t* packed, int64_t rows, int64_t row_bytes, TileOrder order) {
  const int64_t chunk = static_cast<int64_t>(blockIdx.x) * kPackThreads + threadIdx.x;
  const int64_t row_chunks = row_bytes / 16;
  const int64_t row = chunk / row_chunks;
  if (row >= rows) {
    return;
  }
  const int64_t byte = (chunk - row * row_chunks) * 16;
  const int64_t tiles = row_bytes / kTileRowBytes;
  const uint4 value = *reinterpret_cast<const uint4*>(row_major + row * row_bytes + byte);
  if (order == TileOrder::kRows) {
    *reinterpret_cast<uint4*>(packed + packed_weight_offset(order, row, byte, tiles)) = value;
    return;
  }
  const uint32_t words[4] = {value.x, value.y, value.z, value.w};
  for (int i = 0; i < 16; ++i) {
    packed[packed_weight_offset(order, row, byte + i, tiles)] =
        static_cast<uint8_t>(words[i / 4] >> (8 * (i % 4)));
  }
}

struct PackRow {
  const uint8_t* codes;
  const uint8_t* scales;
  int64_t row;
};

/// Where a tile row comes from.
__device__ __forceinline__ PackRow source_row(const PackExpertParams& params,
                                              int64_t tile,
                                              int tile_row) {
  if (params.codes[1] == nullptr) {
    return {params.codes[0], params.scales[0], tile * kExpertTileRows + tile_row};
  }
  const int which = tile_row % 16 < 8 ? 0 : 1;
  return {
      params.codes[which], params.scales[which], 32 * tile + 8 * (tile_row / 16) + tile_row % 8};
}

/// Codes of inputs first .. first + 3 and first + 16 .. first + 19 in their places.
__device__ __forceinline__ uint32_t fp4_word(const PackRow& row, int64_t inputs, int64_t first) {
  const uint8_t* bytes = row.codes + (row.row * inputs + first) / 2;
  uint32_t word = 0;
  for (int n = 0; n < 8; ++n) {
    const uint32_t byte = bytes[n % 4 / 2 + 8 * (n / 4)];
    word |= placed_code(n % 2 == 0 ? byte & 15U : byte >> 4, n);
  }
  return word;
}

__device__ __forceinline__ uint32_t fp4_exponents(const PackRow& row,
                                                  int64_t inputs,
                                                  int64_t block) {
  uint32_t word = 0;
  for (int group = 0; group < 4; ++group) {
    const int64_t at = (row.row * inputs + block * kExpertBlockInputs) / 32 + group;
    uint32_t any = 0;
    for (int i = 0; i < 16; ++i) {
      any |= row.codes[at * 16 + i] & 0x77U;
    }
    // A group of zeros takes any exponent.
    word |= (any == 0 ? 127U : static_cast<uint32_t>(row.scales[at]) + kMagnitudeShift)
            << (8 * group);
  }
  return word;
}

__global__ void __launch_bounds__(kPackThreads) pack_fp4_kernel(const PackExpertParams params) {
  const int64_t blocks = params.inputs / kExpertBlockInputs;
  const int64_t tile = blockIdx.x / blocks;
  const int64_t block = blockIdx.x % blocks;
  const auto thread = static_cast<int>(threadIdx.x);
  std::byte* to = params.packed + static_cast<int64_t>(blockIdx.x) * kFp4BlockBytes;
  const int tile_row = 16 * (thread / 32) + thread % 32 / 4;
  const PackRow rows[2] = {source_row(params, tile, tile_row),
                           source_row(params, tile, tile_row + 8)};
  for (int instruction = 0; instruction < 4; ++instruction) {
    const int64_t first = block * kExpertBlockInputs + instruction * 32 + thread % 4 * 4;
    auto* place =
        reinterpret_cast<uint32_t*>(to + lane_place(instruction / 2, thread) + instruction % 2 * 8);
    place[0] = fp4_word(rows[0], params.inputs, first);
    place[1] = fp4_word(rows[1], params.inputs, first);
  }
  if (thread % 4 < 2) {
    *reinterpret_cast<uint32_t*>(to + 4096 + word_place(thread / 32, thread % 32 / 4, thread % 4)) =
        fp4_exponents(rows[thread % 4], params.inputs, block);
  }
}

__global__ void __launch_bounds__(kPackThreads) pack_fp8_kernel(const PackExpertParams params) {
  const int64_t blocks = params.inputs / kExpertBlockInputs;
  const int64_t tile = blockIdx.x / blocks;
  const int64_t block = blockIdx.x % blocks;
  const auto thread = static_cast<int>(threadIdx.x);
  std::byte* to = params.packed + static_cast<int64_t>(blockIdx.x) * kFp8BlockBytes;
  const int tile_row = 16 * (thread / 32) + thread % 32 / 4;
  const PackRow rows[2] = {source_row(params, tile, tile_row),
                           source_row(params, tile, tile_row + 8)};
  for (int part = 0; part < 16; ++part) {
    // Register r of instruction j: row + 8 * (r % 2), inputs from 4q + 16 * (r / 2).
    const int instruction = part / 4;
    const int reg = part % 4;
    const PackRow& row = rows[reg % 2];
    const int64_t input =
        block * kExpertBlockInputs + instruction * 32 + thread % 4 * 4 + 16 * (reg / 2);
    *reinterpret_cast<uint32_t*>(to + lane_place(instruction, thread) + reg * 4) =
        *reinterpret_cast<const uint32_t*>(row.codes + row.row * params.inputs + input);
  }
  if (thread % 4 < 2) {
    const PackRow& row = rows[thread % 4];
    *reinterpret_cast<uint32_t*>(to + 8192 + word_place(thread / 32, thread % 32 / 4, thread % 4)) =
        static_cast<uint32_t>(row.scales[row.row / 128 * blocks + block]) << 23;
  }
}

}  // namespace

void launch_pack_weight(const WeightShape& shape,
                        const uint8_t* row_major,
                        uint8_t* packed,
                        device::StreamHandle stream) {
  const int64_t row_bytes = shape.cols * element_bytes(shape.format);
  BALEEN_CHECK(shape.rows >= 0 && shape.cols > 0 && shape.cols % 128 == 0,
               "rows={} cols={}",
               shape.rows,
               shape.cols);
  const int64_t chunks = shape.rows * (row_bytes / 16);
  if (chunks == 0) {
    return;
  }
  const TileOrder order =
      shape.format == WeightFormat::kE4m3AsBf16 ? TileOrder::kFragments : TileOrder::kRows;
  device::launch(stream,
                 {.grid = dim3(static_cast<unsigned>((chunks + kPackThreads - 1) / kPackThreads)),
                  .block = dim3(kPackThreads)},
                 pack_weight_kernel,
                 row_major,
                 packed,
                 shape.rows,
                 row_bytes,
                 order);
}

void launch_pack_expert(const PackExpertParams& params, device::StreamHandle stream) {
  const bool two = params.codes[1] != nullptr;
  const int64_t tile_rows = two ? kExpertTileRows / 2 : kExpertTileRows;
  BALEEN_CHECK(params.rows > 0 && params.rows % tile_rows == 0 && params.inputs > 0 &&
                   params.inputs % kExpertBlockInputs == 0,
               "rows={} inputs={}",
               params.rows,
               params.inputs);
  const int64_t blocks = params.rows / tile_rows * (params.inputs / kExpertBlockInputs);
  device::launch(stream,
                 {.grid = dim3(static_cast<unsigned>(blocks)), .block = dim3(kPackThreads)},
                 params.fp8 ? pack_fp8_kernel : pack_fp4_kernel,
                 params);
}

bool usual_expert_scales(std::span<const uint8_t> scales, bool fp8) {
  return std::none_of(scales.begin(), scales.end(), [fp8](uint8_t code) {
    return fp8 ? code == 0 || code == 255 : code > kMostScaleCode;
  });
}

}  // namespace baleen::kernels
