#pragma once
// Where the bytes of a packed weight matrix lie. A matrix [rows, cols] is cut into tiles of 64 rows
// and 128 bytes of a row (128 e4m3 or 64 bf16 inputs), 8 KiB each; the tiles of 64 rows follow each
// other along the inputs, so that any stretch of inputs is one contiguous copy. Inside a tile lies
// what the tensor cores read:
//   kRows       rows of 128 bytes whose 16-byte chunks are exchanged with the row's low three bits
//               (the 128-byte swizzle), for operands in shared memory;
//   kFragments  e4m3 codes in the order in which lanes hold a bf16 operand in registers.
// Rows past the end of the matrix are zero. Pure functions, host and device, any thread.
//
//   int64_t at = packed_weight_offset(TileOrder::kRows, row, byte_in_row, tiles_per_row_block);

#include <cstdint>

#include "numerics/host_device.h"

namespace baleen::kernels {

inline constexpr int32_t kTileRows = 64;
inline constexpr int32_t kTileRowBytes = 128;
inline constexpr int32_t kTileBytes = kTileRows * kTileRowBytes;

enum class TileOrder : uint8_t { kRows, kFragments };

/// Byte of (row, byte column) in a tile of 128-byte rows with 128-byte swizzle.
BALEEN_HOST_DEVICE inline int32_t swizzled_tile_offset(int32_t row, int32_t byte) {
  return row * kTileRowBytes + (((byte >> 4) ^ (row & 7)) << 4) + (byte & 15);
}

/// Byte of (row, input) in a tile of fragments. A warp owns 16 rows; its lane l holds rows l / 4
/// and l / 4 + 8 and, of each 16 inputs, 2 * (l % 4) + {0, 1, 8, 9}. A lane reads 16 bytes at a
/// time: two groups of 16 inputs, each with the four codes of the upper and of the lower row. The
/// codes of a row stand in the order 0, 8, 1, 9, so that one shift and mask unpacks a pair of
/// neighbours.
BALEEN_HOST_DEVICE inline int32_t fragment_tile_offset(int32_t row, int32_t input) {
  const int32_t warp = row / 16;
  const int32_t lower = (row % 16) / 8;
  const int32_t group = input / 16;
  const int32_t inside = input % 16;
  const int32_t lane = (row % 8) * 4 + (inside % 8) / 2;
  const int32_t code = (inside % 2) * 2 + inside / 8;
  return warp * 2048 + (group / 2) * 512 + lane * 16 + (group % 2) * 8 + lower * 4 + code;
}

BALEEN_HOST_DEVICE inline int64_t packed_weight_offset(TileOrder order,
                                                       int64_t row,
                                                       int64_t byte,
                                                       int64_t tiles_per_row_block) {
  const int64_t tile = (row / kTileRows) * tiles_per_row_block + byte / kTileRowBytes;
  const int32_t tile_row = static_cast<int32_t>(row % kTileRows);
  const int32_t tile_byte = static_cast<int32_t>(byte % kTileRowBytes);
  return tile * kTileBytes + (order == TileOrder::kRows
                                  ? swizzled_tile_offset(tile_row, tile_byte)
                                  : fragment_tile_offset(tile_row, tile_byte));
}

}  // namespace baleen::kernels
