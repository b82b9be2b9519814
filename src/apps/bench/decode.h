#pragma once
// `baleen bench decode`: decode steps on kernels of a synthetic model of Flash's shape, made in
// device memory, beside the bytes that such a step must read. A build without CUDA refuses by name.

#include <CLI/CLI.hpp>

namespace baleen::apps {

CLI::App* add_bench_decode(CLI::App& bench);

}  // namespace baleen::apps
