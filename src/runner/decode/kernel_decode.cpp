#include "runner/decode/kernel_decode.h"

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "device/pinned_buffer.h"
#include "device/stream.h"
#include "runner/decode/decode_graphs.h"
#include "runner/decode/decode_loader.h"
#include "runner/decode/decode_sampler.h"
#include "runner/decode/decode_shapes.h"
#include "runner/decode/decode_tables.h"
#include "runner/decode/pool_views.h"

namespace baleen::runner {
namespace {

constexpr int32_t kTableAlignment = 4;  // blocks, as DecodeInputs wants

int32_t table_blocks(int64_t max_context) {
  const int64_t blocks = (max_context + kernels::kPageTokens - 1) / kernels::kPageTokens;
  return static_cast<int32_t>((blocks + kTableAlignment - 1) / kTableAlignment * kTableAlignment);
}

class KernelDecode final : public DecodePath {
 public:
  KernelDecode(const std::filesystem::path& folder, const DecodePathContext& context);

  std::string name() const override {
    return "decode on kernels, " + std::to_string(graphs_->count()) + " graphs";
  }
  int64_t max_context() const override { return max_context_; }
  int64_t device_bytes() const override;
  void change_page(const cache::PageChange& change) override {
    tables_.change(change.slot, change.block, change.full, change.swa);
  }
  bool draws(const engine::SamplingRow& sampling) const override {
    return sampler_.covers(sampling);
  }
  void run(std::span<const DecodeRow> rows) override;
  std::span<const float> logits(std::size_t row) const override {
    return logits_.span().subspan(row * vocab_, vocab_);
  }
  DrawnToken drawn(std::size_t row) const override {
    const Drawn& drawn = drawn_[row];
    return {drawn.token, std::span(top_).subspan(drawn.top_begin, drawn.top_count)};
  }

 private:
  /// One device array per table of DecodeTables, and the host's beside it.
  struct TableMemory {
    TableMemory(int32_t num_slots, int32_t most_rows, int32_t blocks)
        : host_full(int64_t{num_slots} * blocks),
          host_window(int64_t{num_slots} * blocks),
          host_rows(int64_t{most_rows} * blocks),
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
    device::PinnedBuffer<int32_t> host_full, host_window, host_rows;
    device::Buffer<int32_t> full, window, rows;
  };

  struct Drawn {
    kernels::SampledToken token;
    std::size_t top_begin = 0;
    std::size_t top_count = 0;
  };

  DecodeInputs inputs() const;
  void copy_tables();
  void set_state(std::span<const DecodeRow> rows);
  void copy_wanted_logits(std::span<const DecodeRow> rows, std::size_t first);
  void run_part(std::span<const DecodeRow> rows, std::size_t first);
  void take_drawn(std::span<const DecodeRow> rows);

