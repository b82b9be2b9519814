#pragma once
// The draft layer (MTP) on kernels: rows of some sequences, each from the streams at its position
// and the token behind it, or chained from the streams that the sequence's latest row left. Its
// window rows lie in the pools as the body's do. Owns buffers and the chains; model and page tables
// outlive it. Used by the thread that owns the stream.
//
//   DraftRunner drafts(model, tables, /*num_slots=*/8, /*max_context=*/16384);
//   drafts.run(rows, stream);                               // waits
//   std::span<const float> logits = drafts.logits(0);       // behind the first row's last token

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/buffer.h"
#include "device/pinned_buffer.h"
#include "device/stream.h"
#include "runner/decode/prompt_runner.h"
#include "runner/decode/run_parts.h"
#include "runner/decode_path.h"

namespace baleen::runner {

class DraftRunner {
 public:
  /// `tables`: its slots are those of the chains.
  DraftRunner(const DecodeModel& draft, const PromptTables& tables, int64_t max_context);

  /// At most one row per slot. Throws DeviceError when a row is refused on the device.
  void run(std::span<const DraftRow> rows, const device::Stream& stream);
  /// f32 [vocabulary], of the latest run.
  std::span<const float> logits(std::size_t row) const {
    return logits_.span().subspan(row * vocab_, vocab_);
  }
  int64_t device_bytes() const {
    return runner_.device_bytes() + static_cast<int64_t>(chains_.bytes());
  }

 private:
  void run_part(const RunPart& part, std::span<const DraftRow> rows, const device::Stream& stream);

  std::size_t vocab_ = 0;
  std::size_t stream_bytes_ = 0;  // of a token
  PromptRunner runner_;
  RunParts parts_;
  device::Buffer<uint8_t> chains_;      // bf16 [slots, n·H], streams behind the latest row
  device::PinnedBuffer<float> logits_;  // [slots, vocabulary]
  device::PinnedBuffer<uint32_t> refused_;
  std::vector<RunRow> run_rows_;
  std::vector<PromptPiece> pieces_;
  std::vector<int32_t> result_rows_;
};

}  // namespace baleen::runner
