#pragma once
// Device memory between the launches of a decode step, and what a step leaves: logits, and the
// count of refused requests. One set serves every pass of a model whose limits it covers, as long
// as their steps run one after the other. Zeros at first: padding rows compute on them. Owned by
// whoever owns the passes.
//
//   DecodeBuffers buffers(config, /*max_requests=*/64, /*max_context=*/1 << 20);
//   DecodePass pass(model, limits, inputs, buffers, multiprocessors);

#include <cstdint>

#include "base/model_config.h"
#include "device/buffer.h"
#include "kernels/compressor_pool/compressor_plan.h"
#include "kernels/experts/expert_lists.h"

namespace baleen::runner {

struct DecodeBuffers {
  /// `most_results`: tokens that get logits; 0: all. `records`: with room for what layers choose.
  DecodeBuffers(const ModelConfig& config,
                int32_t most_requests,
                int64_t longest_context,
                int32_t most_results = 0,
                bool records = false);
  /// Bytes of such a set, without making it.
  static int64_t bytes_for(const ModelConfig& config,
                           int32_t most_requests,
                           int64_t longest_context,
                           int32_t most_results = 0,
                           bool records = false);

  int32_t max_requests = 0;  // tokens of a step
  int64_t max_context = 0;   // tokens of a sequence
  int32_t max_results = 0;   // tokens that get logits
  int64_t bytes = 0;         // of everything below

  // Of the step.
  device::Buffer<int32_t> slots, positions, window_slots, c4_entries, c128_entries;
  device::Buffer<int32_t> window_rows, counts;
  device::Buffer<kernels::CompressorPlanEntry> c4_plan, c128_plan;
  device::Buffer<kernels::RingWriteEntry> c4_writes, c128_writes;
  device::Buffer<uint32_t> errors;
  // Between two stages.
  device::Buffer<uint16_t> streams, input, part;
  device::Buffer<float> post, comb;
  // The same of the first min(max_requests, kHcFewTokens) tokens, between a block's two halves.
  device::Buffer<uint16_t> half_streams;
  device::Buffer<float> half_post, half_comb;
  device::Buffer<uint8_t> codes, scales;
  device::Buffer<uint16_t> latent, kv, query, context, index_query, index_weight_rows;
  device::Buffer<uint8_t> latent_codes, latent_scales, output_codes, output_scales, index_codes;
  device::Buffer<float> main_rows, index_rows, index_weights, scores, gate_logits;
  device::Buffer<int32_t> picks, routes, router_counter, num_units;
  device::Buffer<float> route_weights;
  device::Buffer<kernels::ExpertUnit> units;
  device::Buffer<float> logits;  // f32 [max_results, vocabulary]
  // Choices of the step, in the order of cache::ChoiceLayout; empty: none are recorded.
  device::Buffer<uint8_t> route_record;  // [max_requests, route bytes]
  device::Buffer<int32_t> pick_record;   // i32 [picking layers, max_requests, top-k], -1 behind
  device::Buffer<uint8_t> pick_codes;    // [max_requests, pick_code_stride()], see pick_codes.h

 private:
  DecodeBuffers(int32_t most_requests, int64_t longest_context, int32_t most_results)
      : max_requests(most_requests),
        max_context(longest_context),
        max_results(most_results > 0 ? most_results : most_requests) {}
  /// make(buffer, elements) for every buffer.
  template <class Make>
  void lay_out(const ModelConfig& config, bool records, Make&& make);
};

/// Entries of a page table's row, as DecodeInputs wants them.
int32_t decode_table_blocks(int64_t max_context);
/// Scores of one request, up to whole pages of entries.
int64_t decode_score_stride(int64_t max_context);
/// Bytes of a token's coded picks at most, all layers that pick.
int64_t pick_code_stride(const ModelConfig& config, int64_t max_context);

}  // namespace baleen::runner
