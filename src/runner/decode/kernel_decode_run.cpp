// A run of rows: split into parts, each launched as a graph or a pass of prompts, sampled, and its
// results copied to the host.

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "base/check.h"
#include "device/cuda_check.h"
#include "runner/decode/kernel_decode_path.h"

namespace baleen::runner {

void KernelDecode::copy_tables() {
  for (const DecodeTables::Copy& copy : tables_.pending()) {
    const auto [host, device] = [&]() -> std::pair<const int32_t*, int32_t*> {
      switch (copy.table) {
        case DecodeTables::Table::kFull:
          return {table_memory_.host_full.data(), table_memory_.full.data()};
        case DecodeTables::Table::kWindow:
          return {table_memory_.host_window.data(), table_memory_.window.data()};
        case DecodeTables::Table::kRows:
          break;
      }
      return {table_memory_.host_rows.data(), table_memory_.rows.data()};
    }();
    BALEEN_CUDA_CHECK(cudaMemcpyAsync(device + copy.begin,
                                      host + copy.begin,
                                      static_cast<std::size_t>(copy.count) * sizeof(int32_t),
                                      cudaMemcpyHostToDevice,
                                      stream_.get()));
  }
  tables_.clear_pending();
}

void KernelDecode::launch_graph(const RunPart& part, std::span<const DecodeRow> rows) {
  const auto most = static_cast<std::size_t>(most_tokens_);
  int32_t* state = host_state_.data();
  slots_.clear();
  std::size_t token = 0;
  std::size_t r = 0;
  int64_t longest = 0;
  for (const RunPiece& piece : parts_->pieces_of(part)) {
    const DecodeRow& row = rows[static_cast<std::size_t>(piece.row)];
    token =
        static_cast<std::size_t>(std::copy(row.ids.begin(), row.ids.end(), state + token) - state);
    slots_.insert(slots_.end(), row.ids.size(), row.slot);
    state[most + r] = row.slot.value();
    state[2 * most + r] = row.position;
    state[3 * most + r] = piece.count;
    longest = std::max(longest, int64_t{row.position} + piece.count);
    ++r;
  }
  state[4 * most] = static_cast<int32_t>(r);
  tables_.set_rows(slots_);
  copy_tables();
  BALEEN_CUDA_CHECK(cudaMemcpyAsync(state_.data(),
                                    host_state_.data(),
                                    host_state_.bytes(),
                                    cudaMemcpyHostToDevice,
                                    stream_.get()));
  graphs_->launch(part.num_tokens, longest, stream_);
}

void KernelDecode::launch_prompts(const RunPart& part, std::span<const DecodeRow> rows) {
  prompt_pieces_.clear();
  result_rows_.clear();
  int32_t token = 0;
  for (const RunPiece& piece : parts_->pieces_of(part)) {
    const DecodeRow& row = rows[static_cast<std::size_t>(piece.row)];
    prompt_pieces_.push_back({.ids = row.ids.subspan(static_cast<std::size_t>(piece.first),
                                                     static_cast<std::size_t>(piece.count)),
                              .slot = row.slot,
                              .position = row.position + piece.first});
    for (int32_t t = piece.first_result; t < piece.first + piece.count; ++t) {
      result_rows_.push_back(token + t - piece.first);
    }
    token += piece.count;
  }
  copy_tables();
  prompts_->run(prompt_pieces_, result_rows_, stream_);
}

void KernelDecode::set_draws(const RunPart& part, std::span<const DecodeRow> rows) {
  sampler_.begin(static_cast<std::size_t>(part.num_results));
  std::size_t result = 0;
  for (const RunPiece& piece : parts_->pieces_of(part)) {
    const DecodeRow& row = rows[static_cast<std::size_t>(piece.row)];
    for (int32_t t = piece.first_result; t < piece.first + piece.count; ++t, ++result) {
      if (row.draw != nullptr) {
        sampler_.set(result, *row.draw, int64_t{row.position} + 1 + t, row.allowed_bits);
      }
    }
  }
}

void KernelDecode::copy_results(const RunPart& part, std::span<const DecodeRow> rows) {
  const auto copy = [this](void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
    if (bytes > 0) {
      BALEEN_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, kind, stream_.get()));
    }
  };
  const float* logits = part.prompts ? prompts_->logits() : graphs_->logits();
  const uint16_t* streams = part.prompts ? prompts_->streams() : graphs_->streams();
  std::size_t result = 0;
  for (const RunPiece& piece : parts_->pieces_of(part)) {
    const auto count = static_cast<std::size_t>(piece.num_results());
    if (rows[static_cast<std::size_t>(piece.row)].draw == nullptr) {
      copy(logits_.data() + (static_cast<std::size_t>(part.result_begin) + result) * vocab_,
           logits + result * vocab_,
           count * vocab_ * sizeof(float),
           cudaMemcpyDeviceToHost);
    }
    result += count;
  }
  if (keeps_streams_) {
    copy(streams_.data() + static_cast<std::size_t>(part.token_begin) * stream_bytes_,
         streams,
         static_cast<std::size_t>(part.num_tokens) * stream_bytes_,
         cudaMemcpyDeviceToDevice);
  }
  copy(refused_.data(),
       part.prompts ? prompts_->refused() : graphs_->refused(),
       refused_.bytes(),
       cudaMemcpyDeviceToHost);
}

