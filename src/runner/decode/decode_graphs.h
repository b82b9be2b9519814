#pragma once
// The decode pass of a model as captured graphs, one for each shape that a server may run. All are
// captured at start, so that a step neither allocates nor compiles. Owns passes, buffers and
// graphs; the model's memory and the inputs outlive it. Used by the thread that owns the stream.
//
//   DecodeGraphs graphs(model, inputs, decode_shapes(64, max_context), stream);
//   graphs.launch(5, 3000, stream);          // 5 requests, the longest of 3,000 tokens
//   copy(graphs.logits(), ...);

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "device/stream.h"
#include "runner/decode/decode_buffers.h"
#include "runner/decode/decode_pass.h"
#include "runner/decode/decode_shapes.h"

namespace baleen::runner {

class DecodeGraphs {
 public:
  /// `inputs` must name no request yet: every pass runs once before it is captured. Throws
  /// DeviceError when memory is short.
  DecodeGraphs(const DecodeModel& model,
               const DecodeInputs& inputs,
               std::vector<DecodeShape> shapes,
               const device::Stream& stream,
               bool invariant = false,
               bool records = false);

  /// `tokens` of all requests; the longest sequence, its tokens of the step included.
  void launch(int32_t tokens, int64_t longest, const device::Stream& stream) const;
  const uint16_t* streams() const { return buffers_.streams.data(); }
  const float* logits() const { return buffers_.logits.data(); }
  const uint32_t* refused() const { return buffers_.errors.data(); }
  const DecodeBuffers& buffers() const { return buffers_; }
  std::size_t count() const { return graphs_.size(); }
  int64_t bytes() const;  // of buffers and workspaces
  /// The same without making them.
  static int64_t bytes_for(const ModelConfig& config,
                           const std::vector<DecodeShape>& shapes,
                           bool invariant,
                           bool records,
                           int32_t num_multiprocessors,
                           bool draft = false);

 private:
  std::vector<DecodeShape> shapes_;
  DecodeBuffers buffers_;
  std::vector<std::unique_ptr<DecodePass>> passes_;
  std::vector<device::Graph> graphs_;
};

}  // namespace baleen::runner
