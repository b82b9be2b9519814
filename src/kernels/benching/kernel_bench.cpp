#include "kernels/benching/kernel_bench.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <utility>

#include "base/error.h"
#include "device/cuda_check.h"
#include "kernels/benching/kernel_benches.h"

namespace baleen::kernels::benching {
namespace {

constexpr int64_t kColdBytes = 120'000'000;
constexpr int kLaunchesPerGraph = 24;
constexpr int kWarmUpReplays = 5;
constexpr const char* kCeilings = "ceiling";

std::vector<RegisteredBench>& registry() {
  static std::vector<RegisteredBench> benches;
  return benches;
}

double percent(const BenchRow& row, const Ceilings& ceilings, double median_us) {
  const double bytes_per_us = static_cast<double>(row.bytes) / median_us;
  const double flop_per_us = row.flop / median_us;
  double attained = 0;
  double attainable = 0;
  switch (row.ceiling) {
    case Ceiling::kRead:
      attained = bytes_per_us, attainable = ceilings.read_tb_s * 1e6;
      break;
    case Ceiling::kCopy:
      attained = bytes_per_us, attainable = ceilings.copy_tb_s * 1e6;
      break;
    case Ceiling::kGather:
      attained = bytes_per_us, attainable = ceilings.gather_tb_s * 1e6;
      break;
    case Ceiling::kBf16:
      attained = flop_per_us, attainable = ceilings.bf16_pflop_s * 1e9;
      break;
    case Ceiling::kFp8:
      attained = flop_per_us, attainable = ceilings.fp8_pflop_s * 1e9;
      break;
    case Ceiling::kPcie:
      attained = bytes_per_us, attainable = ceilings.pcie_gb_s * 1e3;
      break;
    case Ceiling::kLatency:
      break;
  }
  return attainable > 0 ? 100 * attained / attainable : 0;
}

const char* name(Ceiling ceiling) {
  constexpr const char* kNames[] = {"read", "copy", "gather", "bf16", "fp8", "pcie", "latency"};
  return kNames[static_cast<int>(ceiling)];
}

std::regex expression(const char* name, const std::string& text) {
  try {
    return std::regex(text.empty() ? ".*" : text);
  } catch (const std::regex_error& error) {
    throw ConfigError(std::string(name) + ": '" + text +
                      "' is no regular expression: " + error.what());
  }
}

}  // namespace

BenchRegistration::BenchRegistration(const char* kernel, BenchFunction run) {
  registry().push_back({kernel, run});
}

std::vector<RegisteredBench> registered_benches() {
  std::vector<RegisteredBench> benches = registry();
  std::sort(benches.begin(), benches.end(), [](const auto& a, const auto& b) {
    const bool first_a = a.kernel == kCeilings;
    const bool first_b = b.kernel == kCeilings;
    return first_a != first_b ? first_a : a.kernel < b.kernel;
  });
  return benches;
}

BenchContext::BenchContext(Options options)
    : options_(std::move(options)),
      filter_(options_.filter.empty() ? ".*" : options_.filter),
      csv_(options_.csv_path, options_.commit, options_.date),
      peers_(options_.peers) {}

void BenchContext::begin_kernel(const std::string& kernel) {
  kernel_ = kernel;
}

bool BenchContext::wants(const std::string& row) const {
  return kernel_ == kCeilings || std::regex_search(row, filter_);  // rows need all ceilings
}

int BenchContext::sets_for(int64_t bytes_per_set) {
  const int64_t sets = kColdBytes / std::max<int64_t>(bytes_per_set, 1) + 1;
  return static_cast<int>(std::clamp<int64_t>(sets, 2, 1024));
}

std::vector<double> BenchContext::replay(const device::Graph& graph, int launches, int replays) {
  device::Event begin;
  device::Event end;
  std::vector<double> times;
  for (int i = 0; i < replays; ++i) {
    begin.record(stream_);
    graph.launch(stream_);
    end.record(stream_);
    times.push_back(end.microseconds_since(begin) / launches);
  }
  return times;
}

Timing BenchContext::report(const BenchRow& row, std::vector<double> times) {
  std::sort(times.begin(), times.end());
  const Timing timing{times[times.size() / 2], times[times.size() * 95 / 100]};
  const double share = percent(row, ceilings_, timing.median_us);
  csv_.write({kernel_,
              row.row,
              row.implementation,
              row.mode,
              timing.median_us,
              timing.p95_us,
              row.bytes,
              row.flop,
              share,
              name(row.ceiling)});
  std::printf("%-64s %-9s %-9s %10.2f us  p95 %10.2f",
              row.row.c_str(),
              row.implementation.c_str(),
              row.mode.c_str(),
              timing.median_us,
              timing.p95_us);
  if (share > 0) {
    std::printf("  %5.1f %% of %s", share, name(row.ceiling));
  }
  std::printf("\n");
  std::fflush(stdout);
  ++rows_written_;
  return timing;
}

Timing BenchContext::measure(const BenchRow& row, int sets, const LaunchFunction& launch) {
  if (!wants(row.row)) {
    return {};
  }
  const int launches = std::max(kLaunchesPerGraph, std::min(sets, 256));
  int set = 0;
  // Two graphs of different sets, so that no set comes back before the others were used.
  std::vector<device::Graph> graphs;
  const int graph_count = std::max(1, std::min(4, (sets + launches - 1) / launches));
  for (int g = 0; g < graph_count; ++g) {
    graphs.push_back(device::Graph::capture(stream_, [&](cudaStream_t stream) {
      for (int i = 0; i < launches; ++i) {
        launch(stream, set);
        set = (set + 1) % sets;
      }
    }));
  }
  for (int i = 0; i < kWarmUpReplays; ++i) {
    replay(graphs[static_cast<std::size_t>(i % graph_count)], launches, 1);
  }
  std::vector<double> times;
  for (int i = 0; i < options_.replays; ++i) {
    times.push_back(replay(graphs[static_cast<std::size_t>(i % graph_count)], launches, 1)[0]);
  }
  return report(row, std::move(times));
}

void BenchContext::measure_in_turns(const std::vector<Contender>& contenders, int sets) {
  if (contenders.empty() || !wants(contenders[0].row.row)) {
    return;
  }
  const int launches = std::max(kLaunchesPerGraph, std::min(sets, 256));
  std::vector<device::Graph> graphs;
  for (const Contender& contender : contenders) {
    graphs.push_back(device::Graph::capture(stream_, [&](cudaStream_t stream) {
      for (int i = 0; i < launches; ++i) {
        contender.launch(stream, i % sets);
      }
    }));
    replay(graphs.back(), launches, kWarmUpReplays);
  }
  std::vector<std::vector<double>> times(contenders.size());
  for (int i = 0; i < options_.replays; ++i) {
    for (std::size_t c = 0; c < contenders.size(); ++c) {
      times[c].push_back(replay(graphs[c], launches, 1)[0]);
    }
  }
  for (std::size_t c = 0; c < contenders.size(); ++c) {
    report(contenders[c].row, std::move(times[c]));
  }
}

int run_kernel_benches(const KernelBenchOptions& wanted) {
  if (wanted.list) {
    for (const RegisteredBench& bench : registered_benches()) {
      std::printf("%s\n", bench.kernel.c_str());
    }
    return 0;
  }
  const std::regex kernels = expression("kernels", wanted.kernels);
  expression("filter", wanted.filter);
  if (device::device_count() == 0) {
    throw SystemError("kernel benchmarks need a CUDA device; none was found");
  }
  BenchContext context({.filter = wanted.filter,
                        .csv_path = wanted.csv_path,
                        .commit = wanted.commit,
                        .date = wanted.date,
                        .peers = wanted.peers,
                        .replays = std::max(1, wanted.replays)});
  int failures = 0;
  for (const RegisteredBench& bench : registered_benches()) {
    const bool is_ceiling = bench.kernel == kCeilings;
    if (is_ceiling ? !wanted.ceilings : !std::regex_search(bench.kernel, kernels)) {
      continue;
    }
    const auto begin = std::chrono::steady_clock::now();
    context.begin_kernel(bench.kernel);
    try {
      bench.run(context);
    } catch (const std::exception& error) {
      std::printf("FAILED %s: %s\n", bench.kernel.c_str(), error.what());
      ++failures;
    }
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
    std::printf("%s took %.0f s\n", bench.kernel.c_str(), spent.count());
  }
  std::printf("%d rows, %d kernels failed\n", context.rows_written(), failures);
  return failures == 0 ? 0 : 1;
}

}  // namespace baleen::kernels::benching
