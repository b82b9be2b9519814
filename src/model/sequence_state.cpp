#include "model/sequence_state.h"

#include <algorithm>

#include "base/check.h"
#include "model/paged_stores.h"
#include "model/row_history.h"

namespace baleen::model {
namespace {

/// Makes the stores of one state; what differs is where rows live.
class OwnStores {
 public:
  OwnStores(const ModelConfig& config,
            const SequenceStateOptions& options,
            const at::TensorOptions& tensors)
      : config_(config), options_(options), tensors_(tensors) {}

  std::unique_ptr<RowStore> raw() const {
    return make(config_.head_dim, config_.sliding_window - 1 + options_.max_rollback);
  }

  CompressorState compressor(const LayerSpec& spec, int64_t width) const {
    // The open group, and with overlap also the group before it, of any length that may be taken
    // back.
    const bool overlap = spec.kind == LayerKind::kC4;
    const int64_t groups = overlap ? 2 : 1;
    const int64_t keep = groups * spec.ratio - 1 + options_.max_rollback;
    return {.ratio = spec.ratio,
            .rows = make(2 * groups * width, keep),
            .entries = make(width, RowHistory::kKeepAll)};
  }

  std::unique_ptr<RowStore> streams() const {
    return make(config_.hc_mult * config_.hidden_size, 1 + options_.max_rollback);
  }

  LayerState layer(const LayerSpec& spec) const {
    LayerState layer;
    layer.raw = raw();
    if (spec.kind != LayerKind::kSwa) {
      layer.main = compressor(spec, config_.head_dim);
    }
    if (spec.kind == LayerKind::kC4) {
      layer.index = compressor(spec, config_.index_head_dim);
    }
    return layer;
  }

 private:
  std::unique_ptr<RowStore> make(int64_t width, int64_t keep) const {
    return std::make_unique<RowHistory>(width, keep, tensors_, options_.paint_unused);
  }

  const ModelConfig& config_;
  const SequenceStateOptions& options_;
  const at::TensorOptions& tensors_;
};

LayerState clone_layer(const LayerState& layer) {
  LayerState copy;
  copy.raw = layer.raw->clone();
  for (auto member : {&LayerState::main, &LayerState::index}) {
    if (const auto& compressor = layer.*member) {
      copy.*member = CompressorState{.ratio = compressor->ratio,
                                     .rows = compressor->rows->clone(),
                                     .entries = compressor->entries->clone()};
    }
  }
  return copy;
}

void truncate_layer(LayerState& layer, int64_t num_tokens) {
  layer.raw->truncate(num_tokens);
  for (auto member : {&LayerState::main, &LayerState::index}) {
    if (auto& compressor = layer.*member) {
      compressor->rows->truncate(num_tokens);
      compressor->entries->truncate(num_tokens / compressor->ratio);
    }
  }
}

void restart_layer(LayerState& layer, int64_t position) {
  layer.raw->restart(position);
  for (auto member : {&LayerState::main, &LayerState::index}) {
    if (auto& compressor = layer.*member) {
      compressor->rows->restart(position);
      compressor->entries->restart(position / compressor->ratio);
    }
  }
}

int64_t layer_bytes(const LayerState& layer) {
  int64_t bytes = layer.raw->bytes();
  for (auto member : {&LayerState::main, &LayerState::index}) {
    if (const auto& compressor = layer.*member) {
      bytes += compressor->rows->bytes() + compressor->entries->bytes();
    }
  }
  return bytes;
}

}  // namespace

SequenceState::SequenceState(const ModelConfig& config,
                             const SequenceStateOptions& state_options,
                             const at::TensorOptions& tensor_options)
    : options_(state_options) {
  BALEEN_CHECK(options_.max_rollback >= 0, "max_rollback={}", options_.max_rollback);
  const OwnStores stores(config, options_, tensor_options);
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    layers_.push_back(stores.layer(config.layers[static_cast<std::size_t>(i)]));
  }
  if (options_.with_mtp) {
    for (int64_t i = 0; i < config.num_nextn_predict_layers; ++i) {
      mtp_layers_.push_back(stores.layer(config.mtp_layer(i)));
    }
    streams_ = stores.streams();
  }
}

