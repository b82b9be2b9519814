#pragma once
// Load runs as text, JSON and CSV. Pure.
//
//   std::fputs(load_row_text(row).c_str(), stdout);

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <boost/json/object.hpp>

#include "apps/bench/load/load_figures.h"
#include "apps/bench/load/load_run.h"
#include "apps/bench/load/load_target.h"

namespace baleen::apps {

/// One server at one pace.
struct LoadRow {
  std::string server;  // label
  std::string url;
  std::string model;
  std::string date;  // YYYY-MM-DD
  std::string mix;   // what is asked, in words
  uint64_t seed = 0;
  LoadRun run;
  LoadFigures figures;
};

std::string load_head_text();
std::string load_row_text(const LoadRow& row);

std::string load_csv_header();
std::string load_csv_line(const LoadRow& row);

/// With a list of all requests under "requests".
boost::json::object load_row_json(const LoadRow& row);

}  // namespace baleen::apps
