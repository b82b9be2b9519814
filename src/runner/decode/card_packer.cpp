#include "runner/decode/card_packer.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "device/cuda_check.h"
#include "kernels/weight_packing/weight_packing.h"

namespace baleen::runner {
namespace {

constexpr int64_t kPieceAlign = 256;
constexpr int64_t kScaleRows = 128;  // rows of an FP8 matrix that share a scale

/// cudaSetDevice before the members are made.
int64_t on_device(int device, int64_t bytes) {
  BALEEN_CUDA_CHECK(cudaSetDevice(device));
  return bytes;
}

template <class T>
std::span<const T> part(std::span<const T> all, int64_t begin, int64_t count) {
  return all.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count));
}

}  // namespace

CardPacker::CardPacker(int device) : host_(on_device(device, kPieceBytes)), card_(kPieceBytes) {}

const uint8_t* CardPacker::stage(std::span<const uint8_t> bytes) {
  const int64_t begin = staged_;
  const auto count = static_cast<int64_t>(bytes.size());
  BALEEN_CHECK(begin + count <= host_.count(), "{} bytes behind {}", count, begin);
  std::memcpy(host_.data() + begin, bytes.data(), bytes.size());
  staged_ = std::min((begin + count + kPieceAlign - 1) / kPieceAlign * kPieceAlign, host_.count());
  return card_.data() + begin;
}

void CardPacker::send() {
  BALEEN_CUDA_CHECK(cudaMemcpyAsync(card_.data() + sent_,
                                    host_.data() + sent_,
                                    static_cast<std::size_t>(staged_ - sent_),
                                    cudaMemcpyHostToDevice,
                                    stream_.get()));
  sent_ = staged_;
}

void CardPacker::wait() {
  stream_.synchronize();
  staged_ = 0;
  sent_ = 0;
}

void CardPacker::copy(std::span<const uint8_t> bytes, uint8_t* to) {
  const auto count = static_cast<int64_t>(bytes.size());
  for (int64_t begin = 0; begin < count; begin += kPieceBytes) {
    const int64_t held = std::min(kPieceBytes, count - begin);
    std::memcpy(host_.data(), bytes.data() + begin, static_cast<std::size_t>(held));
    BALEEN_CUDA_CHECK(cudaMemcpyAsync(to + begin,
                                      host_.data(),
                                      static_cast<std::size_t>(held),
                                      cudaMemcpyHostToDevice,
                                      stream_.get()));
    wait();
  }
}

void CardPacker::weight(const kernels::WeightShape& shape,
                        std::span<const uint8_t> row_major,
                        uint8_t* packed) {
  const int64_t row_bytes =
      shape.rows == 0 ? 0 : static_cast<int64_t>(row_major.size()) / shape.rows;
  const int64_t rows_held = kPieceBytes / std::max<int64_t>(1, row_bytes) / kScaleRows * kScaleRows;
  BALEEN_CHECK(rows_held > 0, "rows of {} bytes", row_bytes);
  for (int64_t row = 0; row < shape.rows; row += rows_held) {
    const int64_t rows = std::min(rows_held, shape.rows - row);
    const uint8_t* source = stage(part(row_major, row * row_bytes, rows * row_bytes));
    send();
    kernels::launch_pack_weight(
        {rows, shape.cols, shape.format}, source, packed + row * row_bytes, stream_.get());
    wait();
  }
}

void CardPacker::expert(const kernels::ExpertMatrix& first,
                        const kernels::ExpertMatrix* second,
                        bool fp8,
                        std::byte* packed) {
  const int64_t matrices = second != nullptr ? 2 : 1;
  const int64_t code_bytes = fp8 ? first.inputs : first.inputs / 2;  // of a row
  const int64_t row_bytes = code_bytes + (fp8 ? 0 : first.inputs / 32);
  const int64_t rows_held =
      (kPieceBytes - 8 * kPieceAlign) / (matrices * row_bytes + 1) / kScaleRows * kScaleRows;
  BALEEN_CHECK(rows_held > 0, "rows of {} bytes", row_bytes);
  for (int64_t row = 0; row < first.rows; row += rows_held) {
    kernels::PackExpertParams params{
        .rows = std::min(rows_held, first.rows - row), .inputs = first.inputs, .fp8 = fp8};
    params.packed = packed + kernels::packed_expert_bytes(matrices * row, first.inputs, fp8);
    for (int64_t m = 0; m < matrices; ++m) {
      const kernels::ExpertMatrix& matrix = m == 0 ? first : *second;
      const int64_t scale_row = fp8 ? row / kScaleRows : row;
      const int64_t scale_rows = fp8 ? (params.rows + kScaleRows - 1) / kScaleRows : params.rows;
      const int64_t scale_bytes = fp8 ? first.inputs / 128 : first.inputs / 32;
      params.codes[m] = stage(part(matrix.codes, row * code_bytes, params.rows * code_bytes));
      params.scales[m] =
          stage(part(matrix.scales, scale_row * scale_bytes, scale_rows * scale_bytes));
    }
    send();
    kernels::launch_pack_expert(params, stream_.get());
    wait();
  }
}

}  // namespace baleen::runner
