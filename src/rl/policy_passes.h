#pragma once
// The trainer's passes over answers: values of all their targets, without gradients, or with those
// of a loss and one optimizer step. On one rank, or on a mesh, where every rank is given all
// answers and gets all values, so that whatever is decided from them is decided alike. One thread
// per rank; all ranks make the same calls.
//
//   std::unique_ptr<PolicyPasses> passes = passes_of(trainer);         // or of a MeshTrainer
//   std::vector<train::SampleValues> old = passes->forward(samples, {.temperature = 1.0});
//   passes->step(samples, {.temperature = 1.0}, loss, report);

#include <memory>
#include <vector>

#include "train/mesh_trainer.h"
#include "train/trainer.h"

namespace baleen::rl {

class PolicyPasses {
 public:
  virtual ~PolicyPasses() = default;

  /// In the order of the samples, each with at least one target.
  virtual std::vector<train::SampleValues> forward(const std::vector<train::Sample>& samples,
                                                   const train::MeshPassOptions& options) = 0;
  /// `loss` gets every sample once, whole; on a mesh on the ranks of the last stage alone.
  virtual std::vector<train::SampleValues> step(const std::vector<train::Sample>& samples,
                                                const train::MeshPassOptions& options,
                                                const train::PartLoss& loss,
                                                train::StepReport& report) = 0;
  virtual train::Trainer& trainer() = 0;
  /// This rank has the whole model.
  virtual bool has_whole_model() const = 0;
};

/// The trainer outlives the passes.
std::unique_ptr<PolicyPasses> passes_of(train::Trainer& trainer);
std::unique_ptr<PolicyPasses> passes_of(train::MeshTrainer& trainer);

}  // namespace baleen::rl
