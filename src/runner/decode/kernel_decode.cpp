#include "runner/decode/kernel_decode.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>

#include "base/log.h"
#include "device/cuda_check.h"
#include "runner/decode/decode_shapes.h"
#include "runner/decode/kernel_decode_path.h"
#include "runner/decode/pool_views.h"

namespace baleen::runner {
namespace {

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

}  // namespace

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
