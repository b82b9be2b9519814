#pragma once
// Which of two forms of equal bits a pass of prompts takes; others than these for benchmarks. Plain
// data.

#include <cstdint>

namespace baleen::runner {

struct PromptForms {
  int32_t fewest_grouped_tokens = 200;  // from so many on, experts_prompt
  bool wide_linears = true;             // linear_prompt and grouped_prompt where they serve
};

}  // namespace baleen::runner
