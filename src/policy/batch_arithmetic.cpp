#include "policy/batch_arithmetic.h"

#include <fmt/format.h>

#include "base/error.h"

namespace baleen::policy {
namespace {

void check_positive(const char* name, const std::optional<int64_t>& value) {
  if (value && *value < 1) {
    throw ConfigError(fmt::format("{} must be at least 1, not {}", name, *value));
  }
}

/// `product` / `known`, which must come out even.
int64_t missing_factor(const char* name, int64_t product, int64_t known, const char* known_name) {
  if (product % known != 0) {
    throw ConfigError(fmt::format(
        "{} cannot be {} / {}: {} does not divide it", name, product, known, known_name));
  }
  return product / known;
}

}  // namespace

BatchSizes solve_batch(BatchKnobs knobs, int64_t data_parallel, bool dynamic_batch) {
  check_positive("rollout_batch_size", knobs.rollout_batch_size);
  check_positive("n_samples_per_prompt", knobs.n_samples_per_prompt);
  check_positive("global_batch_size", knobs.global_batch_size);
  check_positive("num_steps_per_rollout", knobs.num_steps_per_rollout);
  const int given = (knobs.rollout_batch_size ? 1 : 0) + (knobs.n_samples_per_prompt ? 1 : 0) +
                    (knobs.global_batch_size ? 1 : 0) + (knobs.num_steps_per_rollout ? 1 : 0);
  if (given < 3 && !knobs.n_samples_per_prompt) {
    knobs.n_samples_per_prompt = 1;
  }
  if (given < 3 && !knobs.num_steps_per_rollout &&
      !(knobs.rollout_batch_size && knobs.global_batch_size)) {
    knobs.num_steps_per_rollout = 1;
  }
  if (!knobs.rollout_batch_size && !knobs.global_batch_size) {
    throw ConfigError("rollout_batch_size or global_batch_size must be given");
  }
  BatchSizes sizes;
  if (!knobs.rollout_batch_size || !knobs.n_samples_per_prompt) {
    const int64_t product = *knobs.global_batch_size * knobs.num_steps_per_rollout.value_or(1);
    if (!knobs.rollout_batch_size) {
      knobs.rollout_batch_size = missing_factor(
          "rollout_batch_size", product, *knobs.n_samples_per_prompt, "n_samples_per_prompt");
    } else {
      knobs.n_samples_per_prompt = missing_factor(
          "n_samples_per_prompt", product, *knobs.rollout_batch_size, "rollout_batch_size");
    }
  }
  sizes.prompts = *knobs.rollout_batch_size;
  sizes.samples_per_prompt = *knobs.n_samples_per_prompt;
  if (!knobs.global_batch_size) {
    sizes.steps_per_rollout = knobs.num_steps_per_rollout.value_or(1);
    sizes.samples_per_step = missing_factor(
        "global_batch_size", sizes.samples(), sizes.steps_per_rollout, "num_steps_per_rollout");
  } else {
    sizes.samples_per_step = *knobs.global_batch_size;
    sizes.steps_per_rollout = knobs.num_steps_per_rollout ? *knobs.num_steps_per_rollout
                                                          : missing_factor("num_steps_per_rollout",
                                                                           sizes.samples(),
                                                                           sizes.samples_per_step,
                                                                           "global_batch_size");
  }
  if (sizes.samples() != sizes.samples_per_step * sizes.steps_per_rollout) {
    throw ConfigError(
        fmt::format("rollout_batch_size {} x n_samples_per_prompt {} = {}, but global_batch_size "
                    "{} x num_steps_per_rollout {} = {}: leave one out or make them equal",
                    sizes.prompts,
                    sizes.samples_per_prompt,
                    sizes.samples(),
                    sizes.samples_per_step,
                    sizes.steps_per_rollout,
                    sizes.samples_per_step * sizes.steps_per_rollout));
  }
  if (!dynamic_batch && sizes.samples_per_step % data_parallel != 0) {
    throw ConfigError(
        fmt::format("global_batch_size {} must be divisible by the {} data-parallel ranks, or "
                    "use_dynamic_batch_size be on",
                    sizes.samples_per_step,
                    data_parallel));
  }
  return sizes;
}

}  // namespace baleen::policy
