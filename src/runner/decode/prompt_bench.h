#pragma once
// Times passes of prompts on a synthetic Flash-shape model: one sequence, some hundred tokens at
// once behind some already there, with the time of every stage.
//
//   run_prompt_bench({.config = config, .tokens = {512}, .positions = {0, 3584}}, print_row);

#include <cstdint>
#include <functional>
#include <vector>

#include "base/model_config.h"
#include "runner/decode/decode_bench.h"
#include "runner/decode/prompt_forms.h"

namespace baleen::runner {

struct PromptBenchOptions {
  ModelConfig config;
  std::vector<int32_t> tokens = {64, 256, 512, 1024};  // of a pass
  std::vector<int64_t> positions = {0};                // tokens before the pass
  PromptForms forms = {};
  int32_t replays = 10;
};

/// Rows "prompt" (a pass, from its first launch to its end; eager_us: host time of the launches;
/// floor_us: the longer of reading the weights that it needs once and of its matrix products at the
/// card's FP8 rate, both as measured in this run) and "prompt/c4/attention", ... (a stage, per
/// layer of the kind); `batch` holds the tokens and `context` the position behind them. Throws
/// ConfigError as run_decode_bench.
void run_prompt_bench(const PromptBenchOptions& options,
                      const std::function<void(const DecodeBenchRow&)>& on_row);

}  // namespace baleen::runner
