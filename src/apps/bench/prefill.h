#pragma once
// `baleen bench prefill`: passes of prompt tokens on kernels of a synthetic model of Flash's shape,
// made in device memory, beside the time that their weights and products must take. A build without
// CUDA refuses by name.

#include <CLI/CLI.hpp>

namespace baleen::apps {

CLI::App* add_bench_prefill(CLI::App& bench);

}  // namespace baleen::apps
