#include "runner/decode/decode_buffers.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "cache/choice_layout.h"
#include "kernels/after_projection/after_projection.h"
#include "kernels/hyper_connection/hyper_connection.h"
#include "kernels/step_metadata/step_metadata.h"
#include "numerics/pick_shape.h"
#include "runner/decode/decode_model.h"

namespace baleen::runner {

int32_t decode_table_blocks(int64_t max_context) {
  constexpr int64_t kAlignment = 4;
  const int64_t blocks = (max_context + kernels::kPageTokens - 1) / kernels::kPageTokens;
  return static_cast<int32_t>((blocks + kAlignment - 1) / kAlignment * kAlignment);
}

int64_t decode_score_stride(int64_t max_context) {
  const int64_t entries = (max_context + kC4Ratio - 1) / kC4Ratio;
  return (entries + kC4PageEntries - 1) / kC4PageEntries * kC4PageEntries;
}

int64_t pick_code_stride(const ModelConfig& config, int64_t max_context) {
  const cache::ChoiceLayout layout = cache::choice_layout(config);
  const int64_t most = numerics::most_pick_bytes(
      layout.visible_entries(static_cast<int32_t>(max_context - 1)), layout.topk);
  return static_cast<int64_t>(layout.picking_layers.size()) * most;
}

template <class Make>
void DecodeBuffers::lay_out(const ModelConfig& config, bool records, Make&& make) {
  const int64_t m = max_requests;
  const int64_t hidden = config.hidden_size;
  make(slots, m);
  make(positions, m);
  make(window_slots, m);
  make(c4_entries, m);
  make(c128_entries, m);
  make(window_rows, m * kernels::kWindowCapacity);
  make(counts, 4);
  make(c4_plan, m);
  make(c128_plan, m);
  make(c4_writes, m);
  make(c128_writes, m);
  make(errors, 1);

  make(streams, m * kernels::kHcStreams * hidden);
  make(input, m * hidden);
  make(part, m * hidden);
  make(post, m * kernels::kHcStreams);
  make(comb, m * kernels::kHcStreams * kernels::kHcStreams);
  const int64_t few = std::min<int64_t>(m, kernels::kHcFewTokens);
  make(half_streams, few * kernels::kHcStreams * hidden);
  make(half_post, few * kernels::kHcStreams);
  make(half_comb, few * kernels::kHcStreams * kernels::kHcStreams);
  make(codes, m * hidden);
  make(scales, m * hidden / kActivationScaleBlock);
  make(latent, m * config.q_lora_rank);
  make(latent_codes, m * config.q_lora_rank);
  make(latent_scales, m * config.q_lora_rank / kActivationScaleBlock);
  make(kv, m * kernels::kKvDims);
  make(query, m * config.num_attention_heads * kernels::kKvDims);
  make(context, m * config.num_attention_heads * kernels::kKvDims);
  make(output_codes, m * config.o_groups * config.o_lora_rank);
  make(output_scales, m * config.o_groups * config.o_lora_rank / kActivationScaleBlock);
  make(main_rows, m * 4 * kernels::kKvDims);
  if (config.count_layers(LayerKind::kC4) > 0) {
    make(index_rows, m * 4 * kernels::kIndexDims);
    make(index_weight_rows, m * kernels::kIndexHeads);
    make(index_weights, m * kernels::kIndexHeads);
    make(index_query, m * kernels::kIndexHeads * kernels::kIndexDims);
    make(index_codes, m * kernels::kIndexHeads * kernels::kIndexDims);
    make(scores, m * decode_score_stride(max_context));
    make(picks, m * config.index_topk);
  }
  const int64_t top = config.num_experts_per_tok;
  make(gate_logits, m * config.n_routed_experts);
  make(routes, m * top);
  make(route_weights, m * top);
  make(router_counter, 1);
  make(num_units, 1);
  make(units, kernels::max_expert_units(m, top, config.n_routed_experts, true));
  make(logits, max_results * config.vocab_size);
  if (records) {
    const cache::ChoiceLayout layout = cache::choice_layout(config);
    make(route_record, m * layout.route_bytes());
    const auto picking = static_cast<int64_t>(layout.picking_layers.size());
    make(pick_record, m * layout.topk * picking);
    make(pick_codes, m * pick_code_stride(config, max_context));
  }
}

DecodeBuffers::DecodeBuffers(const ModelConfig& config,
                             int32_t most_requests,
                             int64_t longest_context,
                             int32_t most_results,
                             bool records)
    : DecodeBuffers(most_requests, longest_context, most_results) {
  lay_out(config, records, [this]<class T>(device::Buffer<T>& buffer, int64_t count) {
    buffer = device::Buffer<T>(count);
    buffer.fill_bytes(0);
    bytes += static_cast<int64_t>(buffer.bytes());
  });
  std::vector<int32_t> identity(static_cast<std::size_t>(max_requests));
  std::iota(identity.begin(), identity.end(), 0);
  slots.copy_from_host(std::span<const int32_t>(identity));
}

int64_t DecodeBuffers::bytes_for(const ModelConfig& config,
                                 int32_t most_requests,
                                 int64_t longest_context,
                                 int32_t most_results,
                                 bool records) {
  DecodeBuffers none(most_requests, longest_context, most_results);
  none.lay_out(config, records, [&none]<class T>(device::Buffer<T>& /*buffer*/, int64_t count) {
    none.bytes += count * static_cast<int64_t>(sizeof(T));
  });
  return none.bytes;
}

}  // namespace baleen::runner
