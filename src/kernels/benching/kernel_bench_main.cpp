// The Torch-free program of the kernel benchmarks; `baleen bench kernels` runs the same function.
#include <cstdio>
#include <exception>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "kernels/benching/kernel_benches.h"

namespace {

using baleen::ConfigError;
using baleen::kernels::benching::KernelBenchOptions;

KernelBenchOptions parse(const std::vector<std::string>& arguments) {
  KernelBenchOptions options;
  const std::map<std::string, std::string*> texts = {{"--kernels", &options.kernels},
                                                     {"--filter", &options.filter},
                                                     {"--out", &options.csv_path},
                                                     {"--peers", &options.peers},
                                                     {"--commit", &options.commit},
                                                     {"--date", &options.date}};
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& flag = arguments[i];
    if (flag == "--list") {
      options.list = true;
      continue;
    }
    if (flag == "--no-ceilings") {
      options.ceilings = false;
      continue;
    }
    const auto text = texts.find(flag);
    if (text == texts.end() && flag != "--replays") {
      throw ConfigError("unknown flag " + flag +
                        "; known: --list --no-ceilings --kernels REGEX --filter REGEX --out FILE "
                        "--peers DIR --replays N --commit C --date D");
    }
    if (++i == arguments.size()) {
      throw ConfigError(flag + " needs a value");
    }
    if (text != texts.end()) {
      *text->second = arguments[i];
    } else if (std::sscanf(arguments[i].c_str(), "%d", &options.replays) != 1) {
      throw ConfigError("--replays: '" + arguments[i] + "' is no number");
    }
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return baleen::kernels::benching::run_kernel_benches(
        parse(std::vector<std::string>(argv + 1, argv + argc)));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kernel_bench: %s\n", error.what());
    return 1;
  }
}
