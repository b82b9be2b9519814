#pragma once
// Cold random operands for benchmarks of linears: one pool of e4m3 codes and one of bf16 values
// from which weight sets are cut. Packed weights are a permutation, so random bytes need no
// packing.
//
//   BenchPool pool(WeightFormat::kE4m3, 200'000'000);
//   task.weight = pool.take(set, bytes_per_set);

#include <algorithm>
#include <cstdint>
#include <vector>

#include "device/buffer.h"
#include "kernels/linear/linear.h"
#include "kernels/testing/random_values.h"

namespace baleen::kernels::benching {

class BenchPool {
 public:
  BenchPool(WeightFormat format, int64_t bytes) : memory_(bytes) {
    testing::RandomValues random(91);
    constexpr int64_t kSeedBytes = 4 << 20;
    const int64_t seed_bytes = std::min(bytes, kSeedBytes);
    if (format == WeightFormat::kBf16) {
      const std::vector<uint16_t> values = random.bf16_normals(seed_bytes / 2, 0.02F);
      BALEEN_CUDA_CHECK(
          cudaMemcpy(memory_.data(), values.data(), values.size() * 2, cudaMemcpyHostToDevice));
    } else {
      const std::vector<uint8_t> values = random.e4m3_codes(seed_bytes, 32);
      BALEEN_CUDA_CHECK(
          cudaMemcpy(memory_.data(), values.data(), values.size(), cudaMemcpyHostToDevice));
    }
    for (int64_t filled = seed_bytes; filled < bytes; filled *= 2) {
      BALEEN_CUDA_CHECK(cudaMemcpy(memory_.data() + filled,
                                   memory_.data(),
                                   static_cast<std::size_t>(std::min(filled, bytes - filled)),
                                   cudaMemcpyDeviceToDevice));
    }
  }
  /// Start of set `set`; sets lie one after the other and wrap at the end of the pool.
  const uint8_t* take(int set, int64_t bytes_per_set) const {
    const int64_t places = std::max<int64_t>(1, memory_.count() / bytes_per_set);
    return memory_.data() + set % places * bytes_per_set;
  }

 private:
  device::Buffer<uint8_t> memory_;
};

inline constexpr int32_t kBenchTokens = 64;

/// Activations, scales and outputs of every width a benchmark of these layers needs.
struct BenchActivations {
  BenchActivations()
      : codes(WeightFormat::kE4m3, int64_t{kBenchTokens} * 32768),
        bf16(WeightFormat::kBf16, int64_t{kBenchTokens} * 65536),
        scales(device::Buffer<uint8_t>::from_host(
            testing::RandomValues(92).bytes(int64_t{kBenchTokens} * 4096, 118, 124))),
        y(int64_t{kBenchTokens} * 132'000) {}
  BenchPool codes;
  BenchPool bf16;
  device::Buffer<uint8_t> scales;  // of weights and of activations
  device::Buffer<float> y;
};

inline int64_t weight_bytes(const LinearTask& task) {
  return int64_t{task.num_outputs} * task.groups * task.num_inputs * element_bytes(task.format);
}

/// Bytes a launch must move: weights and scales, x and y once.
inline int64_t moved_bytes(const LinearParams& params) {
  int64_t bytes = 0;
  for (int32_t t = 0; t < params.num_tasks; ++t) {
    const LinearTask& task = params.tasks[static_cast<std::size_t>(t)];
    const int64_t x_width = task.format == WeightFormat::kE4m3 ? 1 : 2;
    bytes += weight_bytes(task) + weight_bytes(task) / 16384 +
             params.num_tokens * (int64_t{task.num_inputs} * task.groups * x_width +
                                  int64_t{task.num_outputs} * task.groups * 2);
  }
  return bytes;
}

inline double linear_flop(const LinearParams& params) {
  double flop = 0;
  for (int32_t t = 0; t < params.num_tasks; ++t) {
    const LinearTask& task = params.tasks[static_cast<std::size_t>(t)];
    flop += 2.0 * params.num_tokens * task.num_outputs * task.groups * task.num_inputs;
  }
  return flop;
}

/// A task over the shared activations; the weight is filled in per set.
inline LinearTask bench_task(
    const BenchActivations& shared, int32_t outputs, int32_t inputs, WeightFormat format, void* y) {
  LinearTask task;
  task.x = format == WeightFormat::kE4m3 ? shared.codes.take(0, 1) : shared.bf16.take(0, 1);
  task.weight_scales = format == WeightFormat::kBf16 ? nullptr : shared.scales.data();
  task.x_scales = format == WeightFormat::kE4m3 ? shared.scales.data() : nullptr;
  task.y = y;
  task.x_stride = inputs;
  task.y_stride = outputs;
  task.x_scale_stride = inputs / 128;
  task.num_outputs = outputs;
  task.num_inputs = inputs;
  task.format = format;
  return task;
}

}  // namespace baleen::kernels::benching
