#include "mesh/pipeline_schedule.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"

namespace baleen::mesh {

std::vector<PipelineAction> pipeline_schedule(const StageSplit& stages,
                                              int rank,
                                              int micro_batches,
                                              PipelineOrder order) {
  const int ranks = stages.num_ranks();
  const int chunks = stages.chunks_per_rank();
  const bool interleaved = chunks > 1 && ranks > 1 && order == PipelineOrder::k1F1B;
  if (interleaved && micro_batches % ranks != 0) {
    throw ConfigError(
        fmt::format("pipeline: interleaved chunks need a multiple of {} micro-batches, got {}",
                    ranks,
                    micro_batches));
  }
  const int total = micro_batches * chunks;
  // Interleaved, a rank takes `ranks` micro-batches through a chunk before the next chunk;
  // otherwise all of them.
  const int round = interleaved ? ranks : std::max(1, micro_batches);
  const auto action = [&](int index, bool backward) {
    const int in_round = index % (round * chunks);
    const int local = in_round / round;
    return PipelineAction{.backward = backward,
                          .micro_batch = index / (round * chunks) * round + in_round % round,
                          .chunk = (backward ? chunks - 1 - local : local) * ranks + rank};
  };
  int ahead = total;  // forwards before the first backward
  if (order == PipelineOrder::k1F1B && chunks == 1) {
    ahead = std::min(total, ranks - rank - 1);
  } else if (interleaved) {
    ahead = std::min(total, (ranks - rank - 1) * 2 + (chunks - 1) * ranks);
  }
  std::vector<PipelineAction> actions;
  for (int i = 0; i < ahead; ++i) {
    actions.push_back(action(i, false));
  }
  for (int i = ahead; i < total; ++i) {
    actions.push_back(action(i, false));
    actions.push_back(action(i - ahead, true));
  }
  for (int i = total - ahead; i < total; ++i) {
    actions.push_back(action(i, true));
  }
  return actions;
}

}  // namespace baleen::mesh
