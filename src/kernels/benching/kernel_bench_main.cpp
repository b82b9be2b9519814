// The Torch-free program of the kernel benchmarks; `baleen bench kernels` runs the same function.
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "kernels/benching/kernel_bench.h"

int main(int argc, char** argv) {
  try {
    return baleen::kernels::benching::run_kernel_benches(
        std::vector<std::string>(argv + 1, argv + argc));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kernel_bench: %s\n", error.what());
    return 1;
  }
}
