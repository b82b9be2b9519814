#pragma once
// One rank of training: masters, optimizer, schedule, and the step that joins them. A step is a
// function of its samples and the state; the state is masters, moments and the step number, nothing
// else. Ranks of a mesh are joined by RankHooks; their step is mesh_trainer.h. One thread.
//
//   Trainer trainer(std::move(masters), config);
//   StepReport report = trainer.step(samples);
//
// A step in parts, for other losses than the supervised one:
//   trainer.begin_step();
//   loss.backward();            // any number of times, over trainer.masters().leaves()
//   trainer.finish_step(report);

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "train/gradient_shards.h"
#include "train/masters.h"
#include "train/objective.h"
#include "train/optimizer.h"
#include "train/schedule.h"
#include "train/step_report.h"

namespace baleen::train {

struct TrainerConfig {
  ObjectiveConfig objective;
  OptimizerConfig optimizer;
  Schedule schedule;
  double clip_norm = 1.0;          // of the whole gradient; 0: none
  double bias_rate = 0.0;          // step of the router biases towards even loads; 0: they rest
  int64_t micro_batch_tokens = 0;  // fed tokens per forward; 0: all of a step's
  int64_t pad_multiple = 1;
  int64_t max_skipped_steps = 3;  // in a row, for gradients that are not finite
  int64_t shards = 1;             // threads that run forward and backward; decides the sums' order
};

/// What several ranks do together; by default there is one.
struct RankHooks {
  /// Adds up the gradients, in float32, between the last backward and the norm.
  std::function<void(Masters&)> reduce_gradients;
  /// Adds up numbers over all ranks, in place.
  std::function<void(std::span<double>)> sum_over_ranks;

  // Where ranks share out the optimizer's work; by default each steps all that it holds.
  /// What this rank steps; asked once.
  std::function<std::vector<OptimizerSlot>(Masters&, const OptimizerConfig&)> own_slots;
  /// Of the whole model's gradient, once it is reduced.
  std::function<double()> gradient_norm;
  /// Brings every rank the values that others stepped.
  std::function<void()> share_values;
};

class Trainer {
 public:
  Trainer(Masters masters, const TrainerConfig& config, RankHooks hooks = {});

  /// One optimizer step. Throws Error when a log-probability is not finite or too many steps in a
  /// row had to be skipped.
  StepReport step(std::vector<Sample> samples);

  void begin_step();
  /// Sums over ranks, clips, steps. Fills gradient_norm, learning_rate, skipped.
  void finish_step(StepReport& report);

  Masters& masters() { return masters_; }
  const Masters& masters() const { return masters_; }
  Optimizer& optimizer() { return optimizer_; }
  const Optimizer& optimizer() const { return optimizer_; }
  const TrainerConfig& config() const { return config_; }
  /// Forward and backward of parts of a step, on config().shards threads; see GradientShards::run.
  void run_parts(std::size_t num_parts, const GradientShards::Work& work);
  /// Tables for at least so many positions.
  const model::RopeTables& tables(int64_t num_positions);

  /// Moves the router biases by config().bias_rate. loads [E]: tokens of the step that chose each
  /// expert, of the layers that route by score in their order, main layers and MTP blocks.
  void balance_routers(const std::vector<at::Tensor>& loads);

  int64_t next_step() const { return next_step_; }
  int64_t skipped_steps() const { return skipped_steps_; }
  /// After a checkpoint was read into masters and optimizer.
  void restore(int64_t next_step, int64_t skipped_steps);

 private:
  double global_norm() const;

  Masters masters_;
  TrainerConfig config_;
  RankHooks hooks_;
  Optimizer optimizer_;
  std::unique_ptr<GradientShards> shards_;  // of masters_; made when first asked for
  model::RopeTables tables_;
  int64_t next_step_ = 0;
  int64_t skipped_steps_ = 0;
  int64_t skipped_in_a_row_ = 0;
};

/// Sum of squares in double, in the order of the elements.
double sum_of_squares(const at::Tensor& tensor);

}  // namespace baleen::train
