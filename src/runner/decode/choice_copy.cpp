#include "runner/decode/choice_copy.h"

#include <algorithm>
#include <span>

#include "base/check.h"
#include "cache/pick_codec.h"
#include "device/cuda_check.h"

namespace baleen::runner {

ChoiceCopy::ChoiceCopy(const ModelConfig& config, int32_t most_tokens)
    : layout_(cache::choice_layout(config)),
      routes_(layout_.route_bytes() * most_tokens),
      picks_(static_cast<int64_t>(layout_.picking_layers.size()) * layout_.topk * most_tokens) {
  clear();
}

void ChoiceCopy::clear() {
  choices_.route_bytes = layout_.route_bytes();
  choices_.routes.clear();
  choices_.picks.clear();
  choices_.pick_begin.assign(1, 0);
}

void ChoiceCopy::copy(const DecodeBuffers& buffers,
                      int32_t num_tokens,
                      int64_t last_position,
                      const device::Stream& stream) {
  const auto tokens = static_cast<std::size_t>(num_tokens);
  num_tokens_ = num_tokens;
  BALEEN_CHECK(layout_.route_bytes() * num_tokens <= routes_.count() &&
                   layout_.route_bytes() * num_tokens <= buffers.route_record.count(),
               "{} tokens",
               num_tokens);
  BALEEN_CUDA_CHECK(cudaMemcpyAsync(routes_.data(),
                                    buffers.route_record.data(),
                                    tokens * static_cast<std::size_t>(layout_.route_bytes()),
                                    cudaMemcpyDeviceToHost,
                                    stream.get()));
  if (layout_.picking_layers.empty() ||
      layout_.visible_entries(static_cast<int32_t>(last_position)) <= layout_.topk) {
    return;
  }
  const std::size_t row = static_cast<std::size_t>(layout_.topk) * sizeof(int32_t);
  BALEEN_CUDA_CHECK(cudaMemcpy2DAsync(picks_.data(),
                                      tokens * row,
                                      buffers.pick_record.data(),
                                      static_cast<std::size_t>(buffers.max_requests) * row,
                                      tokens * row,
                                      layout_.picking_layers.size(),
                                      cudaMemcpyDeviceToHost,
                                      stream.get()));
}

void ChoiceCopy::add(int32_t token, int32_t position) {
  const auto bytes = static_cast<std::size_t>(layout_.route_bytes());
  const std::span<const uint8_t> routes =
      routes_.span().subspan(static_cast<std::size_t>(token) * bytes, bytes);
  choices_.routes.insert(choices_.routes.end(), routes.begin(), routes.end());
  const int32_t visible = layout_.visible_entries(position);
  if (visible > layout_.topk) {
    const auto topk = static_cast<std::size_t>(layout_.topk);
    for (std::size_t layer = 0; layer < layout_.picking_layers.size(); ++layer) {
      const std::size_t row =
          layer * static_cast<std::size_t>(num_tokens_) + static_cast<std::size_t>(token);
      cache::encode_picks(
          picks_.span().subspan(row * topk, topk), visible, layout_.topk, choices_.picks);
    }
  }
  choices_.pick_begin.push_back(static_cast<int64_t>(choices_.picks.size()));
}

}  // namespace baleen::runner
