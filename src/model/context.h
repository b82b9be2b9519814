#pragma once
// What differs between training, scoring, prefill, chunks and decode: which tokens belong to which
// sequence, where they stand, and what the sequence remembers. The modules have one body; position
// by position work runs on all N tokens of a step at once, work along a sequence runs per group.
// Built for one forward and read by its modules; one thread.
//
//   StepContext step(config, numerics, tables, ids, {{.batch = 4, .tokens = 256}});

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/model_config.h"
#include "model/parallel_step.h"
#include "model/sequence_state.h"
#include "model/taps.h"
#include "model/trace.h"
#include "ops/numerics_config.h"
#include "ops/rope.h"

namespace baleen::model {

struct StepChoices;
struct LayerChoices;

/// Rotation tables of a model: plain for window layers and MTP, compressed (YaRN) for the others.
struct RopeTables {
  ops::RopeTable plain;
  ops::RopeTable compressed;

  int64_t num_positions() const { return plain.num_positions(); }
  const ops::RopeTable& of(const LayerSpec& spec) const {
    return spec.kind == LayerKind::kSwa ? plain : compressed;
  }
};

/// `like` gives dtype and device.
RopeTables make_rope_tables(const ModelConfig& config,
                            int64_t num_positions,
                            const at::Tensor& like,
                            const ops::Numerics& numerics);

/// `batch` sequences of `tokens` tokens each, all beginning at the same position. With a state
/// there is one sequence, whose earlier tokens the state holds; without there are none, or other
/// ranks hold them.
struct SequenceGroup {
  int64_t batch = 1;
  int64_t tokens = 0;
  int64_t first_position = 0;
  SequenceState* state = nullptr;
  int64_t row_begin = 0;  // filled by StepContext

  int64_t num_rows() const { return batch * tokens; }
};

class StepContext {
 public:
  /// ids: i64 [N], the tokens of the groups one after another. `parallel_step`: null on one rank;
  /// else it outlives the context, and groups without a state may begin behind position 0.
  StepContext(const ModelConfig& model_config,
              const ops::Numerics& model_numerics,
              const RopeTables& rope_tables,
              at::Tensor token_ids,
              std::vector<SequenceGroup> sequence_groups,
              const ParallelStep* parallel_step = nullptr);

  int64_t num_rows() const { return num_rows_; }

  /// The step on whose rows this rank's heads work; itself on one rank.
  const StepContext& core() const { return parallel == nullptr ? *this : parallel->core(); }

  /// Flat [N, ...] as [b, t, ...] for ops::rotate, and the table rows that go with it.
  at::Tensor for_rotation(const at::Tensor& flat) const;
  const at::Tensor& rope_rows(const LayerSpec& spec) const {
    return spec.kind == LayerKind::kSwa ? plain_rows_ : compressed_rows_;
  }

  /// The rows of a group out of [N, ...], as [B, T, ...].
  at::Tensor rows_of(const at::Tensor& flat, const SequenceGroup& group) const;

  void capture(const std::string& prefix, const char* point, const at::Tensor& value) const {
    if (trace != nullptr) {
      trace->capture(prefix + point, value);
    }
  }
  /// For values of one group: later groups get the suffix "#g".
  void capture(const std::string& prefix,
               const char* point,
               std::size_t group,
               const at::Tensor& value) const;

  const ModelConfig& config;
  const ops::Numerics& numerics;
  const RopeTables& tables;
  at::Tensor ids;
  std::vector<SequenceGroup> groups;
  const ParallelStep* parallel = nullptr;
  Trace* trace = nullptr;
  Taps* taps = nullptr;
  StepChoices* choices = nullptr;  // of main layers; null: not recorded
  // By layer, main layers then MTP blocks; null: choices are made, and not kept. In training the
  // first pass over a block keeps its choices, so that the second one cannot choose otherwise.
  const std::vector<LayerChoices>* given = nullptr;
  std::vector<LayerChoices>* made = nullptr;

 private:
  int64_t num_rows_ = 0;
  at::Tensor plain_rows_;
  at::Tensor compressed_rows_;
};

/// One decoder block as the modules see it: its name for traces and its place in the taps and
/// states.
struct BlockPlace {
  std::string prefix;     // "layers.3." or "mtp.0."
  std::size_t index = 0;  // among the main layers, or among the MTP blocks
  bool is_mtp = false;

  LayerState& state_of(SequenceState& state) const {
    return is_mtp ? state.mtp_layer(index) : state.layer(index);
  }
  /// Among main layers and MTP blocks, in this order.
  std::size_t layer(const ModelConfig& config) const {
    return index + (is_mtp ? static_cast<std::size_t>(config.num_hidden_layers) : 0);
  }
  LayerTaps& taps_of(Taps& taps, const ModelConfig& config) const {
    return taps.layers[layer(config)];
  }
};

}  // namespace baleen::model
