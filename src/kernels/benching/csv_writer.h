#pragma once
// One row of a kernel benchmark and the CSV file it goes to.
//
//   CsvWriter csv("results.csv", commit, date);
//   csv.write(result);

#include <cstdint>
#include <fstream>
#include <string>

namespace baleen::kernels::benching {

struct BenchResult {
  std::string kernel;          // folder name, or "ceiling"
  std::string row;             // path, such as "linear/decode/wq_b:8192x1024/t:4/m:1"
  std::string implementation;  // "sm90", "portable", "cublaslt" or a peer's name with its commit
  std::string mode;            // "fast", "invariant" or "-"
  double median_us = 0;
  double p95_us = 0;
  int64_t bytes = 0;  // read and written once each, per launch
  double flop = 0;
  double percent_of_ceiling = 0;
  std::string ceiling;  // read, copy, gather, bf16, fp8, pcie or latency
};

class CsvWriter {
 public:
  /// An empty path writes nothing.
  CsvWriter(const std::string& path, std::string commit, std::string date);
  void write(const BenchResult& result);

 private:
  std::ofstream file_;
  std::string commit_;
  std::string date_;
};

}  // namespace baleen::kernels::benching
