// Measures the ceilings of the card: streams, gather, tensor rates, hand-overs, PCIe. Runs first,
// and fills the figures that all other rows are given against.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "device/buffer.h"
#include "kernels/benching/kernel_bench.h"
#include "kernels/ceilings/ceilings.h"
#include "kernels/testing/random_values.h"

namespace baleen::kernels::benching {
namespace {

constexpr int64_t kMegabyte = 1'000'000;
constexpr int64_t kPoolBytes = 2048 * kMegabyte;

device::Buffer<uint8_t> random_memory(int64_t bytes) {
  // One random megabyte, repeated: enough that no compression or zero value flatters a stream.
  testing::RandomValues random(11);
  const std::vector<uint8_t> chunk = random.bytes(kMegabyte);
  device::Buffer<uint8_t> memory(bytes);
  for (int64_t at = 0; at < bytes; at += kMegabyte) {
    const int64_t count = std::min(kMegabyte, bytes - at);
    BALEEN_CUDA_CHECK(cudaMemcpy(
        memory.data() + at, chunk.data(), static_cast<std::size_t>(count), cudaMemcpyHostToDevice));
  }
  return memory;
}

void measure_streams(BenchContext& bench, const device::Buffer<uint8_t>& memory, uint32_t* sink) {
  // Long enough that the ramp of a launch does not show.
  const int64_t large = kPoolBytes / 2;
  const Timing read = bench.measure(
      {.row = "ceiling/read/mb:1024", .bytes = large}, 2, [&](cudaStream_t stream, int set) {
        launch_read_stream(
            {.source = memory.data() + set * large, .bytes = large, .sink = sink, .blocks = 264},
            stream);
      });
  const Timing copy = bench.measure(
      {.row = "ceiling/copy/mb:512", .bytes = large}, 2, [&](cudaStream_t stream, int set) {
        const uint8_t* source = memory.data() + set * large;
        launch_copy_stream({.source = source,
                            .target = const_cast<uint8_t*>(source) + large / 2,
                            .bytes = large / 2},
                           stream);
      });
  if (read.median_us > 0) {
    bench.ceilings().read_tb_s = static_cast<double>(large) / read.median_us / 1e6;
  }
  if (copy.median_us > 0) {
    bench.ceilings().copy_tb_s = static_cast<double>(large) / copy.median_us / 1e6;
  }
  for (const int64_t kilobytes : {256, 1024, 2048, 4096, 8192, 16384, 32768, 65536}) {
    const int64_t bytes = kilobytes * 1024;
    const int sets = static_cast<int>(std::min<int64_t>(kPoolBytes / 4 / bytes, 256));
    for (const bool run_ahead : {false, true}) {
      for (const int blocks : {132, 264}) {
        bench.measure({.row = "ceiling/read_stream/kib:" + std::to_string(kilobytes) + "/blocks:" +
                              std::to_string(blocks) + (run_ahead ? "/run_ahead" : "/plain"),
                       .bytes = bytes,
                       .ceiling = Ceiling::kRead},
                      sets,
                      [&](cudaStream_t stream, int set) {
                        launch_read_stream({.source = memory.data() + set * bytes,
                                            .bytes = bytes,
                                            .sink = sink,
                                            .blocks = blocks,
                                            .run_ahead = run_ahead},
                                           stream);
                      });
      }
    }
  }
}

void measure_gather(BenchContext& bench, const device::Buffer<uint8_t>& memory, uint32_t* sink) {
  constexpr int64_t kPages = kPoolBytes / 4 / 37440;
  for (const int64_t count : {40960, 163840}) {
    const int sets = 4;
    testing::RandomValues random(5);
    std::vector<int32_t> rows(static_cast<std::size_t>(count * sets));
    for (int32_t& row : rows) {
      row = static_cast<int32_t>(random.integer(0, kPages * 64 - 1));
    }
    const auto device_rows = device::Buffer<int32_t>::from_host(rows);
    const Timing timing =
        bench.measure({.row = "ceiling/gather/rows:" + std::to_string(count), .bytes = count * 584},
                      sets,
                      [&](cudaStream_t stream, int set) {
                        launch_row_gather({.pool = memory.data(),
                                           .rows = device_rows.data() + set * count,
                                           .num_rows = count,
                                           .sink = sink},
                                          stream);
                      });
    if (timing.median_us > 0) {
      bench.ceilings().gather_tb_s = static_cast<double>(count * 584) / timing.median_us / 1e6;
    }
  }
}

void measure_tensor(BenchContext& bench) {
  testing::RandomValues random(3);
  const auto sink = device::Buffer<float>(1);
  constexpr int64_t kOperandBytes = 96 * 1024;
  const auto bf16 = device::Buffer<uint16_t>::from_host(random.bf16_normals(kOperandBytes / 2));
  const auto fp8 = device::Buffer<uint8_t>::from_host(random.e4m3_codes(kOperandBytes));
  for (const bool is_fp8 : {false, true}) {
    const TensorParams params{
        .operands = is_fp8 ? fp8.data() : reinterpret_cast<const uint8_t*>(bf16.data()),
        .sink = const_cast<float*>(sink.data()),
        .products = 4096,
        .fp8 = is_fp8};
    const Timing timing =
        bench.measure({.row = std::string("ceiling/tensor/") + (is_fp8 ? "fp8" : "bf16"),
                       .flop = tensor_flop(params)},
                      2,
                      [&](cudaStream_t stream, int) { launch_tensor(params, stream); });
    if (timing.median_us > 0) {
      (is_fp8 ? bench.ceilings().fp8_pflop_s : bench.ceilings().bf16_pflop_s) =
          tensor_flop(params) / timing.median_us / 1e9;
    }
  }
}

void measure_handovers(BenchContext& bench) {
  for (const bool programmatic : {false, true}) {
    bench.measure(
        {.row = std::string("ceiling/handover/") + (programmatic ? "programmatic" : "plain")},
        2,
        [&](cudaStream_t stream, int) { launch_handover({.programmatic = programmatic}, stream); });
  }
  device::Buffer<uint32_t> counter(1);
  counter.fill_bytes(0);
  device::Buffer<float> sink(1);
  constexpr int kRounds = 100;
  bench.measure({.row = "ceiling/grid_barrier/rounds:100"}, 2, [&](cudaStream_t stream, int) {
    launch_grid_barriers({.counter = counter.data(), .rounds = kRounds}, stream);
  });
  for (const int cluster : {2, 4, 8, 16}) {
    for (const bool exchange : {false, true}) {
      bench.measure(
          {.row = "ceiling/cluster_barrier/rounds:100/cluster:" + std::to_string(cluster) +
                  (exchange ? "/exchange" : "")},
          2,
          [&](cudaStream_t stream, int) {
            launch_cluster_barriers(
                {.cluster = cluster, .rounds = kRounds, .exchange = exchange, .sink = sink.data()},
                stream);
          });
    }
  }
}

struct PinnedFree {
  void operator()(uint8_t* memory) const { cudaFreeHost(memory); }
};

void measure_pcie(BenchContext& bench, device::Buffer<uint8_t>& memory) {
  constexpr int64_t kBytes = 4 * kMegabyte;
  void* raw = nullptr;
  BALEEN_CUDA_CHECK(cudaMallocHost(&raw, kBytes));
  const std::unique_ptr<uint8_t, PinnedFree> pinned(static_cast<uint8_t*>(raw));
  std::fill_n(pinned.get(), kBytes, uint8_t{7});
  const Timing timing = bench.measure(
      {.row = "ceiling/pcie/mb:4", .bytes = kBytes}, 2, [&](cudaStream_t stream, int) {
        BALEEN_CUDA_CHECK(
            cudaMemcpyAsync(memory.data(), pinned.get(), kBytes, cudaMemcpyHostToDevice, stream));
      });
  if (timing.median_us > 0) {
    bench.ceilings().pcie_gb_s = static_cast<double>(kBytes) / timing.median_us / 1e3;
  }
}

void run(BenchContext& bench) {
  device::Buffer<uint8_t> memory = random_memory(kPoolBytes);
  device::Buffer<uint32_t> sink(1);
  measure_streams(bench, memory, sink.data());
  measure_gather(bench, memory, sink.data());
  measure_tensor(bench);
  measure_handovers(bench);
  measure_pcie(bench, memory);
}

BALEEN_KERNEL_BENCH("ceiling", run)

}  // namespace
}  // namespace baleen::kernels::benching
