#pragma once
// The decode path itself, of kernel_decode(). Made in kernel_decode.cpp, run in
// kernel_decode_run.cpp; nobody else includes this. One thread, the engine's.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/buffer.h"
#include "device/pinned_buffer.h"
#include "device/stream.h"
#include "runner/decode/choice_copy.h"
#include "runner/decode/decode_graphs.h"
#include "runner/decode/decode_loader.h"
#include "runner/decode/decode_sampler.h"
#include "runner/decode/decode_tables.h"
#include "runner/decode/draft_runner.h"
#include "runner/decode/prompt_runner.h"
#include "runner/decode/run_parts.h"
#include "runner/decode_path.h"

namespace baleen::runner {

class KernelDecode final : public DecodePath {
 public:
  explicit KernelDecode(const DecodePathContext& context);

  std::string name() const override {
    return "decode on kernels in " + std::to_string(graphs_->count()) + " graphs";
  }
  int64_t max_context() const override { return max_context_; }
  int32_t max_row_tokens() const override { return max_row_tokens_; }
  bool runs_prompts() const override { return true; }
  int64_t device_bytes() const override;
  void change_page(const cache::PageChange& change) override {
    tables_.change(change.slot, change.block, change.full, change.swa);
  }
  int64_t free_device_bytes() const override;
  void use_pools(cache::PoolMemory& pools) override;
  bool draws(const engine::SamplingRow& sampling) const override {
    return sampler_.covers(sampling);
  }
  void run(std::span<const DecodeRow> rows) override;
  std::span<const float> logits(std::size_t row, std::size_t index) const override {
    return logits_.span().subspan((results_[row] + index) * vocab_, vocab_);
  }
  DrawnToken drawn(std::size_t row, std::size_t index) const override {
    const Drawn& drawn = drawn_[results_[row] + index];
    return {drawn.token, std::span(top_).subspan(drawn.top_begin, drawn.top_count)};
  }
  const uint8_t* streams(std::size_t row) const override {
    return streams_.data() + first_token_[row] * stream_bytes_;
  }
  const model::ForwardChoices* choices() const override {
    return choices_ ? &choices_->choices() : nullptr;
  }
  bool runs_drafts() const override { return drafts_ != nullptr; }
  void draft(std::span<const DraftRow> rows) override;
  std::span<const float> draft_logits(std::size_t row) const override {
    return drafts_->logits(row);
  }

 private:
  /// One device array per table of DecodeTables, and the host's beside it.
  struct TableMemory {
    TableMemory(int32_t num_slots, int32_t most_tokens, int32_t blocks)
        : host_full(int64_t{num_slots} * blocks),
          host_window(int64_t{num_slots} * blocks),
          host_rows(int64_t{most_tokens} * blocks),
          full(host_full.count()),
          window(host_window.count()),
          rows(host_rows.count()) {
      for (device::Buffer<int32_t>* buffer : {&full, &window, &rows}) {
        buffer->fill_bytes(0);
      }
    }
    DecodeTables::Memory host() {
      return {.full = host_full.span(), .window = host_window.span(), .rows = host_rows.span()};
    }
    int64_t device_bytes() const {
      return static_cast<int64_t>(full.bytes() + window.bytes() + rows.bytes());
    }
    device::PinnedBuffer<int32_t> host_full, host_window, host_rows;
    device::Buffer<int32_t> full, window, rows;
  };
  struct Drawn {
    kernels::SampledToken token;
    std::size_t top_begin = 0;
    std::size_t top_count = 0;
  };

  DecodeInputs inputs() const;
  void check(std::span<const DecodeRow> rows) const;
  void set_pools(cache::PoolMemory& pools);
  void capture_graphs();
  void copy_tables();
  void launch_graph(const RunPart& part, std::span<const DecodeRow> rows);
  void launch_prompts(const RunPart& part, std::span<const DecodeRow> rows);
  void set_draws(const RunPart& part, std::span<const DecodeRow> rows);
  void copy_results(const RunPart& part, std::span<const DecodeRow> rows);
  void run_part(const RunPart& part, std::span<const DecodeRow> rows);
  void take_drawn(const RunPart& part, std::span<const DecodeRow> rows);

  int32_t device_ = 0;
  bool invariant_ = false;
  bool records_ = false;
  int64_t max_context_ = 0;
  int32_t max_row_tokens_ = 1;
  int32_t most_tokens_ = 0;  // of one graph
  int32_t most_run_tokens_ = 0;
  bool keeps_streams_ = false;
  std::size_t vocab_ = 0;
  std::size_t stream_bytes_ = 0;  // of a token
  DecodeWeights weights_;
  TableMemory table_memory_;
  DecodeTables tables_;
  // By token: ids; by row: slots, lengths, token counts; [most_tokens] each. Then the rows' number.
  device::PinnedBuffer<int32_t> host_state_;
  device::Buffer<int32_t> state_;
  DecodeSampler sampler_;
  std::vector<RunRow> run_rows_;
  std::vector<std::size_t> first_token_;   // by row of the run
  std::vector<std::size_t> results_;       // by row of the run, its first among those of the run
  std::vector<Drawn> drawn_;               // by result of the run
  std::vector<kernels::ScoredToken> top_;  // of all rows
  device::PinnedBuffer<float> logits_;     // [results of a run, vocabulary]
  device::Buffer<uint8_t> streams_;        // by token of a run, where a draft layer wants them
  device::PinnedBuffer<uint32_t> refused_;
  device::Stream stream_;
  device::Event earlier_work_;
  std::vector<RequestSlot> slots_;  // by token of a part
  std::vector<PromptPiece> prompt_pieces_;
  std::vector<int32_t> result_rows_;  // of a part
  std::unique_ptr<DecodeGraphs> graphs_;
  std::unique_ptr<PromptRunner> prompts_;
  std::unique_ptr<DraftRunner> drafts_;  // null: none are made
  std::unique_ptr<ChoiceCopy> choices_;  // null: none are recorded
  std::unique_ptr<RunParts> parts_;
};

}  // namespace baleen::runner
