#pragma once
// Passes of many tokens of a few sequences: prompts and what runs in one step with them, or rows of
// the draft layer. Launched for the tokens they have, not captured: the work of a few hundred
// tokens hides the launches. Owns its buffers and workspace; the model's memory and the page tables
// outlive it. Used by the thread that owns the stream; the caller waits for the stream before the
// next run.
//
//   PromptRunner prompts(model, {.full = full, .window = window, .blocks = 64, .slots = 8}, 16384);
//   prompts.run({{.ids = ids, .slot = slot, .position = 0}}, {299}, stream);
//   copy(prompts.logits(), ...);                       // behind token 299 of the pass

#include <cstdint>
#include <span>

#include "base/strong_id.h"
#include "device/pinned_buffer.h"
#include "device/stream.h"
#include "runner/decode/decode_buffers.h"
#include "runner/decode/decode_pass.h"

namespace baleen::runner {

inline constexpr int32_t kMostPassRows = 64;
inline constexpr int32_t kMostPassResults = 64;

/// The tokens that follow `position` tokens of the slot's sequence.
struct PromptPiece {
  std::span<const int32_t> ids;
  RequestSlot slot;
  int32_t position = 0;
  // Rows of the draft layer that the sequence must not read: those before, and one (-1: none).
  int32_t hidden_before = 0;
  int32_t hidden_row = -1;
};

/// Page tables in device memory, by slot; see DecodeInputs.
struct PromptTables {
  const int32_t* full = nullptr;          // i32 [slots, blocks]
  const int32_t* window = nullptr;        // i32 [slots, blocks], or null with window_pages
  const int32_t* window_pages = nullptr;  // i32 [full pages]
  int32_t blocks = 0;                     // a multiple of 4
  int32_t slots = 0;
};

/// Tokens of a pass over sequences of up to `max_context` tokens: index scores stay within 256 MiB.
int32_t most_pass_tokens(int64_t max_context);

class PromptRunner {
 public:
  PromptRunner(const DecodeModel& model,
               const PromptTables& tables,
               int64_t max_context,
               bool records = false,
               const PromptForms& forms = {});

  int32_t max_tokens() const { return max_tokens_; }
  /// Of the draft layer: bf16 [max_tokens, n·H], what the next run begins from; by token of it.
  uint16_t* entry_streams() { return entry_streams_.data(); }
  /// Pieces of different slots, at most kMostPassRows with max_tokens() tokens; `result_rows`:
  /// tokens of the pass, at most kMostPassResults. Does not wait.
  void run(std::span<const PromptPiece> pieces,
           std::span<const int32_t> result_rows,
           const device::Stream& stream,
           const DecodePass::StageObserver& observer = {});

  const float* logits() const { return pass_.logits(); }       // f32 [results, vocabulary]
  const uint16_t* streams() const { return pass_.streams(); }  // bf16 [tokens, n·H]
  const uint32_t* refused() const { return pass_.refused(); }  // u32 [1]
  const DecodeBuffers& buffers() const { return buffers_; }
  int64_t device_bytes() const;
  /// The same without making one; `blocks`: of the page tables, `draft`: of the draft layer.
  static int64_t device_bytes_for(const ModelConfig& config,
                                  int32_t blocks,
                                  int64_t max_context,
                                  bool draft,
                                  bool records,
                                  int32_t num_multiprocessors);
  int32_t num_launches() const { return pass_.num_launches() + 1; }  // of the last run

 private:
  DecodeInputs inputs() const;

  PromptTables tables_;
  int32_t max_tokens_ = 0;
  // ids, slots by token; slots, lengths, counts, hidden rows by row; result rows.
  device::PinnedBuffer<int32_t> host_state_;
  device::Buffer<int32_t> state_;
  device::Buffer<int32_t> row_table_;  // i32 [tokens, blocks]
  device::Buffer<uint16_t> entry_streams_;
  DecodeBuffers buffers_;
  DecodePass pass_;
};

}  // namespace baleen::runner
