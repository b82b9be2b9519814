#pragma once
// The command `bench serve`: load on running servers, measured from outside.

#include <CLI/CLI.hpp>

namespace baleen::apps {

void add_serve_bench(CLI::App& bench);

}  // namespace baleen::apps
