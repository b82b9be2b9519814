#pragma once
// One training run: masters, AdamW, and the step. Its whole state can be written and read back, so
// that a run may be cut at any step and continued elsewhere with the same result on the same
// device. Owned by the training program; one thread.
//
//   Trainer trainer(config, recipe, seed, device);
//   if (trainer.load(folder)) { ... }             // continues, else starts
//   StepLosses losses = trainer.step(batch);
//   trainer.save(folder);

#include <cstdint>
#include <filesystem>
#include <memory>

#include <ATen/core/Tensor.h>

#include "abacus/masters.h"
#include "abacus/objective.h"
#include "abacus/schedule.h"

namespace torch::optim {
class AdamW;
}

namespace baleen::abacus {

class Trainer {
 public:
  Trainer(const ModelConfig& config, const Recipe& recipe, uint64_t seed, at::Device device);
  ~Trainer();

  int64_t next_step() const { return next_step_; }
  /// Length of the gradient before clipping, of the last step.
  const at::Tensor& gradient_norm() const { return gradient_norm_; }

  /// Begins with the weights of a checkpoint of the same configuration instead of fresh ones; they
  /// are dequantised exactly. Throws Error naming file, tensor or key.
  void start_from(const std::filesystem::path& folder);

  /// One optimizer step on the batch of step next_step().
  StepLosses step(const Batch& batch);
  /// The losses and the gradient norm of a batch, nothing changed.
  StepLosses probe(const Batch& batch, bool quantized);

  /// Judges the model as it is served (quantised) or as it is held.
  Report judge_rows(const Batch& batch, bool quantized);
  /// As it would be written: every weight rounded to its format.
  model::ModelParameters served() const;
  model::ModelParameters exact() const { return masters_.views(); }

  /// Three safetensors files: values, first and second moments; step and seed in their metadata.
  void save(const std::filesystem::path& folder) const;
  /// False when the folder holds no state. Throws CheckpointError when it is of another run.
  bool load(const std::filesystem::path& folder);

 private:
  ObjectiveSettings settings(bool quantized, double mtp_weight) const;
  void clip_gradients();
  void balance_routers(const StepLosses& losses);

  Recipe recipe_;
  at::Device device_;
  uint64_t seed_;
  Masters masters_;
  model::RopeTables plain_tables_;
  model::RopeTables served_tables_;
  std::unique_ptr<torch::optim::AdamW> optimizer_;
  at::Tensor gradient_norm_;
  int64_t next_step_ = 0;
};

}  // namespace baleen::abacus
