// Rows of the decode benchmark as CSV, in every build.

#include <cstdio>

#include "runner/decode/decode_bench.h"

namespace baleen::runner {

std::string decode_bench_header() {
  return "date,commit,card,part,batch,context,median_us,p95_us,floor_mb,floor_us,percent_of_floor,"
         "launches,eager_host_us,graph_host_us";
}

std::string decode_bench_line(const DecodeBenchRow& row, const std::string& where) {
  char line[256];
  std::snprintf(line,
                sizeof(line),
                "%s,%d,%lld,%.2f,%.2f,%.1f,%.2f,%.1f,%.1f,%.0f,%.1f",
                row.part.c_str(),
                row.batch,
                static_cast<long long>(row.context),
                row.median_us,
                row.p95_us,
                row.floor_bytes * 1e-6,
                row.floor_us,
                row.median_us > 0 ? 100.0 * row.floor_us / row.median_us : 0.0,
                row.launches,
                row.eager_us,
                row.graph_us);
  return where + "," + line;
}

}  // namespace baleen::runner
