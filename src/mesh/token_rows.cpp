#include "mesh/token_rows.h"

#include <algorithm>
#include <vector>

#include <ATen/ops/cat.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/zeros.h>

#include "mesh/part.h"
#include "model/head.h"
#include "model/recompute.h"
#include "model/row_logprobs.h"
#include "ops/linear.h"

namespace baleen::mesh {

WantedRows wanted_rows(const at::Tensor& core_index, const at::Tensor& wanted) {
  if (!wanted.defined()) {
    return {.places = {}, .token_index = core_index};
  }
  WantedRows rows;
  rows.places = at::nonzero(wanted.index_select(0, core_index)).squeeze(-1);
  if (rows.places.size(0) == 0) {
    rows.places = at::zeros({1}, core_index.options());
  }
  rows.token_index = core_index.index_select(0, rows.places);
  return rows;
}

TokenLogprobs head_rows(const at::Tensor& streams,
                        const model::HeadParameters& head,
                        const at::Tensor& output_shard,
                        const at::Tensor& targets,
                        const WantedRows& rows,
                        const MeshStep& parallel,
                        comm::Group& tensor_ranks,
                        const HeadOptions& options) {
  const model::StepContext& step = parallel.step();
  // Without sequence parallelism the core's rows are the step's own: no other row need go on.
  const bool choose_first = rows.places.defined() && !parallel.splits_core();
  const at::Tensor chosen = choose_first ? streams.flatten(1)
                                               .index_select(0, rows.places)
                                               .view({-1, streams.size(1), streams.size(2)})
                                         : streams;
  at::Tensor hidden =
      parallel.core_rows(model::head_hidden(chosen, head, step.config, step.numerics));
  if (rows.places.defined() && !choose_first) {
    hidden = hidden.index_select(0, rows.places);
  }
  if (tensor_ranks.size() == 1) {
    const model::RowLogprobs out = model::row_logprobs(hidden,
                                                       output_shard,
                                                       targets,
                                                       {.numerics = step.numerics,
                                                        .chunk_rows = options.chunk_rows,
                                                        .temperature = options.temperature,
                                                        .entropy = true});
    return {.logprobs = out.logprobs, .entropy = out.entropy};
  }
  const Part part = part_of(step.config.vocab_size, tensor_ranks.rank(), tensor_ranks.size());
  const auto of_rows = [numerics = step.numerics,
                        temperature = options.temperature,
                        output_shard,
                        part,
                        group = &tensor_ranks](const at::Tensor& x, const at::Tensor& ids) {
    at::Tensor logits = ops::linear_unrounded(x, output_shard, numerics);
    if (temperature != 1.0) {
      logits = logits / temperature;
    }
    return vocabulary_logprobs(logits, ids, part, *group);
  };
  const int64_t count = hidden.size(0);
  if (options.chunk_rows < 0 || count <= options.chunk_rows) {
    return of_rows(hidden, targets);
  }
  std::vector<at::Tensor> logprobs;
  std::vector<at::Tensor> entropies;
  for (int64_t begin = 0; begin < count; begin += options.chunk_rows) {
    const int64_t size = std::min(options.chunk_rows, count - begin);
    const at::Tensor ids = targets.narrow(0, begin, size);
    const std::vector<at::Tensor> values = model::recomputed(
        [of_rows, ids](const at::Tensor& x) -> std::vector<at::Tensor> {
          const TokenLogprobs out = of_rows(x, ids);
          return {out.logprobs, out.entropy};
        },
        hidden.narrow(0, begin, size));
    logprobs.push_back(values[0]);
    entropies.push_back(values[1]);
  }
  return {.logprobs = at::cat(logprobs, 0), .entropy = at::cat(entropies, 0)};
}

}  // namespace baleen::mesh
