// Router of a decode step with the per-expert lists: logits given.
#include <string>
#include <vector>

#include "device/buffer.h"
#include "kernels/benching/kernel_bench.h"
#include "kernels/router/router.h"
#include "kernels/testing/random_values.h"

namespace baleen::kernels::benching {
namespace {

constexpr int32_t kExperts = 256;
constexpr int32_t kTop = 6;

struct Step {
  device::Buffer<float> logits;
  RouterParams params;
};

void run(BenchContext& bench) {
  testing::RandomValues random(1);
  auto bias = device::Buffer<float>::from_host(random.normals(kExperts, 0.1F));
  device::Buffer<int32_t> counter(1);
  counter.fill_bytes(0);
  BALEEN_CUDA_CHECK(cudaDeviceSynchronize());
  for (const int32_t tokens : {1, 4, 16, 64, 256}) {
    const int64_t entries = int64_t{tokens} * kTop;
    device::Buffer<int32_t> routes(entries), num_units(1);
    device::Buffer<float> weights(entries);
    device::Buffer<ExpertUnit> units(max_expert_units(tokens, kTop, kExperts, true));
    constexpr int kSets = 64;  // small inputs: what matters is latency
    std::vector<Step> steps(kSets);
    for (Step& step : steps) {
      step.logits = device::Buffer<float>::from_host(random.normals(int64_t{tokens} * kExperts));
      step.params = {.logits = step.logits.data(),
                     .bias = bias.data(),
                     .routes = routes.data(),
                     .weights = weights.data(),
                     .counter = counter.data(),
                     .num_tokens = tokens,
                     .num_experts = kExperts,
                     .top = kTop,
                     .scale = 1.5F,
                     .shared_expert = true,
                     .lists = {num_units.data(), units.data()}};
    }
    bench.measure({.row = "router/decode/m:" + std::to_string(tokens) + "/with-lists",
                   .implementation = "portable",
                   .bytes = int64_t{tokens} * kExperts * 4,
                   .ceiling = Ceiling::kLatency},
                  kSets,
                  [&](cudaStream_t stream, int set) {
                    launch_router(steps[static_cast<std::size_t>(set)].params, stream);
                  });
  }
}

}  // namespace

BALEEN_KERNEL_BENCH("router", run)

}  // namespace baleen::kernels::benching
