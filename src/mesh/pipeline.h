#pragma once
// Runs forward and backward of a step's micro-batches over the pipeline ranks. Between chunks
// travel the residual streams [rows, hc_mult, hidden] and their gradients, each with a header that
// says what it is: between two ranks both directions may carry both, and a rank takes them in its
// own order.
//
//   run_pipeline(stages, PipelineOrder::k1F1B, work, mesh.group(Axis::kPp));

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "comm/group.h"
#include "mesh/pipeline_schedule.h"
#include "mesh/stage_split.h"

namespace baleen::mesh {

/// What a chunk gives.
struct ChunkResult {
  at::Tensor output;  // streams, or this rank's share of the loss behind the last chunk, a number
  at::Tensor beside;  // a further share of the loss, a number; undefined: none
};

struct PipelineWork {
  int micro_batches = 1;
  bool backward = true;
  /// Shape of a micro-batch's streams on this rank, and their type.
  std::function<std::vector<int64_t>(int micro_batch)> streams_shape;
  at::TensorOptions options;
  /// Takes the streams before the chunk, undefined before the first.
  std::function<ChunkResult(int chunk, int micro_batch, const at::Tensor& streams)> forward;
};

/// Gradients are added to the leaves that `forward` uses. A chunk none of whose parameters are
/// trained may give streams without a graph.
void run_pipeline(const StageSplit& stages,
                  PipelineOrder order,
                  const PipelineWork& work,
                  comm::Group& group);

/// Messages between pipeline ranks, kept until they are wanted. One thread; the group outlives it.
class StreamMail {
 public:
  explicit StreamMail(comm::Group& group) : group_(group) {}

  /// `label` says which streams or gradients these are, by chunk that is to take them.
  void send(const at::Tensor& x, const PipelineAction& label, int to);
  /// Throws comm::CommError naming chunk, micro-batch and both shapes when another shape came.
  at::Tensor receive(const std::vector<int64_t>& shape,
                     const at::TensorOptions& options,
                     const PipelineAction& label,
                     int from);

 private:
  struct Message {
    int from = 0;
    PipelineAction label;
    at::Tensor value;
  };
  Message next(const at::TensorOptions& options, int from);

  comm::Group& group_;
  std::deque<Message> kept_;
};

}  // namespace baleen::mesh
