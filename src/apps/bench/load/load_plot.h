#pragma once
// Load runs as one SVG picture: the share of requests whose first token, gap between tokens and end
// came within a time, and the answer tokens per second of each run. Pure.
//
//   std::string svg = load_plot(rows);

#include <string>
#include <vector>

#include "apps/bench/load/load_report.h"

namespace baleen::apps {

std::string load_plot(const std::vector<LoadRow>& rows);

}  // namespace baleen::apps
