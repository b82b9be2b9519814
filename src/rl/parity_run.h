#pragma once
// `baleen rl parity`: texts drawn by an engine, run again token by token, with a prefill, and by
// the trainer, and where the passes part. One thread besides the engine's.
//
//   std::string told = run_parity({.model = folder}, make_executor);

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "engine/executor.h"
#include "model/parameters.h"

namespace baleen::rl {

struct ParityOptions {
  std::string model;  // folder; empty: a fresh nano model
  std::string numerics = "checkpoint+invariant";
  std::string trainer_numerics;  // empty: the same
  int64_t num_texts = 8;
  int64_t prompt_tokens = 12;  // random, and one more in each further text
  int64_t new_tokens = 36;
  int64_t prefill = 7;  // tokens of the first step of the second pass
  double temperature = 1.0;
  uint64_t seed = 1;
};

struct ParityExecutor {
  std::string numerics;
  int64_t max_context = 0;
  int32_t num_slots = 0;
};
using ParityExecutorMaker = std::function<std::unique_ptr<engine::Executor>(
    model::ModelParameters params, const ParityExecutor& wanted)>;

/// Throws Error naming model file or option.
std::string run_parity(const ParityOptions& options, const ParityExecutorMaker& make_executor);

}  // namespace baleen::rl
