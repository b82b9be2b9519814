#pragma once
// Decoder blocks in training, one behind another: with all activations kept, or with the streams
// between blocks alone and each block run once more in backward. The second run of a block takes
// the experts and picks of the first, so that it cannot choose otherwise. Owns what backward needs;
// one thread.
//
//   BlockPass pass(params, {.recompute = Recompute::kBlock}, taps);
//   auto step = std::make_shared<StepContext>(config, numerics, tables, ids, groups);
//   streams = pass.run_block(streams, 0, step);

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include <ATen/core/Tensor.h>

#include "model/choices.h"
#include "model/context.h"
#include "model/parameters.h"
#include "model/taps.h"

namespace baleen::model {

enum class Recompute : uint8_t {
  kNone,   // keep every activation
  kBlock,  // keep the streams between blocks; run each block once more in backward
};

class BlockPass {
 public:
  /// The tensors of `params` are shared. `given`: choices that are taken instead of made, by layer;
  /// null: none. `taps` outlives the forward: its switches say what is filled, by layer (main
  /// layers, then MTP blocks).
  BlockPass(const ModelParameters& params,
            Recompute recompute,
            const ChoicesByLayer* given,
            Taps& taps);

  /// Through main block `index`. The step is shared with the graph, and what it refers to outlives
  /// that.
  at::Tensor run_block(const at::Tensor& streams,
                       std::size_t index,
                       const std::shared_ptr<StepContext>& step);
  /// Streams of the MTP block from those behind the last main block; `step` feeds the next tokens.
  at::Tensor run_mtp_block(const at::Tensor& main_streams,
                           const std::shared_ptr<StepContext>& step);

  /// What the blocks chose so far, by layer.
  const ChoicesByLayer& made() const { return shared_->made; }

 private:
  /// What the blocks of one pass share. Segments own it, because backward runs them again.
  struct Shared {
    ModelParameters params;
    Recompute recompute = Recompute::kNone;
    ChoicesByLayer given;  // empty: none
    ChoicesByLayer made;   // what the first run chose
  };
  using RunBlock = std::function<at::Tensor(const at::Tensor&, const StepContext&)>;
  at::Tensor through(const at::Tensor& input,
                     std::size_t layer,
                     const std::shared_ptr<StepContext>& step,
                     const RunBlock& run);

  std::shared_ptr<Shared> shared_;
  Taps& taps_;
};

}  // namespace baleen::model
