// Verify passes of four tokens per request in a table of 1,048,576 positions, lengths near 4,096;
// and decode. Latency alone counts: the arrays are small.

#include <numeric>
#include <string>
#include <vector>

#include "device/buffer.h"
#include "kernels/benching/kernel_bench.h"
#include "kernels/step_metadata/step_metadata.h"

namespace baleen::kernels {
namespace {

using benching::BenchContext;
using benching::Ceiling;

void run(BenchContext& bench) {
  constexpr int kBlocks = 4096;
  for (const int requests : {1, 4, 8, 64, 256}) {
    for (const int chain : {1, 4}) {
      const int tokens = requests * chain;
      std::vector<int32_t> table(static_cast<size_t>(requests) * kBlocks);
      std::iota(table.begin(), table.end(), 1);
      std::vector<int32_t> window(table.size() + 1);
      std::iota(window.begin(), window.end(), 0);
      std::vector<int32_t> slots(static_cast<size_t>(requests));
      std::iota(slots.begin(), slots.end(), 0);
      std::vector<int32_t> lengths;
      for (int r = 0; r < requests; ++r) {
        lengths.push_back(4096 - r);
      }
      auto d_table = device::Buffer<int32_t>::from_host(table);
      auto d_window = device::Buffer<int32_t>::from_host(window);
      auto d_slots = device::Buffer<int32_t>::from_host(slots);
      auto d_lengths = device::Buffer<int32_t>::from_host(lengths);
      const int plans = tokens / 4 + requests;
      device::Buffer<int32_t> per_token(int64_t{6} * tokens),
          rows(int64_t{tokens} * kWindowCapacity);
      device::Buffer<CompressorPlanEntry> plan4(plans), plan128(plans);
      device::Buffer<RingWriteEntry> write4(tokens), write128(tokens);
      device::Buffer<int32_t> numbers(4);
      StepMetadataParams p;
      p.slots = d_slots.data();
      p.lengths = d_lengths.data();
      p.chain_len = chain;
      p.max_requests = requests;
      p.max_tokens = tokens;
      p.page_table = d_table.data();
      p.table_blocks = kBlocks;
      p.window_pages = d_window.data();
      p.token_requests = per_token.data();
      p.positions = per_token.data() + tokens;
      p.causal_lengths = per_token.data() + 2 * tokens;
      p.window_slots = per_token.data() + 3 * tokens;
      p.c4_entries = per_token.data() + 4 * tokens;
      p.c128_entries = per_token.data() + 5 * tokens;
      p.window_rows = rows.data();
      p.c4 = {plan4.data(), plans, numbers.data(), write4.data(), tokens, numbers.data() + 1, 16};
      p.c128 = {plan128.data(),
                plans,
                numbers.data() + 2,
                write128.data(),
                tokens,
                numbers.data() + 3,
                136};
      bench.measure({.row = std::string("metadata/") + (chain == 1 ? "decode" : "verify") +
                            "/bs:" + std::to_string(requests),
                     .implementation = "portable",
                     .ceiling = Ceiling::kLatency},
                    1,
                    [&](cudaStream_t stream, int) { step_metadata(p, stream); });
    }
  }
}

BALEEN_KERNEL_BENCH("metadata", run)

}  // namespace
}  // namespace baleen::kernels
