#include "apps/bench/kernels.h"

#include <ctime>
#include <memory>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "apps/source_commit.h"
#include "base/error.h"
#include "kernels/benching/kernel_benches.h"

namespace baleen::apps {

CLI::App* add_bench_kernels(CLI::App& bench) {
  auto options = std::make_shared<kernels::benching::KernelBenchOptions>();
  CLI::App* command = bench.add_subcommand("kernels", "Measure the CUDA kernels against the card");
  command->add_option("--kernels", options->kernels, "Regular expression of kernels; all if empty");
  command->add_option("--filter", options->filter, "Regular expression of rows; all if empty");
  command->add_option("--csv", options->csv_path, "File to write the rows to");
  command->add_option(
      "--peers", options->peers, "Folder of shared libraries to measure beside ours");
  command->add_option("--replays", options->replays, "Graph replays behind each median")
      ->check(CLI::Range(1, 1 << 20));
  command->add_flag("--list", options->list, "Print the names of the kernels and end");
  command->callback([options] {
    options->commit = kSourceCommit;
    options->date = fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::time(nullptr)));
    if (kernels::benching::run_kernel_benches(*options) != 0) {
      throw Error("a kernel's benchmark failed, see above");
    }
  });
  return command;
}

}  // namespace baleen::apps
