// wo_a beside a plain stream of the same bytes, and the chain of one layer's linears with
// programmatic edges: wq_a|wkv, wq_b|index wq_b, wo_a, wo_b, shared up, shared down, each reading
// what its predecessor wrote (as bytes: the element-wise kernels between them are not part of the
// row).
#include <string>
#include <vector>

#include "kernels/benching/kernel_bench.h"
#include "kernels/ceilings/ceilings.h"
#include "kernels/grouped_projection/grouped_projection.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/linear_bench_data.h"

namespace baleen::kernels::benching {
namespace {

constexpr int64_t kGroupBytes = 1024 * 4096;

GroupedProjectionParams wo_a(BenchActivations& shared, int32_t t, int32_t tokens) {
  return {.weight = nullptr,
          .weight_scales = shared.scales.data(),
          .x = reinterpret_cast<const uint16_t*>(shared.bf16.take(0, 1)),
          .y = shared.y.data(),
          .y_scales = reinterpret_cast<uint8_t*>(shared.y.data()) + kBenchTokens * 8192,
          .num_tokens = tokens,
          .groups = 8 / t,
          .outputs = 1024,
          .inputs = 4096,
          .output = LinearOutput::kE4m3};
}

/// The chain's buffers: every product writes the buffer that the next one reads.
class Chain {
 public:
  Chain(BenchActivations& shared, const BenchPool& pool, int32_t t, int32_t tokens)
      : shared_(shared), pool_(pool), t_(t), tokens_(tokens), between_(6 * kSlot) {
    between_.fill_bytes(0x30);  // valid codes, also where a launch does not write
  }

  int64_t weight_bytes_in_all() const {
    return (1536LL * 4096) + (32768LL / t_ * 1024) + (8192LL * 1024) + 8 / t_ * kGroupBytes +
           (4096LL * 8192 / t_) + (4096LL / t_ * 4096) + (4096LL * 2048 / t_);
  }

  void launch(cudaStream_t stream, int set) {
    next_ = pool_.take(set, weight_bytes_in_all());
    linear(stream, {task(1536, 4096, shared_.codes.take(0, 1), 0)});
    linear(stream, {task(32768 / t_, 1024, slot(0), 1), task(8192, 1024, slot(0), 5)});
    GroupedProjectionParams grouped = wo_a(shared_, t_, tokens_);
    grouped.weight = take(8 / t_ * kGroupBytes);
    grouped.x = reinterpret_cast<const uint16_t*>(slot(1));
    grouped.y = slot(2);
    grouped.programmatic = true;
    launch_grouped_projection(grouped, stream);
    linear(stream, {task(4096, 8192 / t_, slot(2), 3)});
    linear(stream, {task(4096 / t_, 4096, slot(3), 4)});
    linear(stream, {task(4096, 2048 / t_, slot(4), 5)});
  }

 private:
  static constexpr int64_t kSlot = int64_t{kBenchTokens} * 65536;

  uint8_t* slot(int64_t index) { return between_.data() + index * kSlot; }
  const uint8_t* take(int64_t bytes) {
    const uint8_t* begin = next_;
    next_ += bytes;
    return begin;
  }
  LinearTask task(int32_t outputs, int32_t inputs, const void* x, int64_t y_slot) {
    LinearTask task = bench_task(shared_, outputs, inputs, WeightFormat::kE4m3, slot(y_slot));
    task.x = x;
    task.weight = take(weight_bytes(task));
    return task;
  }
  void linear(cudaStream_t stream, const std::vector<LinearTask>& tasks) {
    LinearParams params;
    std::copy(tasks.begin(), tasks.end(), params.tasks.begin());
    params.num_tasks = static_cast<int32_t>(tasks.size());
    params.num_tokens = tokens_;
    params.programmatic = true;
    launch_linear(params, stream);
  }

  BenchActivations& shared_;
  const BenchPool& pool_;
  int32_t t_;
  int32_t tokens_;
  device::Buffer<uint8_t> between_;
  const uint8_t* next_ = nullptr;
};

void run(BenchContext& bench) {
  BenchActivations shared;
  const BenchPool codes(WeightFormat::kE4m3, 300'000'000);
  device::Buffer<uint32_t> sink(1);
  for (const int32_t t : {1, 2, 4}) {
    for (const int32_t tokens : {1, 4, 16, 64}) {
      GroupedProjectionParams params = wo_a(shared, t, tokens);
      const int64_t bytes = params.groups * kGroupBytes;
      const auto launch = [&](LinearMode mode) {
        return [&, mode](cudaStream_t stream, int set) {
          GroupedProjectionParams now = params;
          now.mode = mode;
          now.weight = codes.take(set, bytes);
          launch_grouped_projection(now, stream);
        };
      };
      const int sets = BenchContext::sets_for(bytes);
      BenchRow ours{.row = "grouped_projection/decode/wo_a:8x1024x4096/t:" + std::to_string(t) +
                           "/m:" + std::to_string(tokens),
                    .implementation = "sm90",
                    .mode = "fast",
                    .bytes = bytes + tokens * params.groups * (4096 * 2 + 1024),
                    .flop = 2.0 * tokens * static_cast<double>(bytes),
                    .ceiling = Ceiling::kRead};
      BenchRow invariant = ours;
      invariant.mode = "invariant";
      BenchRow plain = ours;
      plain.implementation = "plain_stream";
      plain.mode = "-";
      plain.bytes = bytes;
      plain.flop = 0;
      bench.measure_ab(
          ours,
          launch(LinearMode::kFast),
          plain,
          [&](cudaStream_t stream, int set) {
            launch_read_stream({.source = codes.take(set, bytes),
                                .bytes = bytes,
                                .sink = sink.data(),
                                .blocks = 264},
                               stream);
          },
          sets);
      bench.measure(invariant, sets, launch(LinearMode::kInvariant));
    }
  }
  for (const int32_t t : {1, 2, 4}) {
    for (const int32_t tokens : {1, 4, 16}) {
      Chain chain(shared, codes, t, tokens);
      bench.measure({.row = "linear/chain/t:" + std::to_string(t) + "/m:" + std::to_string(tokens),
                     .implementation = "sm90",
                     .mode = "fast",
                     .bytes = chain.weight_bytes_in_all(),
                     .flop = 2.0 * tokens * static_cast<double>(chain.weight_bytes_in_all()),
                     .ceiling = Ceiling::kRead},
                    BenchContext::sets_for(chain.weight_bytes_in_all()),
                    [&](cudaStream_t stream, int set) { chain.launch(stream, set); });
    }
  }
}

BALEEN_KERNEL_BENCH("grouped_projection", run)

}  // namespace
}  // namespace baleen::kernels::benching
