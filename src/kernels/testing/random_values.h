#pragma once
// Seeded random inputs for kernel tests and benchmarks: the same numbers on every host and run.
//
//   RandomValues random(7);
//   std::vector<float> scores = random.normals(4096);
//   std::vector<uint8_t> codes = random.e4m3_codes(128);

#include <cstdint>
#include <random>
#include <vector>

#include "numerics/bfloat16.h"
#include "numerics/float8.h"

namespace baleen::kernels::testing {

class RandomValues {
 public:
  explicit RandomValues(uint64_t seed) : engine_(seed) {}

  float normal(float scale = 1) { return scale * normal_(engine_); }
  /// Uniform in [low, high], both included.
  int64_t integer(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine_);
  }
  std::vector<float> normals(int64_t count, float scale = 1) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& value : values) {
      value = normal(scale);
    }
    return values;
  }
  /// bf16 bit patterns of normals.
  std::vector<uint16_t> bf16_normals(int64_t count, float scale = 1) {
    std::vector<uint16_t> values(static_cast<std::size_t>(count));
    for (uint16_t& value : values) {
      value = numerics::bf16_from_float(normal(scale));
    }
    return values;
  }
  /// e4m3 codes of normals.
  std::vector<uint8_t> e4m3_codes(int64_t count, float scale = 1) {
    std::vector<uint8_t> values(static_cast<std::size_t>(count));
    for (uint8_t& value : values) {
      value = numerics::e4m3_from_float(normal(scale));
    }
    return values;
  }
  /// Random bytes (FP4 code pairs, UE8M0 scales in a range by `low` and `high`).
  std::vector<uint8_t> bytes(int64_t count, int low = 0, int high = 255) {
    std::vector<uint8_t> values(static_cast<std::size_t>(count));
    for (uint8_t& value : values) {
      value = static_cast<uint8_t>(integer(low, high));
    }
    return values;
  }

 private:
  std::mt19937_64 engine_;
  std::normal_distribution<float> normal_;
};

}  // namespace baleen::kernels::testing
