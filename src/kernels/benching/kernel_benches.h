#pragma once
// All kernel benchmarks as one command, for `baleen bench kernels` and for the Torch-free program
// `kernel_bench`. This header needs no CUDA: a build without it has the same function, which
// refuses.
//
//   const int exit_code = run_kernel_benches({.csv_path = "kernels.csv", .commit = "4694a86"});

#include <string>

namespace baleen::kernels::benching {

struct KernelBenchOptions {
  std::string kernels;   // regular expression over kernel names; empty takes all
  std::string filter;    // regular expression over rows; empty takes all
  std::string csv_path;  // written anew; empty writes none
  std::string peers;     // folder of shared libraries of others, see peer_library.h; empty: none
  std::string commit = "unknown";
  std::string date = "unknown";
  int replays = 200;     // of the graph behind each figure
  bool ceilings = true;  // measure them first; without, no row has a percentage
  bool list = false;     // print the names of the kernels and measure nothing
};

/// Measures the ceilings, then the rows of every kernel that is wanted, and prints each as it
/// comes. Returns the exit code: 0, or 1 when a kernel's benchmark failed (the others run all the
/// same). Throws ConfigError in a build without CUDA, for an expression that is none and for a peer
/// that cannot be loaded, SystemError without a device.
int run_kernel_benches(const KernelBenchOptions& options);

}  // namespace baleen::kernels::benching
