#include "runner/decode/prompt_runner.h"

#include <algorithm>

#include "base/check.h"
#include "device/cuda_check.h"
#include "kernels/step_metadata/step_metadata.h"
#include "kernels/token_rows/token_rows.h"

namespace baleen::runner {
namespace {

constexpr int64_t kContextStep = 4096;  // of the bounds that a pass is launched for

constexpr int64_t state_numbers(int32_t max_tokens) {
  return 2 * int64_t{max_tokens} + 5 * kMostPassRows + kMostPassResults;
}

}  // namespace

int32_t most_pass_tokens(int64_t max_context) {
  constexpr int64_t kScoreBytes = int64_t{256} << 20;
  constexpr int64_t kFewest = 64;
  const int64_t of_token = decode_score_stride(max_context) * static_cast<int64_t>(sizeof(float));
  return static_cast<int32_t>(
      std::clamp<int64_t>(kScoreBytes / of_token, kFewest, kMostPassTokens));
}

PromptRunner::PromptRunner(const DecodeModel& model,
                           const PromptTables& tables,
                           int64_t max_context,
                           bool records,
                           const PromptForms& forms)
    : tables_(tables),
      max_tokens_(most_pass_tokens(max_context)),
      host_state_(state_numbers(max_tokens_)),
      state_(host_state_.count()),
      row_table_(int64_t{max_tokens_} * tables.blocks),
      entry_streams_(model.draft_entry
                         ? int64_t{max_tokens_} * model.config.hc_mult * model.config.hidden_size
                         : 0),
      buffers_(model.config, max_tokens_, max_context, kMostPassResults, records),
      pass_(model,
            {.max_requests = max_tokens_,
             .max_context = max_context,
             .programmatic = false,
             .prompts = true,
             .forms = forms},
            inputs(),
            buffers_,
            device::multiprocessor_count()) {
  state_.fill_bytes(0);
  row_table_.fill_bytes(0);
}

DecodeInputs PromptRunner::inputs() const {
  const int32_t* rows = state_.data() + 2 * max_tokens_;
  return {.ids = state_.data(),
          .token_counts = rows + 2 * kMostPassRows,
          .slots = rows,
          .lengths = rows + kMostPassRows,
          .slot_table = tables_.full,
          .row_table = row_table_.data(),
          .table_blocks = tables_.blocks,
          .window_pages = tables_.window_pages,
          .window_table = tables_.window,
          .result_rows = rows + 5 * kMostPassRows,
          .streams = entry_streams_.data(),
          .draft_begin = rows + 3 * kMostPassRows,
          .draft_hole = rows + 4 * kMostPassRows};
}

int64_t PromptRunner::device_bytes() const {
  return buffers_.bytes + pass_.workspace_bytes() +
         static_cast<int64_t>(state_.bytes() + row_table_.bytes() + entry_streams_.bytes());
}

int64_t PromptRunner::device_bytes_for(const ModelConfig& config,
                                       int32_t blocks,
                                       int64_t max_context,
                                       bool draft,
                                       bool records,
                                       int32_t num_multiprocessors) {
  const int32_t tokens = most_pass_tokens(max_context);
  const DecodeLimits limits{
      .max_requests = tokens, .max_context = max_context, .programmatic = false, .prompts = true};
  const int64_t streams = draft ? int64_t{tokens} * config.hc_mult * config.hidden_size : 0;
  return DecodeBuffers::bytes_for(config, tokens, max_context, kMostPassResults, records) +
         DecodePass::workspace_bytes_for(config, draft, limits, num_multiprocessors) +
         static_cast<int64_t>(sizeof(int32_t)) *
             (state_numbers(tokens) + int64_t{tokens} * blocks) +
         static_cast<int64_t>(sizeof(uint16_t)) * streams;
}

void PromptRunner::run(std::span<const PromptPiece> pieces,
                       std::span<const int32_t> result_rows,
                       const device::Stream& stream,
                       const DecodePass::StageObserver& observer) {
  PromptShape shape{.rows = static_cast<int32_t>(pieces.size()),
                    .results = static_cast<int32_t>(result_rows.size())};
  BALEEN_CHECK(shape.rows <= kMostPassRows && shape.results <= kMostPassResults,
               "rows={} results={}",
               shape.rows,
               shape.results);
  int32_t* ids = host_state_.data();
  int32_t* token_slots = ids + max_tokens_;
  int32_t* slots = token_slots + max_tokens_;
  int32_t* lengths = slots + kMostPassRows;
  int32_t* counts = lengths + kMostPassRows;
  int32_t* hidden_before = counts + kMostPassRows;
  int32_t* hidden_rows = hidden_before + kMostPassRows;
  for (std::size_t r = 0; r < pieces.size(); ++r) {
    const PromptPiece& piece = pieces[r];
    const auto count = static_cast<int32_t>(piece.ids.size());
    BALEEN_CHECK(count > 0 && shape.tokens + count <= max_tokens_ && piece.slot.value() >= 0 &&
                     piece.slot.value() < tables_.slots,
                 "tokens={} of {} slot={}",
                 shape.tokens + count,
                 max_tokens_,
                 piece.slot.value());
    std::copy(piece.ids.begin(), piece.ids.end(), ids + shape.tokens);
    std::fill_n(token_slots + shape.tokens, count, piece.slot.value());
    slots[r] = piece.slot.value();
    lengths[r] = piece.position;
    counts[r] = count;
    hidden_before[r] = piece.hidden_before;
    hidden_rows[r] = piece.hidden_row;
    shape.tokens += count;
    shape.context = std::max<int64_t>(shape.context, int64_t{piece.position} + count);
  }
  std::copy(result_rows.begin(), result_rows.end(), hidden_rows + kMostPassRows);
  // Bounds in steps, so that the shapes of launches are few.
  shape.context = std::min((shape.context + kContextStep - 1) / kContextStep * kContextStep,
                           pass_.limits().max_context);
  BALEEN_CUDA_CHECK(cudaMemcpyAsync(state_.data(),
                                    host_state_.data(),
                                    host_state_.bytes(),
                                    cudaMemcpyHostToDevice,
                                    stream.get()));
  // Pages by token: rows of the table by slot, two bf16 wide per entry.
  kernels::token_rows({.table = reinterpret_cast<const uint16_t*>(tables_.full),
                       .ids = state_.data() + max_tokens_,
                       .out = reinterpret_cast<uint16_t*>(row_table_.data()),
                       .vocab = tables_.slots,
                       .width = 2 * tables_.blocks,
                       .num_tokens = shape.tokens},
                      stream.get());
  pass_.record_prompts(shape, stream.get(), observer);
}

}  // namespace baleen::runner