void KernelDecode::take_drawn(const RunPart& part, std::span<const DecodeRow> rows) {
  std::size_t result = 0;
  for (const RunPiece& piece : parts_->pieces_of(part)) {
    const bool draws = rows[static_cast<std::size_t>(piece.row)].draw != nullptr;
    for (int32_t i = 0; i < piece.num_results(); ++i, ++result) {
      Drawn& drawn = drawn_.emplace_back();
      if (draws) {
        drawn.token = sampler_.token(result);
        drawn.top_begin = top_.size();
        sampler_.append_top(result, top_);
        drawn.top_count = top_.size() - drawn.top_begin;
      }
    }
  }
}

void KernelDecode::run_part(const RunPart& part, std::span<const DecodeRow> rows) {
  set_draws(part, rows);
  if (part.prompts) {
    launch_prompts(part, rows);
    sampler_.launch(prompts_->logits(), stream_);
  } else {
    launch_graph(part, rows);
    sampler_.launch(graphs_->logits(), stream_);
  }
  copy_results(part, rows);
  if (choices_) {
    int64_t last = 0;
    for (const RunPiece& piece : parts_->pieces_of(part)) {
      const DecodeRow& row = rows[static_cast<std::size_t>(piece.row)];
      last = std::max(last, int64_t{row.position} + piece.first + piece.count - 1);
    }
    choices_->copy(
        part.prompts ? prompts_->buffers() : graphs_->buffers(), part.num_tokens, last, stream_);
  }
  stream_.synchronize();  // for the results; the host's arrays are free again as well
  if (*refused_.data() != 0) {
    throw device::DeviceError("decode on kernels: " + std::to_string(*refused_.data()) +
                              " rows or plans were refused on the device");
  }
  take_drawn(part, rows);
  if (choices_) {
    int32_t token = 0;
    for (const RunPiece& piece : parts_->pieces_of(part)) {
      const int32_t position = rows[static_cast<std::size_t>(piece.row)].position + piece.first;
      for (int32_t i = 0; i < piece.count; ++i) {
        choices_->add(token++, position + i);
      }
    }
  }
}

void KernelDecode::check(std::span<const DecodeRow> rows) const {
  int64_t tokens = 0;
  int64_t results = 0;
  for (const DecodeRow& row : rows) {
    const auto count = static_cast<int64_t>(row.ids.size());
    BALEEN_CHECK(count > 0 && row.first_result >= 0 && row.first_result <= count &&
                     row.position + count <= max_context_,
                 "ids={} first_result={} position={} max_context={}",
                 count,
                 row.first_result,
                 row.position,
                 max_context_);
    for (const int32_t id : row.ids) {
      BALEEN_CHECK(id >= 0 && id < static_cast<int32_t>(vocab_), "id={}", id);
    }
    tokens += count;
    results += count - row.first_result;
  }
  BALEEN_CHECK(tokens <= most_run_tokens_ && results <= static_cast<int64_t>(drawn_.capacity()),
               "tokens={} of {} results={} of {}",
               tokens,
               most_run_tokens_,
               results,
               drawn_.capacity());
}

void KernelDecode::run(std::span<const DecodeRow> rows) {
  BALEEN_CUDA_CHECK(cudaSetDevice(device_));
  check(rows);
  run_rows_.clear();
  first_token_.clear();
  results_.clear();
  drawn_.clear();
  top_.clear();
  if (choices_) {
    choices_->clear();
  }
  std::size_t tokens = 0;
  std::size_t results = 0;
  for (const DecodeRow& row : rows) {
    run_rows_.push_back(
        {.tokens = static_cast<int32_t>(row.ids.size()), .first_result = row.first_result});
    first_token_.push_back(tokens);
    results_.push_back(results);
    tokens += row.ids.size();
    results += row.ids.size() - static_cast<std::size_t>(row.first_result);
  }
  parts_->split(run_rows_);
  earlier_work_.record_on_default_stream();
  stream_.wait_for(earlier_work_);
  for (const RunPart& part : parts_->parts()) {
    run_part(part, rows);
  }
}

void KernelDecode::draft(std::span<const DraftRow> rows) {
  BALEEN_CHECK(drafts_ != nullptr, "no draft layer");
  BALEEN_CUDA_CHECK(cudaSetDevice(device_));
  earlier_work_.record_on_default_stream();
  stream_.wait_for(earlier_work_);
  copy_tables();
  drafts_->run(rows, stream_);
}

}  // namespace baleen::runner
