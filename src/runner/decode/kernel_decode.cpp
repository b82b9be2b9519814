#include "runner/decode/kernel_decode.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"
#include "device/pinned_buffer.h"
#include "device/stream.h"
#include "runner/decode/choice_copy.h"
#include "runner/decode/decode_graphs.h"
#include "runner/decode/decode_loader.h"
#include "runner/decode/decode_sampler.h"
#include "runner/decode/decode_shapes.h"
#include "runner/decode/decode_tables.h"
#include "runner/decode/draft_runner.h"
#include "runner/decode/pool_views.h"
#include "runner/decode/prompt_runner.h"
#include "runner/decode/run_parts.h"

namespace baleen::runner {
namespace {

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

/// Tokens of one sequence that a step may run without overwriting ring rows that it still reads.
int32_t most_row_tokens(const DecodeModel& model) {
  int32_t most = kMostDecodeTokens;
  for (const DecodeLayer& layer : model.layers) {
    if (layer.spec.kind != LayerKind::kSwa) {
      const int32_t window = layer.spec.kind == LayerKind::kC4 ? 2 * kC4Ratio : kC128Ratio;
      most = std::min(most, layer.main.ring_size - window + 1);
    }
  }
  return most;
}

DecodeWeights load_weights(const DecodePathContext& context) {
  const auto begin = std::chrono::steady_clock::now();
  BALEEN_CUDA_CHECK(cudaSetDevice(context.device_index));
  std::shared_ptr<const weights::Checkpoint> checkpoint = context.checkpoint;
  if (!checkpoint) {
    weights::OpenOptions options;
    options.load_mtp = context.max_row_tokens > 1;
    checkpoint = std::make_shared<const weights::Checkpoint>(
        weights::Checkpoint::open(context.folder, options));
  }
  DecodeWeights weights = load_decode_weights(
      *checkpoint,
      {.plain = context.plain_frequencies, .compressed = context.compressed_frequencies},
      /*with_draft=*/context.max_row_tokens > 1);
  log::info("runner",
            "weights on the card bytes={} load_s={:.2f}",
            weights.memory.bytes(),
            std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  return weights;
}

KernelDecode::KernelDecode(const DecodePathContext& context)
    : device_(context.device_index),
      invariant_(context.invariant),
      records_(context.record_choices),
      max_context_(context.max_context),
      most_tokens_(std::min(context.num_slots * context.max_row_tokens, kMostDecodeTokens)),
      most_run_tokens_(
          std::max(context.max_step_tokens, context.num_slots * context.max_row_tokens)),
      keeps_streams_(context.max_row_tokens > 1),
      vocab_(static_cast<std::size_t>(context.config.vocab_size)),
      stream_bytes_(static_cast<std::size_t>(context.config.hc_mult * context.config.hidden_size) *
                    sizeof(uint16_t)),
      weights_(load_weights(context)),
      table_memory_(context.num_slots, most_tokens_, decode_table_blocks(max_context_)),
      tables_(table_memory_.host(), decode_table_blocks(max_context_)),
      host_state_(4 * int64_t{most_tokens_} + 1),
      state_(host_state_.count()),
      sampler_(context.config.vocab_size, kMostPassResults),
      logits_(int64_t{std::max(context.num_slots * context.max_row_tokens, kMostRowResults)} *
              context.config.vocab_size),
      streams_(keeps_streams_ ? most_run_tokens_ * static_cast<int64_t>(stream_bytes_) : 0),
      refused_(1) {
  set_pools(context.pools);
  max_row_tokens_ = std::min(context.max_row_tokens, most_row_tokens(weights_.model));
  const auto slots = static_cast<std::size_t>(context.num_slots);
  const auto results = static_cast<std::size_t>(logits_.count()) / vocab_;
  run_rows_.reserve(slots);
  first_token_.reserve(slots);
  results_.reserve(slots);
  drawn_.reserve(results);
  top_.reserve(results * kernels::kMostTopLogprobs);
  slots_.reserve(static_cast<std::size_t>(most_tokens_));
  prompt_pieces_.reserve(kMostPassRows);
  result_rows_.reserve(kMostPassResults);
  capture_graphs();
  const PromptTables tables{.full = table_memory_.full.data(),
                            .window = table_memory_.window.data(),
                            .blocks = decode_table_blocks(max_context_),
                            .slots = context.num_slots};
  prompts_ =
      std::make_unique<PromptRunner>(weights_.model, tables, max_context_, context.record_choices);
  if (context.record_choices) {
    choices_ = std::make_unique<ChoiceCopy>(
        context.config,
        ChoiceCopyLimits{.part_tokens = std::max(most_tokens_, prompts_->max_tokens()),
                         .run_tokens = most_run_tokens_,
                         .max_context = max_context_});
  }
  if (weights_.draft) {
    drafts_ = std::make_unique<DraftRunner>(*weights_.draft, tables, max_context_, stream_);
  }
  parts_ = std::make_unique<RunParts>(RunLimits{.graph_tokens = most_tokens_,
                                                .row_tokens = max_row_tokens_,
                                                .pass_tokens = prompts_->max_tokens(),
                                                .pass_rows = kMostPassRows,
                                                .pass_results = kMostPassResults});
}

void KernelDecode::set_pools(cache::PoolMemory& pools) {
  set_pool_views(weights_.model, pools);
  if (weights_.draft) {
    set_draft_pool_view(*weights_.draft, weights_.model.config.num_hidden_layers, pools);
  }
}

/// With inputs that name no request: every graph runs once before it is captured.
void KernelDecode::capture_graphs() {
  state_.fill_bytes(0);
  graphs_ = std::make_unique<DecodeGraphs>(weights_.model,
                                           inputs(),
                                           decode_shapes(most_tokens_, max_context_),
                                           stream_,
                                           invariant_,
                                           records_);
}

int64_t KernelDecode::free_device_bytes() const {
  BALEEN_CUDA_CHECK(cudaSetDevice(device_));
  std::size_t free = 0;
  std::size_t total = 0;
  BALEEN_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return static_cast<int64_t>(free);
}

/// Graphs hold the addresses of pools; passes of prompts and drafts read the model's.
void KernelDecode::use_pools(cache::PoolMemory& pools) {
  BALEEN_CUDA_CHECK(cudaSetDevice(device_));
  stream_.synchronize();
  graphs_.reset();  // first: its memory is wanted again
  set_pools(pools);
  capture_graphs();
  if (drafts_) {
    drafts_->capture(stream_);
  }
}

DecodeInputs KernelDecode::inputs() const {
  const int32_t* state = state_.data();
  return {.ids = state,
          .token_counts = state + 3 * most_tokens_,
          .slots = state + most_tokens_,
          .lengths = state + 2 * most_tokens_,
          .num_requests = state + 4 * most_tokens_,
          .slot_table = table_memory_.full.data(),
          .row_table = table_memory_.rows.data(),
          .table_blocks = decode_table_blocks(max_context_),
          .window_table = table_memory_.window.data()};
}

int64_t KernelDecode::device_bytes() const {
  return weights_.memory.bytes() + graphs_->bytes() + prompts_->device_bytes() +
         (drafts_ ? drafts_->device_bytes() : 0) + sampler_.device_bytes() +
         table_memory_.device_bytes() + static_cast<int64_t>(state_.bytes() + streams_.bytes());
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

}  // namespace

std::string kernel_decode_refusal(const ModelConfig& config,
                                  const cache::CacheFormats& formats,
                                  const std::string& numerics,
                                  int64_t max_context) {
  if (std::string reason = decode_unsupported(config); !reason.empty()) {
    return reason;
  }
  const bool invariant = numerics == "reference+invariant";
  if (numerics != "reference" && !invariant) {
    return "numerics \"" + numerics + "\" (kernels: reference)";
  }
  if (invariant && max_context > kMostInvariantContext) {
    return "contexts of " + std::to_string(max_context) +
           " tokens in invariant numerics (kernels: " + std::to_string(kMostInvariantContext) + ")";
  }
  if (formats.kv != cache::KvFormat::kPacked || formats.index != cache::IndexFormat::kFp8 ||
      formats.state_element_bytes != static_cast<int64_t>(sizeof(float))) {
    return "cache formats of another compute type than float32";
  }
  return "";
}

DecodePathMaker kernel_decode() {
  return [](const DecodePathContext& context) -> std::unique_ptr<DecodePath> {
    return std::make_unique<KernelDecode>(context);
  };
}

}  // namespace baleen::runner
