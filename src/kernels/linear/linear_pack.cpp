#include "kernels/linear/linear_pack.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/linear/linear_layout.h"

namespace baleen::kernels {

int64_t packed_weight_bytes(const WeightShape& shape) {
  BALEEN_CHECK(shape.rows >= 0 && shape.cols >= 0 && shape.cols % 128 == 0,
               "rows={} cols={}",
               shape.rows,
               shape.cols);
  const int64_t rows = shape.format == WeightFormat::kE4m3AsBf16 ? (shape.rows + 127) / 128 * 128
                                                                 : (shape.rows + 63) / 64 * 64;
  return rows * shape.cols * element_bytes(shape.format);
}

void pack_weight(const WeightShape& shape,
                 std::span<const uint8_t> row_major,
                 std::span<uint8_t> packed) {
  const int64_t row_bytes = shape.cols * element_bytes(shape.format);
  BALEEN_CHECK(static_cast<int64_t>(row_major.size()) == shape.rows * row_bytes &&
                   static_cast<int64_t>(packed.size()) == packed_weight_bytes(shape),
               "rows={} cols={} row_major={} packed={}",
               shape.rows,
               shape.cols,
               row_major.size(),
               packed.size());
  const TileOrder order =
      shape.format == WeightFormat::kE4m3AsBf16 ? TileOrder::kFragments : TileOrder::kRows;
  const int64_t tiles = row_bytes / kTileRowBytes;
  std::fill(packed.begin(), packed.end(), uint8_t{0});
  for (int64_t row = 0; row < shape.rows; ++row) {
    for (int64_t byte = 0; byte < row_bytes; ++byte) {
      packed[static_cast<std::size_t>(packed_weight_offset(order, row, byte, tiles))] =
          row_major[static_cast<std::size_t>(row * row_bytes + byte)];
    }
  }
}

}  // namespace baleen::kernels
