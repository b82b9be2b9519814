#include "model/sequence_state.h"

#include <algorithm>

#include "base/check.h"

namespace baleen::model {
namespace {

CompressorState make_compressor_state(const LayerSpec& spec,
                                      int64_t width,
                                      const SequenceStateOptions& options,
                                      const at::TensorOptions& tensors) {
  // The open group, and with overlap also the group before it, of any length that may be taken
  // back.
  const bool overlap = spec.kind == LayerKind::kC4;
  const int64_t groups = overlap ? 2 : 1;
  const int64_t keep = groups * spec.ratio - 1 + options.max_rollback;
  return {.ratio = spec.ratio,
          .rows = RowHistory(2 * groups * width, keep, tensors, options.paint_unused),
          .entries = RowHistory(width, RowHistory::kKeepAll, tensors, options.paint_unused)};
}

LayerState make_layer_state(const ModelConfig& config,
                            const LayerSpec& spec,
                            const SequenceStateOptions& options,
                            const at::TensorOptions& tensors) {
  LayerState layer;
  layer.raw = RowHistory(config.head_dim,
                         config.sliding_window - 1 + options.max_rollback,
                         tensors,
                         options.paint_unused);
  if (spec.kind != LayerKind::kSwa) {
    layer.main = make_compressor_state(spec, config.head_dim, options, tensors);
  }
  if (spec.kind == LayerKind::kC4) {
    layer.index = make_compressor_state(spec, config.index_head_dim, options, tensors);
  }
  return layer;
}

LayerState clone_layer(const LayerState& layer) {
  LayerState copy = layer;
  copy.raw = layer.raw.clone();
  for (auto member : {&LayerState::main, &LayerState::index}) {
    if (layer.*member) {
      (copy.*member)->rows = (layer.*member)->rows.clone();
      (copy.*member)->entries = (layer.*member)->entries.clone();
    }
  }
  return copy;
}

void truncate_layer(LayerState& layer, int64_t num_tokens) {
  layer.raw.truncate(num_tokens);
  for (auto member : {&LayerState::main, &LayerState::index}) {
    if (auto& compressor = layer.*member) {
      compressor->rows.truncate(num_tokens);
      compressor->entries.truncate(num_tokens / compressor->ratio);
    }
  }
}

void restart_layer(LayerState& layer) {
  layer.raw.restart();
  for (auto member : {&LayerState::main, &LayerState::index}) {
    if (auto& compressor = layer.*member) {
      compressor->rows.restart();
      compressor->entries.restart();
    }
  }
}

int64_t layer_bytes(const LayerState& layer) {
  int64_t bytes = layer.raw.bytes();
  for (auto member : {&LayerState::main, &LayerState::index}) {
    if (const auto& compressor = layer.*member) {
      bytes += compressor->rows.bytes() + compressor->entries.bytes();
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
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const LayerSpec& spec = config.layers[static_cast<std::size_t>(i)];
    layers_.push_back(make_layer_state(config, spec, options_, tensor_options));
  }
  if (options_.with_mtp) {
    for (int64_t i = 0; i < config.num_nextn_predict_layers; ++i) {
      mtp_layers_.push_back(
          make_layer_state(config, config.mtp_layer(i), options_, tensor_options));
    }
    streams_ = RowHistory(config.hc_mult * config.hidden_size,
                          1 + options_.max_rollback,
                          tensor_options,
                          options_.paint_unused);
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
    copy.streams_ = streams_.clone();
  }
  return copy;
}

int64_t SequenceState::rollback_limit() const {
  return std::max<int64_t>(0, high_water_ - options_.max_rollback);
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
    truncate_layer(layer, std::max<int64_t>(0, num_tokens - 1));
  }
  if (options_.with_mtp) {
    streams_.truncate(num_tokens);
  }
  num_tokens_ = num_tokens;
}

void SequenceState::reset() {
  for (LayerState& layer : layers_) {
    restart_layer(layer);
  }
  for (LayerState& layer : mtp_layers_) {
    restart_layer(layer);
  }
  if (options_.with_mtp) {
    streams_.restart();
  }
  num_tokens_ = 0;
  high_water_ = 0;
}

void SequenceState::advance(int64_t new_tokens) {
  num_tokens_ += new_tokens;
  high_water_ = std::max(high_water_, num_tokens_);
}

int64_t SequenceState::bytes() const {
  int64_t bytes = options_.with_mtp ? streams_.bytes() : 0;
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
