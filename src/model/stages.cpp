#include "model/stages.h"

#include <string>

#include "model/block.h"
#include "ops/embedding.h"

namespace baleen::model {

at::Tensor embedded_ids(const at::Tensor& embed, const StepContext& step) {
  return step.parallel == nullptr ? ops::embed(embed, step.ids) : step.parallel->embed(embed);
}

at::Tensor embed_stage(const ModelParameters& params, const StepContext& step) {
  return ops::broadcast_streams(embedded_ids(params.embed, step), params.config.hc_mult);
}

at::Tensor run_blocks(const ModelParameters& params,
                      at::Tensor streams,
                      std::size_t first,
                      std::size_t last,
                      const StepContext& step) {
  for (std::size_t i = first; i < last; ++i) {
    const BlockPlace place{.prefix = "layers." + std::to_string(i) + ".", .index = i};
    streams = run_block(streams, params.blocks[i], place, step);
  }
  return streams;
}

}  // namespace baleen::model
