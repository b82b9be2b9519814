#pragma once
// Ceilings of this card, measured where a benchmark needs them: what memory gives to one reader,
// and the FP8 tensor cores over operands that stay in shared memory. Some tens of milliseconds
// each.
//
//   const double read = measured_read_tb_s(stream);

#include "device/stream.h"

namespace baleen::runner {

/// Median microseconds and the 95th percentile of `replays` launches of a graph, after a few more.
struct GraphTimes {
  double median_us = 0.0;
  double p95_us = 0.0;
};
GraphTimes graph_times(const device::Graph& graph, const device::Stream& stream, int replays);

double measured_read_tb_s(const device::Stream& stream);
double measured_fp8_pflop_s(const device::Stream& stream);

}  // namespace baleen::runner
