#pragma once
// What a run says at its end: the curve as text, examples, where the records are. Pure.

#include <string>
#include <vector>

#include "rl/rl_run.h"

namespace baleen::rl {

/// Rows of characters, highest value first; at most `width` columns, neighbours averaged.
std::string text_plot(const std::vector<double>& values, int width, int height);

std::string summary_text(const RlConfig& config, const RlSummary& summary, double seconds);

}  // namespace baleen::rl
