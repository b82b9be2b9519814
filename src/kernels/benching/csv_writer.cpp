#include "kernels/benching/csv_writer.h"

#include <iomanip>
#include <utility>

#include "base/error.h"

namespace baleen::kernels::benching {

CsvWriter::CsvWriter(const std::string& path, std::string commit, std::string date)
    : commit_(std::move(commit)), date_(std::move(date)) {
  if (path.empty()) {
    return;
  }
  file_.open(path);
  if (!file_) {
    throw SystemError("cannot write benchmark results to " + path);
  }
  file_ << "kernel,row,implementation,mode,median_us,p95_us,bytes,flop,percent_of_ceiling,ceiling,"
           "commit,date\n";
}

void CsvWriter::write(const BenchResult& result) {
  if (!file_.is_open()) {
    return;
  }
  file_ << result.kernel << ',' << result.row << ',' << result.implementation << ',' << result.mode
        << ',' << std::fixed << std::setprecision(3) << result.median_us << ',' << result.p95_us
        << ',' << result.bytes << ',' << std::setprecision(0) << result.flop << ','
        << std::setprecision(1) << result.percent_of_ceiling << ',' << result.ceiling << ','
        << commit_ << ',' << date_ << '\n'
        << std::flush;
}

}  // namespace baleen::kernels::benching
