#pragma once
// How large passes of prompts are, and which of two forms of equal bits they take; other forms than
// these for benchmarks. Plain data.

#include <cstdint>

namespace baleen::runner {

inline constexpr int32_t kMostPassTokens = 1024;

struct PromptForms {
  int32_t fewest_grouped_tokens = 200;  // from so many on, experts_prompt
  bool wide_linears = true;             // linear_prompt and grouped_prompt where they serve
};

}  // namespace baleen::runner
