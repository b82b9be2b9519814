#include "runner/decode/decode_graphs.h"

#include <utility>

namespace baleen::runner {

DecodeGraphs::DecodeGraphs(const DecodeModel& model,
                           const DecodeInputs& inputs,
                           std::vector<DecodeShape> shapes,
                           const device::Stream& stream,
                           bool invariant,
                           bool records)
    : shapes_(std::move(shapes)),
      buffers_(model.config, shapes_.back().requests, shapes_.back().context, 0, records) {
  const int32_t multiprocessors = device::multiprocessor_count();
  for (const DecodeShape& shape : shapes_) {
    DecodePass& pass = *passes_.emplace_back(std::make_unique<DecodePass>(
        model,
        DecodeLimits{
            .max_requests = shape.requests, .max_context = shape.context, .invariant = invariant},
        inputs,
        buffers_,
        multiprocessors));
    pass.record(stream.get());  // loads its kernels, which a capture must not
    graphs_.push_back(
        device::Graph::capture(stream, [&](device::StreamHandle s) { pass.record(s); }));
  }
  stream.synchronize();
}

void DecodeGraphs::launch(int32_t tokens, int64_t longest, const device::Stream& stream) const {
  graphs_[smallest_shape(shapes_, tokens, longest)].launch(stream);
}

int64_t DecodeGraphs::bytes() const {
  int64_t total = buffers_.bytes;
  for (const auto& pass : passes_) {
    total += pass->workspace_bytes();
  }
  return total;
}

int64_t DecodeGraphs::bytes_for(const ModelConfig& config,
                                const std::vector<DecodeShape>& shapes,
                                bool invariant,
                                bool records,
                                int32_t num_multiprocessors,
                                bool draft) {
  int64_t total =
      DecodeBuffers::bytes_for(config, shapes.back().requests, shapes.back().context, 0, records);
  for (const DecodeShape& shape : shapes) {
    const DecodeLimits limits{
        .max_requests = shape.requests, .max_context = shape.context, .invariant = invariant};
    total += DecodePass::workspace_bytes_for(config, draft, limits, num_multiprocessors);
  }
  return total;
}

}  // namespace baleen::runner
