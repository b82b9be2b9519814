#pragma once
// In which order a pipeline rank works through its chunks and micro-batches. Plain data: every rank
// makes its own list, and the lists of all ranks can be carried out without anybody waiting for
// ever, messages being kept until they are wanted.
//
//   for (const PipelineAction& action : pipeline_schedule(stages, rank, 8, PipelineOrder::k1F1B))
//   ...

#include <cstdint>
#include <vector>

#include "mesh/stage_split.h"

namespace baleen::mesh {

enum class PipelineOrder : uint8_t {
  kForwardsFirst,  // all forwards, then all backwards: most activations held
  k1F1B,           // one forward, one backward; interleaved where a rank has several chunks
};

struct PipelineAction {
  bool backward = false;
  int micro_batch = 0;
  int chunk = 0;  // of all chunks of the model

  friend bool operator==(const PipelineAction&, const PipelineAction&) = default;
};

/// Backwards of a chunk come in ascending micro-batch in either order. Throws ConfigError where
/// interleaved 1F1B is asked for a number of micro-batches that the ranks do not divide.
std::vector<PipelineAction> pipeline_schedule(const StageSplit& stages,
                                              int rank,
                                              int micro_batches,
                                              PipelineOrder order);

}  // namespace baleen::mesh
