#include "runner/decode/draft_runner.h"

#include <algorithm>
#include <string>

#include "base/check.h"
#include "device/cuda_check.h"

namespace baleen::runner {

namespace {

constexpr int64_t kStateRows = 5;  // arrays by row of a graph

/// Window layers do not know how long a sequence is: one context serves.
std::vector<DecodeShape> draft_shapes(int32_t num_slots, int64_t max_context) {
  std::vector<DecodeShape> shapes = decode_shapes(std::min(num_slots, kMostDecodeTokens), 1);
  for (DecodeShape& shape : shapes) {
    shape.context = max_context;
  }
  return shapes;
}

}  // namespace

DraftRunner::DraftRunner(const DecodeModel& draft,
                         const PromptTables& tables,
                         int64_t max_context,
                         const device::Stream& stream)
    : model_(draft),
      tables_(tables),
      max_context_(max_context),
      graph_tokens_(std::min(tables.slots, kMostDecodeTokens)),
      vocab_(static_cast<std::size_t>(draft.config.vocab_size)),
      stream_bytes_(static_cast<std::size_t>(draft.config.hc_mult * draft.config.hidden_size) *
                    sizeof(uint16_t)),
      runner_(draft, tables, max_context),
      parts_({.graph_tokens = graph_tokens_,
              .row_tokens = 1,
              .pass_tokens = runner_.max_tokens(),
              .pass_rows = kMostPassRows,
              .pass_results = kMostPassResults}),
      host_state_(kStateRows * graph_tokens_ + 1),
      state_(host_state_.count()),
      entry_(graph_tokens_ * draft.config.hc_mult * draft.config.hidden_size),
      chains_(tables.slots * static_cast<int64_t>(stream_bytes_)),
      logits_(int64_t{tables.slots} * draft.config.vocab_size),
      refused_(1) {
  chains_.fill_bytes(0);
  entry_.fill_bytes(0);
  run_rows_.reserve(static_cast<std::size_t>(tables.slots));
  pieces_.reserve(kMostPassRows);
  result_rows_.reserve(kMostPassResults);
  capture(stream);
}

/// With a state that names no row: every graph runs once before it is captured.
void DraftRunner::capture(const device::Stream& stream) {
  graphs_.reset();
  state_.fill_bytes(0);
  graphs_ = std::make_unique<DecodeGraphs>(
      model_, inputs(), draft_shapes(tables_.slots, max_context_), stream);
}

DecodeInputs DraftRunner::inputs() const {
  const int32_t* state = state_.data();
  return {.ids = state,
          .slots = state + graph_tokens_,
          .lengths = state + 2 * graph_tokens_,
          .num_requests = state + kStateRows * graph_tokens_,
          .slot_table = tables_.full,
          .row_table = tables_.full,  // of compressed entries, which the layer has none of
          .table_blocks = tables_.blocks,
          .window_pages = tables_.window_pages,
          .window_table = tables_.window,
          .streams = entry_.data(),
          .draft_begin = state + 3 * graph_tokens_,
          .draft_hole = state + 4 * graph_tokens_};
}

int64_t DraftRunner::graph_bytes_for(const ModelConfig& draft,
                                     int32_t num_slots,
                                     int64_t max_context,
                                     int32_t num_multiprocessors) {
  const int64_t tokens = std::min(num_slots, kMostDecodeTokens);
  const int64_t entry = tokens * draft.hc_mult * draft.hidden_size * int64_t{sizeof(uint16_t)};
  return DecodeGraphs::bytes_for(draft,
                                 draft_shapes(num_slots, max_context),
                                 /*invariant=*/false,
                                 /*records=*/false,
                                 num_multiprocessors,
                                 /*draft=*/true) +
         entry + (kStateRows * tokens + 1) * static_cast<int64_t>(sizeof(int32_t));
}

/// The part's pieces, one token each, through the smallest graph that holds them.
DraftRunner::Left DraftRunner::run_graph(const device::Stream& stream) {
  int32_t* state = host_state_.data();
  const auto most = static_cast<std::size_t>(graph_tokens_);
  for (std::size_t r = 0; r < pieces_.size(); ++r) {
    const PromptPiece& piece = pieces_[r];
    state[r] = piece.ids[0];
    state[most + r] = piece.slot.value();
    state[2 * most + r] = piece.position;
    state[3 * most + r] = piece.hidden_before;
    state[4 * most + r] = piece.hidden_row;
  }
  const auto rows = static_cast<int32_t>(pieces_.size());
  state[kStateRows * graph_tokens_] = rows;
  BALEEN_CUDA_CHECK(cudaMemcpyAsync(
      state_.data(), state, host_state_.bytes(), cudaMemcpyHostToDevice, stream.get()));
  graphs_->launch(rows, max_context_, stream);
  return {graphs_->logits(), graphs_->streams(), graphs_->refused()};
}

void DraftRunner::run_part(const RunPart& part,
                           std::span<const DraftRow> rows,
                           const device::Stream& stream) {
  const auto copy = [&stream](void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
    BALEEN_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, kind, stream.get()));
  };
  auto* entry = reinterpret_cast<uint8_t*>(part.prompts ? runner_.entry_streams() : entry_.data());
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
  Left left;
  if (part.prompts) {
    runner_.run(pieces_, result_rows_, stream);
    left = {runner_.logits(), runner_.streams(), runner_.refused()};
  } else {
    left = run_graph(stream);
  }
  std::size_t result = 0;
  for (const RunPiece& piece : parts_.pieces_of(part)) {
    if (piece.num_results() == 0) {
      continue;
    }
    const auto r = static_cast<std::size_t>(piece.row);
    copy(logits_.data() + r * vocab_,
         left.logits + result * vocab_,
         vocab_ * sizeof(float),
         cudaMemcpyDeviceToHost);
    copy(chains_.data() + static_cast<std::size_t>(rows[r].slot.value()) * stream_bytes_,
         reinterpret_cast<const uint8_t*>(left.streams) +
             static_cast<std::size_t>(result_rows_[result]) * stream_bytes_,
         stream_bytes_,
         cudaMemcpyDeviceToDevice);
    ++result;
  }
  copy(refused_.data(), left.refused, refused_.bytes(), cudaMemcpyDeviceToHost);
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
