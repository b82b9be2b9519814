#include "runner/decode/choice_copy.h"

#include <algorithm>
#include <span>

#include "base/check.h"
#include "device/cuda_check.h"
#include "numerics/pick_shape.h"

namespace baleen::runner {

ChoiceCopy::ChoiceCopy(const ModelConfig& config, const ChoiceCopyLimits& limits)
    : layout_(cache::choice_layout(config)),
      pick_stride_(static_cast<std::size_t>(pick_code_stride(config, limits.max_context))),
      routes_(layout_.route_bytes() * limits.part_tokens),
      picks_(static_cast<int64_t>(pick_stride_) * limits.part_tokens) {
  const auto run_tokens = static_cast<std::size_t>(limits.run_tokens);
  choices_.route_bytes = layout_.route_bytes();
  choices_.routes.reserve(run_tokens * static_cast<std::size_t>(layout_.route_bytes()));
  choices_.picks.reserve(run_tokens * pick_stride_);
  choices_.pick_begin.reserve(run_tokens + 1);
  clear();
}

void ChoiceCopy::clear() {
  choices_.routes.clear();
  choices_.picks.clear();
  choices_.pick_begin.assign(1, 0);
}

void ChoiceCopy::copy(const DecodeBuffers& buffers,
                      int32_t num_tokens,
                      int64_t last_position,
                      const device::Stream& stream) {
  const auto tokens = static_cast<std::size_t>(num_tokens);
  BALEEN_CHECK(layout_.route_bytes() * num_tokens <= routes_.count() &&
                   layout_.route_bytes() * num_tokens <= buffers.route_record.count(),
               "{} tokens",
               num_tokens);
  BALEEN_CUDA_CHECK(cudaMemcpyAsync(routes_.data(),
                                    buffers.route_record.data(),
                                    tokens * static_cast<std::size_t>(layout_.route_bytes()),
                                    cudaMemcpyDeviceToHost,
                                    stream.get()));
  const auto most = static_cast<std::size_t>(numerics::most_pick_bytes(
      layout_.visible_entries(static_cast<int32_t>(last_position)), layout_.topk));
  const std::size_t width = layout_.picking_layers.size() * most;
  if (width == 0) {
    return;
  }
  const auto device_stride =
      static_cast<std::size_t>(buffers.pick_codes.count() / buffers.max_requests);
  BALEEN_CHECK(width <= pick_stride_ && width <= device_stride, "position {}", last_position);
  BALEEN_CUDA_CHECK(cudaMemcpy2DAsync(picks_.data(),
                                      pick_stride_,
                                      buffers.pick_codes.data(),
                                      device_stride,
                                      width,
                                      tokens,
                                      cudaMemcpyDeviceToHost,
                                      stream.get()));
}

void ChoiceCopy::add(int32_t token, int32_t position) {
  const auto at = static_cast<std::size_t>(token);
  const auto bytes = static_cast<std::size_t>(layout_.route_bytes());
  const std::span<const uint8_t> routes = routes_.span().subspan(at * bytes, bytes);
  choices_.routes.insert(choices_.routes.end(), routes.begin(), routes.end());
  const auto pick_bytes = static_cast<std::size_t>(layout_.pick_bytes(position));
  const std::span<const uint8_t> picks = picks_.span().subspan(at * pick_stride_, pick_bytes);
  choices_.picks.insert(choices_.picks.end(), picks.begin(), picks.end());
  choices_.pick_begin.push_back(static_cast<int64_t>(choices_.picks.size()));
}

}  // namespace baleen::runner
