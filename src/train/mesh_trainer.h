#pragma once
// Training on a mesh, as one of its ranks does it: the same step as Trainer::step over tensor,
// sequence, expert, pipeline, context and data ranks. Every rank is given all samples of a step and
// takes its own share, so that nothing has to be agreed on; every rank gets the whole report. What
// a step does is that of one rank up to the order of sums. One thread per rank; all ranks make the
// same calls.
//
//   MeshTrainer trainer(Masters(mesh::own_parameters(whole, mesh, stages), rules, rounding),
//                       config, mesh, {.stages = stages});
//   StepReport report = trainer.step(samples);
//
// A loss of one's own, of the log-probabilities of the targets:
//   StepCut cut = trainer.cut(samples, denominators);
//   std::vector<SampleValues> old = trainer.forward(cut, {.temperature = 1.0});    // no gradients
//   trainer.begin_step();
//   trainer.run(cut, {.temperature = 1.0}, [&](const PackedBatch& batch, const RowLogprobs& values)
//   {
//     return TokenGradients{.logprobs = d_loss_by_d_logprob, .entropy = {}};       // [R] of
//   });                                                                      // batch.main
//   trainer.finish_step(report);

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "comm/mesh.h"
#include "mesh/mesh_model.h"
#include "mesh/pipeline_schedule.h"
#include "mesh/stage_split.h"
#include "train/choice_replay.h"
#include "train/mesh_cut.h"
#include "train/row_logprobs.h"
#include "train/trainer.h"

namespace baleen::train {

struct MeshPlan {
  mesh::StageSplit stages;
  bool zig_zag = false;
  mesh::PipelineOrder order = mesh::PipelineOrder::k1F1B;
};

/// Of one sample, by the position of its fed tokens; 0 where the next token is no target.
struct SampleValues {
  int64_t number = 0;
  std::vector<double> logprobs;
  std::vector<double> entropy;
};

/// d loss / d value of each target of a micro-batch, [R] in the order of batch.main. The loss of a
/// step is the sum over its micro-batches, so denominators are global ones.
struct TokenGradients {
  at::Tensor logprobs;
  at::Tensor entropy;  // undefined: the loss has no entropy in it, on all ranks
};

/// Called on all ranks of the last stage with the values of a whole micro-batch, wherever its
/// tokens are; those that share a data rank get the same and must give the same.
using PartLoss = std::function<TokenGradients(const PackedBatch& batch, const RowLogprobs& values)>;

struct MeshPassOptions {
  double temperature = 1.0;
  const ChoiceReplay* replay = nullptr;            // choices that are taken again; null: none
  const model::ModelParameters* params = nullptr;  // this rank's parts of another model, for
                                                   // forwards alone; null: the leaves
};

class MeshTrainer {
 public:
  /// `mesh` outlives the trainer. Throws ConfigError when plan, mesh and model do not fit.
  MeshTrainer(Masters masters,
              const TrainerConfig& config,
              const comm::Mesh& mesh,
              const MeshPlan& plan);

  /// One optimizer step of the supervised objective. Throws as Trainer::step; comm::CommError when
  /// another rank failed.
  StepReport step(const std::vector<Sample>& samples);

  StepCut cut(const std::vector<Sample>& samples, const LossDenominators& denominators) const;
  void begin_step() { trainer_.begin_step(); }
  /// Forward and backward: adds to the gradients. Values of all samples in the order given to
  /// cut(), on every rank.
  std::vector<SampleValues> run(const StepCut& cut,
                                const MeshPassOptions& options,
                                const PartLoss& loss);
  /// The values alone.
  std::vector<SampleValues> forward(const StepCut& cut, const MeshPassOptions& options);
  void finish_step(StepReport& report) { trainer_.finish_step(report); }

  Trainer& trainer() { return trainer_; }
  const Trainer& trainer() const { return trainer_; }
  const comm::Mesh& mesh() const { return mesh_; }
  const mesh::StageSplit& stages() const { return plan_.stages; }

 private:
  mesh::MeshModelOptions model_options(const MeshPassOptions& options) const;
  std::vector<SampleValues> shared(const StepCut& cut, std::vector<double>& flat) const;

  const comm::Mesh& mesh_;
  MeshPlan plan_;
  Trainer trainer_;
};

}  // namespace baleen::train
