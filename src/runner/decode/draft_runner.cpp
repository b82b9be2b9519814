#include "runner/decode/draft_runner.h"

#include <string>

#include "base/check.h"
#include "device/cuda_check.h"

namespace baleen::runner {

DraftRunner::DraftRunner(const DecodeModel& draft, const PromptTables& tables, int64_t max_context)
    : vocab_(static_cast<std::size_t>(draft.config.vocab_size)),
      stream_bytes_(static_cast<std::size_t>(draft.config.hc_mult * draft.config.hidden_size) *
                    sizeof(uint16_t)),
      runner_(draft, tables, max_context),
      parts_({.graph_tokens = kMostPassResults,
              .row_tokens = 1,
              .pass_tokens = runner_.max_tokens(),
              .pass_rows = kMostPassRows,
              .pass_results = kMostPassResults}),
      chains_(tables.slots * static_cast<int64_t>(stream_bytes_)),
      logits_(int64_t{tables.slots} * draft.config.vocab_size),
      refused_(1) {
  chains_.fill_bytes(0);
  run_rows_.reserve(static_cast<std::size_t>(tables.slots));
  pieces_.reserve(kMostPassRows);
  result_rows_.reserve(kMostPassResults);
}

void DraftRunner::run_part(const RunPart& part,
                           std::span<const DraftRow> rows,
                           const device::Stream& stream) {
  const auto copy = [&stream](void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
    BALEEN_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, kind, stream.get()));
  };
  auto* entry = reinterpret_cast<uint8_t*>(runner_.entry_streams());
  pieces_.clear();
  result_rows_.clear();
  std::size_t token = 0;
  for (const RunPiece& piece : parts_.pieces_of(part)) {
    const DraftRow& row = rows[static_cast<std::size_t>(piece.row)];
    const auto first = static_cast<std::size_t>(piece.first);
    const auto count = static_cast<std::size_t>(piece.count);
    const uint8_t* from =
        row.chained ? chains_.data() + static_cast<std::size_t>(row.slot.value()) * stream_bytes_
                    : row.streams + first * stream_bytes_;
    copy(entry + token * stream_bytes_, from, count * stream_bytes_, cudaMemcpyDeviceToDevice);
    pieces_.push_back({.ids = row.next_ids.subspan(first, count),
                       .slot = row.slot,
                       .position = row.position + piece.first,
                       .hidden_before = row.hidden_before,
                       .hidden_row = row.hidden_row});
    token += count;
    if (piece.num_results() > 0) {
      result_rows_.push_back(static_cast<int32_t>(token) - 1);
    }
  }
  runner_.run(pieces_, result_rows_, stream);
  std::size_t result = 0;
  for (const RunPiece& piece : parts_.pieces_of(part)) {
    if (piece.num_results() == 0) {
      continue;
    }
    const auto r = static_cast<std::size_t>(piece.row);
    copy(logits_.data() + r * vocab_,
         runner_.logits() + result * vocab_,
         vocab_ * sizeof(float),
         cudaMemcpyDeviceToHost);
    copy(chains_.data() + static_cast<std::size_t>(rows[r].slot.value()) * stream_bytes_,
         reinterpret_cast<const uint8_t*>(runner_.streams()) +
             static_cast<std::size_t>(result_rows_[result]) * stream_bytes_,
         stream_bytes_,
         cudaMemcpyDeviceToDevice);
    ++result;
  }
  copy(refused_.data(), runner_.refused(), refused_.bytes(), cudaMemcpyDeviceToHost);
  stream.synchronize();
  if (*refused_.data() != 0) {
    throw device::DeviceError("draft layer on kernels: " + std::to_string(*refused_.data()) +
                              " rows were refused on the device");
  }
}

void DraftRunner::run(std::span<const DraftRow> rows, const device::Stream& stream) {
  run_rows_.clear();
  for (const DraftRow& row : rows) {
    const auto count = static_cast<int32_t>(row.next_ids.size());
    BALEEN_CHECK(count > 0 && (row.chained ? count == 1 : row.streams != nullptr),
                 "a draft row of {} tokens",
                 count);
    for (const int32_t id : row.next_ids) {
      BALEEN_CHECK(id >= 0 && id < static_cast<int32_t>(vocab_), "id={}", id);
    }
    run_rows_.push_back({.tokens = count, .first_result = count - 1});
  }
  BALEEN_CHECK(static_cast<int64_t>(rows.size() * vocab_) <= logits_.count(),
               "{} draft rows, more than slots",
               rows.size());
  parts_.split(run_rows_);
  for (const RunPart& part : parts_.parts()) {
    run_part(part, rows, stream);
  }
}

}  // namespace baleen::runner
