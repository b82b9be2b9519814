#pragma once
// A Flash-shape model with made-up weights and filled pools, made directly in device memory: what
// the decode benchmark runs, at any number of layers, requests and context that fits. Sizes of
// values are those of a trained model (products keep the size of their input), so the arithmetic
// meets no overflow; the text it would write means nothing. Owns all of its memory.
//
//   DecodeSynth synth({.config = config, .max_requests = 8, .max_context = 32768});
//   DecodePass pass(synth.model(), limits, synth.inputs(), multiprocessors);
//   synth.set_state(requests, context);

#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/buffer.h"
#include "runner/decode/decode_memory.h"
#include "runner/decode/decode_model.h"
#include "runner/decode/decode_pass.h"

namespace baleen::runner {

struct DecodeSynthOptions {
  ModelConfig config;  // any layers; decode_unsupported() must be empty
  int32_t max_requests = 1;
  int64_t max_context = 4096;  // tokens of each sequence
  int32_t window_blocks = 2;   // latest blocks of a sequence that keep their window pages
  uint64_t seed = 1;
};

class DecodeSynth {
 public:
  explicit DecodeSynth(const DecodeSynthOptions& options);

  const DecodeModel& model() const { return model_; }
  DecodeInputs inputs() const;
  /// `requests` sequences of `length` committed tokens each, every one in pages of its own.
  void set_state(int32_t requests, int64_t length);
  int64_t weight_bytes() const { return weights_.bytes(); }
  int64_t pool_bytes() const { return pools_.bytes(); }

 private:
  const uint8_t* weights(int64_t bytes, const std::vector<uint8_t>& pattern);
  DecodeMatrix fp8(int64_t outputs, int64_t inputs, bool as_bf16 = false);
  DecodeMatrix bf16(int64_t outputs, int64_t inputs);
  DecodeHyper hyper(int64_t rows);
  DecodeCompressor compressor(int64_t dims, bool overlap);
  DecodeExperts experts();
  DecodeLayer layer(const LayerSpec& spec);

  DecodeSynthOptions options_;
  int32_t table_blocks_ = 0;
  int32_t window_pages_ = 0;  // with the sink
  DecodeMemory weights_;
  DecodeMemory pools_;
  std::vector<uint8_t> e4m3_pattern_, bf16_pattern_;
  std::vector<std::vector<uint8_t>> expert_up_, expert_down_;  // a few, used in turn
  std::vector<std::byte> shared_up_, shared_down_;
  device::Buffer<int32_t> ids_, lengths_, num_requests_, page_table_, window_page_;
  DecodeModel model_;
};

}  // namespace baleen::runner
