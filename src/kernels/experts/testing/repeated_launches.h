#pragma once
// Many launches of one step, every result compared on the device with the one in `batch.y`.
//
//   EXPECT_EQ(differing_words(owned_stream(), batch, launch_experts, 10'000), 0);

#include <cstdint>

#include "device/stream.h"
#include "kernels/experts/testing/expert_scene.h"
#include "kernels/repeats/repeats.h"

namespace baleen::kernels::testing {

inline constexpr int kLaunchesOfReplay = 10;  // each with a result of its own

/// 32-bit words that differ within `replays` * kLaunchesOfReplay launches. Waits for the device.
template <class Launch>
unsigned long long differing_words(const device::Stream& stream,
                                   const ExpertBatch& batch,
                                   Launch launch,
                                   int replays) {
  const auto bytes = static_cast<int64_t>(batch.y.bytes());
  device::Buffer<std::byte> results(bytes * kLaunchesOfReplay);
  device::Buffer<unsigned long long> differences(1);
  differences.fill_bytes(0);
  BALEEN_CUDA_CHECK(cudaDeviceSynchronize());
  const device::Graph graph = device::Graph::capture(stream, [&](cudaStream_t s) {
    for (int i = 0; i < kLaunchesOfReplay; ++i) {
      ExpertsParams params = batch.params;
      params.y = results.data() + i * bytes;
      launch(params, s);
    }
    launch_count_differences(
        results.data(), batch.y.data(), bytes / 4, kLaunchesOfReplay, differences.data(), s);
  });
  for (int i = 0; i < replays; ++i) {
    graph.launch(stream);
  }
  stream.synchronize();
  return differences.to_host()[0];
}

}  // namespace baleen::kernels::testing
