#include <algorithm>
#include <cstdint>

#include "base/error.h"
#include "runner/decode/decode_graphs.h"
#include "runner/decode/decode_sampler.h"
#include "runner/decode/decode_shapes.h"
#include "runner/decode/draft_runner.h"
#include "runner/decode/kernel_decode.h"
#include "runner/decode/prompt_runner.h"

namespace baleen::runner {

KernelDecodeNeeds kernel_decode_needs(const ModelConfig& config,
                                      const KernelDecodeShape& shape,
                                      int32_t num_multiprocessors) {
  if (const std::string reason = decode_unsupported(config); !reason.empty()) {
    throw ConfigError("kernels do not run this model: " + reason);
  }
  const int32_t row_tokens = shape.max_drafts + 1;
  const int32_t most_tokens = std::min(shape.num_slots * row_tokens, kMostDecodeTokens);
  const int32_t blocks = decode_table_blocks(shape.max_context);
  KernelDecodeNeeds needs;
  needs.graphs = DecodeGraphs::bytes_for(config,
                                         decode_shapes(most_tokens, shape.max_context),
                                         shape.invariant,
                                         shape.record_choices,
                                         num_multiprocessors);
  needs.prompts = PromptRunner::device_bytes_for(
      config, blocks, shape.max_context, false, shape.record_choices, num_multiprocessors);
  const int64_t stream_bytes = config.hc_mult * config.hidden_size * int64_t{sizeof(uint16_t)};
  if (shape.max_drafts > 0) {
    ModelConfig draft = config;
    draft.layers = {config.mtp_layer(0)};
    draft.num_hidden_layers = 1;
    needs.drafts = PromptRunner::device_bytes_for(
                       draft, blocks, shape.max_context, true, false, num_multiprocessors) +
                   DraftRunner::graph_bytes_for(
                       draft, shape.num_slots, shape.max_context, num_multiprocessors) +
                   shape.num_slots * stream_bytes;
    needs.tables = std::max(shape.max_step_tokens, shape.num_slots * row_tokens) * stream_bytes;
  }
  needs.tables +=
      DecodeSampler::device_bytes_for(config.vocab_size, kMostPassResults) +
      static_cast<int64_t>(sizeof(int32_t)) *
          ((2 * int64_t{shape.num_slots} + most_tokens) * blocks + 4 * int64_t{most_tokens} + 1);
  return needs;
}

}  // namespace baleen::runner
