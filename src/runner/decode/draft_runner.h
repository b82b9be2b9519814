#pragma once
// The draft layer (MTP) on kernels: rows of some sequences, each from the streams at its position
// and the token behind it, or chained from the streams that the sequence's latest row left. Its
// window rows lie in the pools as the body's do. Owns buffers and the chains; model and page tables
// outlive it. Used by the thread that owns the stream.
//
// Rows of one token, which are all but the first of a chain, run through captured graphs; longer
// ones in passes.
//
//   DraftRunner drafts(model, tables, /*max_context=*/16384, stream);
//   drafts.run(rows, stream);                               // waits
//   std::span<const float> logits = drafts.logits(0);       // behind the first row's last token

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/buffer.h"
#include "device/pinned_buffer.h"
#include "device/stream.h"
#include "runner/decode/decode_graphs.h"
#include "runner/decode/prompt_runner.h"
#include "runner/decode/run_parts.h"
#include "runner/decode_path.h"

namespace baleen::runner {

class DraftRunner {
 public:
  /// `tables`: its slots are those of the chains.
  DraftRunner(const DecodeModel& draft,
              const PromptTables& tables,
              int64_t max_context,
              const device::Stream& stream);
  /// Again, where the pools are others. No run is under way.
  void capture(const device::Stream& stream);

  /// At most one row per slot. Throws DeviceError when a row is refused on the device.
  void run(std::span<const DraftRow> rows, const device::Stream& stream);
  /// f32 [vocabulary], of the latest run.
  std::span<const float> logits(std::size_t row) const {
    return logits_.span().subspan(row * vocab_, vocab_);
  }
  int64_t device_bytes() const {
    return runner_.device_bytes() + graphs_->bytes() +
           static_cast<int64_t>(chains_.bytes() + state_.bytes() + entry_.bytes());
  }
  /// Beside the passes' and the chains'.
  static int64_t graph_bytes_for(const ModelConfig& draft,
                                 int32_t num_slots,
                                 int64_t max_context,
                                 int32_t num_multiprocessors);

 private:
  /// What a part left behind.
  struct Left {
    const float* logits;      // f32 [results, vocabulary]
    const uint16_t* streams;  // bf16 [tokens, n·H]
    const uint32_t* refused;
  };
  void run_part(const RunPart& part, std::span<const DraftRow> rows, const device::Stream& stream);
  Left run_graph(const device::Stream& stream);
  DecodeInputs inputs() const;

  const DecodeModel& model_;
  PromptTables tables_;
  int64_t max_context_ = 0;
  int32_t graph_tokens_ = 0;  // of the largest graph

  std::size_t vocab_ = 0;
  std::size_t stream_bytes_ = 0;  // of a token
  PromptRunner runner_;
  RunParts parts_;
  // By row of a graph: ids, slots, lengths, hidden rows; then the rows' number.
  device::PinnedBuffer<int32_t> host_state_;
  device::Buffer<int32_t> state_;
  device::Buffer<uint16_t> entry_;  // [graph_tokens_, n·H], what the rows begin from
  std::unique_ptr<DecodeGraphs> graphs_;
  device::Buffer<uint8_t> chains_;      // bf16 [slots, n·H], streams behind the latest row
  device::PinnedBuffer<float> logits_;  // [slots, vocabulary]
  device::PinnedBuffer<uint32_t> refused_;
  std::vector<RunRow> run_rows_;
  std::vector<PromptPiece> pieces_;
  std::vector<int32_t> result_rows_;
};

}  // namespace baleen::runner
