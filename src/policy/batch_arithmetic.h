#pragma once
// rollout_batch_size x n_samples_per_prompt = global_batch_size x num_steps_per_rollout: any three
// give the fourth. Pure.
//
//   BatchSizes sizes = solve_batch({.rollout_batch_size = 32, .n_samples_per_prompt = 8}, 1,
//   false);

#include <cstdint>
#include <optional>

namespace baleen::policy {

struct BatchKnobs {
  std::optional<int64_t> rollout_batch_size = {};     // prompts per rollout
  std::optional<int64_t> n_samples_per_prompt = {};   // group size; 1 where nothing gives it
  std::optional<int64_t> global_batch_size = {};      // samples per optimizer step
  std::optional<int64_t> num_steps_per_rollout = {};  // optimizer steps; 1 where nothing gives it
};

struct BatchSizes {
  int64_t prompts = 0;
  int64_t samples_per_prompt = 0;
  int64_t samples_per_step = 0;
  int64_t steps_per_rollout = 0;
  int64_t samples() const { return prompts * samples_per_prompt; }
};

/// Throws ConfigError with both products when they differ, and when a step's samples cannot be cut
/// into `data_parallel` equal parts (unless `dynamic_batch`).
BatchSizes solve_batch(BatchKnobs knobs, int64_t data_parallel, bool dynamic_batch);

}  // namespace baleen::policy
