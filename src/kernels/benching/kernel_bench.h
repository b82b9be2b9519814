#pragma once
// Timing of kernels by graph replay. A figure is a graph period: the replay time of a graph of
// equal launches divided by their number. Inputs rotate over more than the L2 holds, so they are
// cold. Benchmarks register themselves; the driver measures the ceilings first and then every row
// wanted.
//
//   void run(BenchContext& bench) {
//     const int sets = bench.sets_for(bytes);
//     bench.measure({.row = "router/decode/m:1", .bytes = bytes, .ceiling = Ceiling::kRead}, sets,
//                   [&](cudaStream_t stream, int set) { launch(params[set], stream); });
//   }
//   BALEEN_KERNEL_BENCH("router", run)

#include <cstdint>
#include <functional>
#include <regex>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>

#include "device/stream.h"
#include "kernels/benching/csv_writer.h"
#include "kernels/benching/peer_library.h"

namespace baleen::kernels::benching {

enum class Ceiling { kRead, kCopy, kGather, kBf16, kFp8, kPcie, kLatency };

/// What was measured in this run: TB/s for memory, PFLOP/s for tensor rates, GB/s for PCIe.
struct Ceilings {
  double read_tb_s = 0;
  double copy_tb_s = 0;
  double gather_tb_s = 0;
  double bf16_pflop_s = 0;
  double fp8_pflop_s = 0;
  double pcie_gb_s = 0;
};

struct BenchRow {
  std::string row;
  std::string implementation = "sm90";
  std::string mode = "-";
  int64_t bytes = 0;
  double flop = 0;
  Ceiling ceiling = Ceiling::kLatency;  // kLatency: no percentage
};

/// Launches the kernel once on input set `set`.
using LaunchFunction = std::function<void(cudaStream_t stream, int set)>;

struct Timing {
  double median_us = 0;
  double p95_us = 0;
};

class BenchContext {
 public:
  struct Options {
    std::string filter;    // regular expression over rows; empty takes all
    std::string csv_path;  // empty writes none
    std::string commit = "unknown";
    std::string date = "unknown";
    std::string peers;  // folder of shared libraries; empty: none
    int replays = 200;
  };
  explicit BenchContext(Options options);

  /// Name of the registered kernel whose rows follow.
  void begin_kernel(const std::string& kernel);
  bool wants(const std::string& row) const;
  /// Input sets that together exceed 120 MB, at least 2 and at most 1024.
  static int sets_for(int64_t bytes_per_set);

  /// Times one row; returns zeros when the filter leaves it out.
  Timing measure(const BenchRow& row, int sets, const LaunchFunction& launch);
  /// A row and what it launches.
  struct Contender {
    BenchRow row;
    LaunchFunction launch;
  };
  /// Times rows of one run in turns, A-B-A-B; the filter looks at the first one's name.
  void measure_in_turns(const std::vector<Contender>& contenders, int sets);
  void measure_ab(const BenchRow& row_a,
                  const LaunchFunction& launch_a,
                  const BenchRow& row_b,
                  const LaunchFunction& launch_b,
                  int sets) {
    measure_in_turns({{row_a, launch_a}, {row_b, launch_b}}, sets);
  }
  const PeerLibraries& peers() const { return peers_; }
  Ceilings& ceilings() { return ceilings_; }
  const device::Stream& stream() const { return stream_; }
  int rows_written() const { return rows_written_; }

 private:
  std::vector<double> replay(const device::Graph& graph, int launches, int replays);
  Timing report(const BenchRow& row, std::vector<double> times);

  Options options_;
  std::regex filter_;
  device::Stream stream_;
  CsvWriter csv_;
  PeerLibraries peers_;
  Ceilings ceilings_;
  std::string kernel_;
  int rows_written_ = 0;
};

using BenchFunction = void (*)(BenchContext&);

struct RegisteredBench {
  std::string kernel;
  BenchFunction run = nullptr;
};

/// Every registered benchmark, in order of kernel names, "ceiling" first.
std::vector<RegisteredBench> registered_benches();

struct BenchRegistration {
  BenchRegistration(const char* kernel, BenchFunction run);
};

}  // namespace baleen::kernels::benching

#define BALEEN_KERNEL_BENCH(kernel, run)                                                        \
  static const ::baleen::kernels::benching::BenchRegistration baleen_bench_registration(kernel, \
                                                                                        run);