SequenceState::SequenceState(const ModelConfig& config,
                             const SequenceStateOptions& state_options,
                             const at::TensorOptions& tensor_options,
                             cache::PoolMemory& pools,
                             const cache::SequencePages& pages)
    : options_(state_options) {
  const PagedStores stores(config, options_, tensor_options, pools, pages);
  int64_t c4_layers = 0;
  int64_t c128_layers = 0;
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const LayerSpec& spec = config.layers[static_cast<std::size_t>(i)];
    const int64_t of_kind = spec.kind == LayerKind::kC4     ? c4_layers++
                            : spec.kind == LayerKind::kC128 ? c128_layers++
                                                            : 0;
    layers_.push_back(stores.layer(spec, i, of_kind));
  }
  if (options_.with_mtp) {
    for (int64_t i = 0; i < config.num_nextn_predict_layers; ++i) {
      mtp_layers_.push_back(stores.layer(config.mtp_layer(i), config.num_hidden_layers + i, 0));
    }
    // The streams of the last tokens wait for the next step; they are the request's own.
    streams_ = OwnStores(config, options_, tensor_options).streams();
  }
}

SequenceState SequenceState::clone() const {
  SequenceState copy(options_);
  copy.num_tokens_ = num_tokens_;
  copy.high_water_ = high_water_;
  for (const LayerState& layer : layers_) {
    copy.layers_.push_back(clone_layer(layer));
  }
  for (const LayerState& layer : mtp_layers_) {
    copy.mtp_layers_.push_back(clone_layer(layer));
  }
  if (options_.with_mtp) {
    copy.streams_ = streams_->clone();
  }
  copy.first_token_ = first_token_;
  copy.chain_streams_ = chain_streams_;
  copy.hidden_draft_rows_ = hidden_draft_rows_;
  return copy;
}

int64_t SequenceState::rollback_limit() const {
  return std::max(first_token_, high_water_ - options_.max_rollback);
}

void SequenceState::rollback(int64_t num_tokens) {
  BALEEN_CHECK(num_tokens >= rollback_limit() && num_tokens <= num_tokens_,
               "rollback to {} of {} tokens, limit {}",
               num_tokens,
               num_tokens_,
               rollback_limit());
  for (LayerState& layer : layers_) {
    truncate_layer(layer, num_tokens);
  }
  for (LayerState& layer : mtp_layers_) {
    // Row i of an MTP block needs token i+1, so the last token has no row yet.
    truncate_layer(layer, std::max<int64_t>(first_token_, num_tokens - 1));
  }
  if (options_.with_mtp) {
    streams_->truncate(num_tokens);
  }
  num_tokens_ = num_tokens;
}

void SequenceState::begin_at(int64_t position) {
  for (LayerState& layer : layers_) {
    restart_layer(layer, position);
  }
  for (LayerState& layer : mtp_layers_) {
    restart_layer(layer, position);
  }
  if (options_.with_mtp) {
    streams_->restart(position);
  }
  num_tokens_ = position;
  high_water_ = position;
  first_token_ = position;
  chain_streams_.reset();
  hidden_draft_rows_ = {};
}

void SequenceState::begin_at(int64_t position, const at::Tensor& last_streams) {
  BALEEN_CHECK(options_.with_mtp && position > 0, "position={}", position);
  begin_at(position);
  for (LayerState& layer : mtp_layers_) {
    restart_layer(layer, position - 1);
  }
  streams_->restart(position - 1);
  streams_->append(last_streams.reshape({1, -1}));
}

const CompressorState& SequenceState::c4_compressor(bool index, int64_t c4_layer) const {
  for (const LayerState& layer : layers_) {
    if (layer.index && c4_layer-- == 0) {
      return index ? *layer.index : *layer.main;
    }
  }
  BALEEN_CHECK(false, "{} too many kC4 layers", c4_layer + 1);
  return *layers_[0].index;
}

void SequenceState::advance(int64_t new_tokens) {
  num_tokens_ += new_tokens;
  high_water_ = std::max(high_water_, num_tokens_);
}

void SequenceState::advance_in_pages(int64_t count, const at::Tensor& streams) {
  for (LayerState& layer : layers_) {
    restart_layer(layer, num_tokens_ + count);
  }
  if (options_.with_mtp && streams.defined()) {
    streams_->append(streams);
  }
  advance(count);
}

int64_t SequenceState::bytes() const {
  int64_t bytes = options_.with_mtp ? streams_->bytes() : 0;
  for (const LayerState& layer : layers_) {
    bytes += layer_bytes(layer);
  }
  for (const LayerState& layer : mtp_layers_) {
    bytes += layer_bytes(layer);
  }
  return bytes;
}

double state_bytes_per_token(const ModelConfig& config, int64_t element_bytes) {
  double elements = 0.0;
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const LayerSpec& spec = config.layers[static_cast<std::size_t>(i)];
    if (spec.kind == LayerKind::kSwa) {
      continue;
    }
    const int64_t width =
        config.head_dim + (spec.kind == LayerKind::kC4 ? config.index_head_dim : 0);
    elements += static_cast<double>(width) / static_cast<double>(spec.ratio);
  }
  return elements * static_cast<double>(element_bytes);
}

}  // namespace baleen::model
