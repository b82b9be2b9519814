#include "runner/decode/bench_rates.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "device/buffer.h"
#include "kernels/ceilings/ceilings.h"

namespace baleen::runner {

GraphTimes graph_times(const device::Graph& graph, const device::Stream& stream, int replays) {
  constexpr int kWarmUp = 5;
  for (int i = 0; i < kWarmUp; ++i) {
    graph.launch(stream);
  }
  std::vector<double> times;
  device::Event begin;
  device::Event end;
  for (int i = 0; i < replays; ++i) {
    begin.record(stream);
    graph.launch(stream);
    end.record(stream);
    times.push_back(end.microseconds_since(begin));
  }
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times[times.size() * 95 / 100]};
}

double measured_read_tb_s(const device::Stream& stream) {
  constexpr int64_t kBytes = int64_t{4} << 30;
  device::Buffer<uint8_t> source(kBytes);
  source.fill_bytes(1);
  device::Buffer<uint32_t> sink(1);
  const device::Graph graph = device::Graph::capture(stream, [&](device::StreamHandle s) {
    kernels::launch_read_stream({.source = source.data(), .bytes = kBytes, .sink = sink.data()}, s);
  });
  return static_cast<double>(kBytes) / graph_times(graph, stream, 20).median_us * 1e-6;
}

double measured_fp8_pflop_s(const device::Stream& stream) {
  constexpr int64_t kOperandBytes = 96 * 1024;
  std::vector<uint8_t> codes(kOperandBytes);
  uint32_t state = 1;
  for (uint8_t& code : codes) {
    state = state * 1664525U + 1013904223U;
    code = static_cast<uint8_t>((state >> 24) & 0xBFU);  // no NaN
  }
  const auto operands = device::Buffer<uint8_t>::from_host(codes);
  device::Buffer<float> sink(1);
  const kernels::TensorParams params{
      .operands = operands.data(), .sink = sink.data(), .products = 4096, .fp8 = true};
  const device::Graph graph = device::Graph::capture(
      stream, [&](device::StreamHandle s) { kernels::launch_tensor(params, s); });
  return kernels::tensor_flop(params) / graph_times(graph, stream, 20).median_us * 1e-9;
}

}  // namespace baleen::runner
