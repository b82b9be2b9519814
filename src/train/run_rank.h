#pragma once
// The rank that makes the steps of a run: the only one, or one of a mesh. What a run does beside
// its steps (metrics, progress, export) is the first rank's. One thread per rank.
//
//   std::unique_ptr<RunRank> rank = single_rank(std::move(masters), config);
//   run_on_ranks(plan, std::move(params), make_masters, config, [&](RunRank& rank) { ... });

#include <functional>
#include <memory>
#include <vector>

#include "comm/mesh_shape.h"
#include "train/mesh_options.h"
#include "train/train_checkpoint.h"
#include "train/trainer.h"

namespace baleen::train {

class MeshTrainer;

class RunRank {
 public:
  virtual ~RunRank() = default;

  /// All samples of the step, on every rank the same.
  virtual StepReport step(std::vector<Sample> samples) = 0;
  virtual Trainer& trainer() = 0;
  virtual const Trainer& trainer() const = 0;
  /// For losses of one's own; null on a single rank.
  virtual MeshTrainer* mesh_trainer() = 0;
  /// For save_checkpoint and restore_checkpoint, which all ranks call.
  virtual CheckpointRank checkpoint_rank() const = 0;
  /// What the first rank says, on every rank.
  virtual bool agreed(bool said_by_first) = 0;
  /// The whole of what the ranks hold, on the first rank; called by all. `own`: masters' values or
  /// leaves.
  virtual model::ModelParameters whole(const model::ModelParameters& own) = 0;

  bool is_first() const { return checkpoint_rank().is_first(); }
};

std::unique_ptr<RunRank> single_rank(Masters masters, const TrainerConfig& config);

/// Runs `body` on every rank of a mesh of threads, each with its parts of `params`, which are let
/// go before the masters are made. Rethrows the error of the rank that failed first. Operators run
/// on `threads` threads per rank.
void run_on_ranks(const MeshOptions& options,
                  model::ModelParameters params,
                  const std::function<Masters(model::ModelParameters own)>& make_masters,
                  const TrainerConfig& config,
                  int64_t threads,
                  const std::function<void(RunRank& rank)>& body);

}  // namespace baleen::train
