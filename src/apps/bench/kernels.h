#pragma once
// `baleen bench kernels`: measures the CUDA kernels. Ceilings of the card first, then every row,
// printed as it comes and written to a CSV file. A build without CUDA refuses by name.

#include <CLI/CLI.hpp>

namespace baleen::apps {

/// Adds the subcommand to `bench`; its callback throws an Error when a benchmark failed.
CLI::App* add_bench_kernels(CLI::App& bench);

}  // namespace baleen::apps