  int32_t device_ = 0;
  int64_t max_context_ = 0;
  int32_t most_rows_ = 0;  // of one graph
  std::size_t vocab_ = 0;
  DecodeWeights weights_;
  TableMemory table_memory_;
  DecodeTables tables_;
  // ids, slots and lengths [most_rows] each, then the number of requests.
  device::PinnedBuffer<int32_t> host_state_;
  device::Buffer<int32_t> state_;
  DecodeSampler sampler_;
  std::vector<Drawn> drawn_;               // by row of the run
  std::vector<kernels::ScoredToken> top_;  // of all rows
  device::PinnedBuffer<float> logits_;     // [slots, vocabulary]
  device::PinnedBuffer<uint32_t> refused_;
  device::Stream stream_;
  device::Event earlier_work_;
  std::vector<RequestSlot> slots_;
  std::unique_ptr<DecodeGraphs> graphs_;
};

DecodeWeights load_weights(const std::filesystem::path& folder, const DecodePathContext& context) {
  BALEEN_CUDA_CHECK(cudaSetDevice(context.device_index));
  weights::OpenOptions options;
  options.load_mtp = false;
  DecodeWeights weights = load_decode_weights(
      weights::Checkpoint::open(folder, options),
      {.plain = context.plain_frequencies, .compressed = context.compressed_frequencies});
  set_pool_views(weights.model, context.pools);
  return weights;
}

KernelDecode::KernelDecode(const std::filesystem::path& folder, const DecodePathContext& context)
    : device_(context.device_index),
      max_context_(context.max_context),
      most_rows_(std::min(context.num_slots, kMostDecodeRequests)),
      vocab_(static_cast<std::size_t>(context.config.vocab_size)),
      weights_(load_weights(folder, context)),
      table_memory_(context.num_slots, most_rows_, table_blocks(max_context_)),
      tables_(table_memory_.host(), table_blocks(max_context_)),
      host_state_(3 * int64_t{most_rows_} + 1),
      state_(host_state_.count()),
      sampler_(context.config.vocab_size, most_rows_),
      logits_(int64_t{context.num_slots} * context.config.vocab_size),
      refused_(1) {
  state_.fill_bytes(0);
  drawn_.reserve(static_cast<std::size_t>(context.num_slots));
  top_.reserve(static_cast<std::size_t>(context.num_slots) * kernels::kMostTopLogprobs);
  slots_.reserve(static_cast<std::size_t>(most_rows_));
  graphs_ = std::make_unique<DecodeGraphs>(
      weights_.model, inputs(), decode_shapes(most_rows_, max_context_), stream_);
}

DecodeInputs KernelDecode::inputs() const {
  const int32_t* state = state_.data();
  return {.ids = state,
          .slots = state + most_rows_,
          .lengths = state + 2 * most_rows_,
          .num_requests = state + 3 * most_rows_,
          .slot_table = table_memory_.full.data(),
          .row_table = table_memory_.rows.data(),
          .table_blocks = table_blocks(max_context_),
          .window_table = table_memory_.window.data()};
}

int64_t KernelDecode::device_bytes() const {
  return weights_.memory.bytes() + graphs_->bytes() + sampler_.device_bytes() +
         static_cast<int64_t>(state_.bytes() + table_memory_.full.bytes() +
                              table_memory_.window.bytes() + table_memory_.rows.bytes());
}

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

void KernelDecode::set_state(std::span<const DecodeRow> rows) {
  const auto most = static_cast<std::size_t>(most_rows_);
  int32_t* state = host_state_.data();
  slots_.clear();
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const DecodeRow& row = rows[r];
    BALEEN_CHECK(row.id >= 0 && row.position < max_context_,
                 "id={} position={} max_context={}",
                 row.id,
                 row.position,
                 max_context_);
    state[r] = row.id;
    state[most + r] = row.slot.value();
    state[2 * most + r] = row.position;
    slots_.push_back(row.slot);
  }
  state[3 * most] = static_cast<int32_t>(rows.size());
  tables_.set_rows(slots_);
  copy_tables();
  BALEEN_CUDA_CHECK(cudaMemcpyAsync(state_.data(),
                                    host_state_.data(),
                                    host_state_.bytes(),
                                    cudaMemcpyHostToDevice,
                                    stream_.get()));
}

void KernelDecode::copy_wanted_logits(std::span<const DecodeRow> rows, std::size_t first) {
  for (std::size_t r = 0; r < rows.size(); ++r) {
    if (rows[r].draw == nullptr) {
      BALEEN_CUDA_CHECK(cudaMemcpyAsync(logits_.data() + (first + r) * vocab_,
                                        graphs_->logits() + r * vocab_,
                                        vocab_ * sizeof(float),
                                        cudaMemcpyDeviceToHost,
                                        stream_.get()));
    }
  }
}

void KernelDecode::take_drawn(std::span<const DecodeRow> rows) {
  for (std::size_t r = 0; r < rows.size(); ++r) {
    Drawn& drawn = drawn_.emplace_back();
    if (rows[r].draw != nullptr) {
      drawn.token = sampler_.token(r);
      drawn.top_begin = top_.size();
      sampler_.append_top(r, top_);
      drawn.top_count = top_.size() - drawn.top_begin;
    }
  }
}

/// Rows `first` ... of the run, at most as many as a graph has.
void KernelDecode::run_part(std::span<const DecodeRow> rows, std::size_t first) {
  set_state(rows);
  int64_t longest = 0;
  sampler_.begin(rows.size());
  for (std::size_t r = 0; r < rows.size(); ++r) {
    longest = std::max<int64_t>(longest, int64_t{rows[r].position} + 1);
    if (rows[r].draw != nullptr) {
      sampler_.set(r, *rows[r].draw, int64_t{rows[r].position} + 1, rows[r].allowed_bits);
    }
  }
  graphs_->launch(static_cast<int32_t>(rows.size()), longest, stream_);
  sampler_.launch(graphs_->logits(), stream_);
  copy_wanted_logits(rows, first);
  BALEEN_CUDA_CHECK(cudaMemcpyAsync(refused_.data(),
                                    graphs_->refused(),
                                    refused_.bytes(),
                                    cudaMemcpyDeviceToHost,
                                    stream_.get()));
  stream_.synchronize();  // for the results; the host's arrays are free again as well
  if (*refused_.data() != 0) {
    throw device::DeviceError("decode on kernels: " + std::to_string(*refused_.data()) +
                              " rows or plans were refused on the device");
  }
  take_drawn(rows);
}

void KernelDecode::run(std::span<const DecodeRow> rows) {
  BALEEN_CUDA_CHECK(cudaSetDevice(device_));
  BALEEN_CHECK(static_cast<int64_t>(rows.size() * vocab_) <= logits_.count(),
               "{} rows, more than slots",
               rows.size());
  drawn_.clear();
  top_.clear();
  earlier_work_.record_on_default_stream();
  stream_.wait_for(earlier_work_);
  for (std::size_t first = 0; first < rows.size();) {
    const std::size_t count = std::min(rows.size() - first, static_cast<std::size_t>(most_rows_));
    run_part(rows.subspan(first, count), first);
    first += count;
  }
}

}  // namespace

std::string kernel_decode_refusal(const ModelConfig& config,
                                  const cache::CacheFormats& formats,
                                  const std::string& numerics) {
  if (std::string reason = decode_unsupported(config); !reason.empty()) {
    return reason;
  }
  if (numerics != "reference") {
    return "numerics \"" + numerics + "\" (kernels: reference)";
  }
  if (formats.kv != cache::KvFormat::kPacked || formats.index != cache::IndexFormat::kFp8 ||
      formats.state_element_bytes != static_cast<int64_t>(sizeof(float))) {
    return "cache formats of another compute type than float32";
  }
  return "";
}

DecodePathMaker kernel_decode(const std::filesystem::path& folder) {
  return [folder](const DecodePathContext& context) -> std::unique_ptr<DecodePath> {
    return std::make_unique<KernelDecode>(folder, context);
  };
}

}  // namespace baleen::runner
