#pragma once
// `baleen bench engine`: synthetic traffic against the engine without HTTP.

#include <CLI/CLI.hpp>

namespace baleen::apps {

void add_engine_bench(CLI::App& bench);

}  // namespace baleen::apps
