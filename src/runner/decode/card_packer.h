#pragma once
// Brings weights of a checkpoint to the card and packs them there: bytes go through page-locked
// memory in pieces, kernels put them where the packed form has them. One per loading thread; each
// call returns when its bytes are in place.
//
//   CardPacker packer(device);
//   packer.weight({rows, cols, WeightFormat::kE4m3}, codes, matrix);
//   packer.expert(w1, &w3, /*fp8=*/false, up);

#include <cstddef>
#include <cstdint>
#include <span>

#include "device/buffer.h"
#include "device/pinned_buffer.h"
#include "device/stream.h"
#include "kernels/experts/expert_packing.h"
#include "kernels/linear/linear_pack.h"

namespace baleen::runner {

class CardPacker {
 public:
  static constexpr int64_t kPieceBytes = int64_t{16} << 20;

  explicit CardPacker(int device);

  void copy(std::span<const uint8_t> bytes, uint8_t* to);
  /// `packed`: zeroed; rows are a multiple of 128 or the matrix' last ones.
  void weight(const kernels::WeightShape& shape,
              std::span<const uint8_t> row_major,
              uint8_t* packed);
  /// Rows alternate in eights where there is a second matrix. Throws DeviceError alone: scales were
  /// looked at (kernels::usual_expert_scales).
  void expert(const kernels::ExpertMatrix& first,
              const kernels::ExpertMatrix* second,
              bool fp8,
              std::byte* packed);

 private:
  /// Bytes behind those that are there already; the place on the card.
  const uint8_t* stage(std::span<const uint8_t> bytes);
  void send();  // what was staged
  void wait();  // and begin anew

  device::PinnedBuffer<uint8_t> host_;  // made first: on the card that was asked for
  device::Buffer<uint8_t> card_;
  device::Stream stream_;
  int64_t staged_ = 0;
  int64_t sent_ = 0;
};

}  // namespace baleen::runner
