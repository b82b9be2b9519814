// The premise of invariant mode on this card: equal bits for every column count, operand order,
// source of A and order of k inside one instruction. Controls that must differ show that the test
// can see.
#include <cstring>
#include <string>
#include <vector>

#include "device/buffer.h"
#include "kernels/mma_equivalence/mma_equivalence.h"
#include "kernels/testing/gpu_test.h"
#include "kernels/testing/random_values.h"

namespace baleen::kernels {
namespace {

constexpr int kRows = 768;  // both sides must be multiples of 64, 24 and 256
constexpr int kTokens = 768;

/// What the products of a K group look like.
enum class Inputs { kSpread, kWholeRange, kCancelling, kOneHuge, kZeros };
constexpr Inputs kAllInputs[] = {
    Inputs::kSpread, Inputs::kWholeRange, Inputs::kCancelling, Inputs::kOneHuge, Inputs::kZeros};

std::string name(Inputs inputs) {
  constexpr const char* kNames[] = {"spread", "whole range", "cancelling", "one huge", "zeros"};
  return kNames[static_cast<int>(inputs)];
}

class MmaEquivalenceGpu : public testing::GpuTest {
 protected:
  /// Bit patterns of the format, one uint16 per element (e4m3 uses the low byte).
  struct Problem {
    MmaFormat format = MmaFormat::kE4m3;
    int k = 0;
    std::vector<uint16_t> weights;
    std::vector<uint16_t> tokens;
    std::vector<float> start;
  };

  static int group(MmaFormat format) { return format == MmaFormat::kBf16 ? 16 : 32; }

  static uint16_t element(MmaFormat format, Inputs inputs, testing::RandomValues& random) {
    const bool negative = random.integer(0, 1) != 0;
    if (format == MmaFormat::kE4m3) {
      // Codes 0x7F and 0xFF are NaN. Exponent field 0 holds the sub-normals.
      const int64_t low = inputs == Inputs::kSpread ? 0x18 : 0x00;
      const int64_t high = inputs == Inputs::kSpread ? 0x58 : 0x7E;
      return static_cast<uint16_t>(random.integer(low, high) + (negative ? 0x80 : 0));
    }
    const int64_t mantissa = random.integer(0, 127);
    const int64_t exponent =
        inputs == Inputs::kWholeRange ? random.integer(87, 167) : random.integer(119, 135);
    // One in 64 is a sub-normal bf16: its products with ordinary values are tiny but not always
    // lost.
    const bool subnormal = inputs == Inputs::kWholeRange && random.integer(0, 63) == 0;
    return static_cast<uint16_t>((negative ? 0x8000 : 0) + ((subnormal ? 0 : exponent) << 7) +
                                 mantissa);
  }

  static Problem make(MmaFormat format, Inputs inputs, int k, uint64_t seed) {
    testing::RandomValues random(seed);
    Problem problem{.format = format,
                    .k = k,
                    .weights = {},
                    .tokens = {},
                    .start = random.normals(kRows * kTokens, 3)};
    const auto fill = [&](std::vector<uint16_t>& values, int rows, bool is_tokens) {
      values.resize(static_cast<std::size_t>(rows) * static_cast<std::size_t>(k));
      for (std::size_t i = 0; i < values.size(); ++i) {
        const int in_group = static_cast<int>(i % static_cast<std::size_t>(group(format)));
        values[i] = element(format, inputs, random);
        const uint16_t sign = format == MmaFormat::kE4m3 ? 0x80 : 0x8000;
        if (inputs == Inputs::kCancelling && in_group % 2 == 1) {
          // Weights repeat, tokens repeat with the other sign: pairs cancel but for one in eight.
          const bool keep = random.integer(0, 7) == 0;
          values[i] =
              keep ? values[i] : static_cast<uint16_t>(values[i - 1] ^ (is_tokens ? sign : 0));
        }
        if (inputs == Inputs::kOneHuge && in_group == 5) {
          values[i] = format == MmaFormat::kE4m3 ? 0x7E : static_cast<uint16_t>((127 + 12) << 7);
        }
        if (inputs == Inputs::kZeros && random.integer(0, 1) == 0) {
          values[i] = random.integer(0, 1) == 0 ? uint16_t{0} : sign;
        }
      }
    };
    fill(problem.weights, kRows, false);
    fill(problem.tokens, kTokens, true);
    return problem;
  }

  device::Buffer<uint8_t> upload(MmaFormat format, const std::vector<uint16_t>& values) {
    std::vector<uint8_t> bytes;
    if (format == MmaFormat::kE4m3) {
      for (const uint16_t value : values) {
        bytes.push_back(static_cast<uint8_t>(value));
      }
    } else {
      bytes.resize(values.size() * 2);
      std::memcpy(bytes.data(), values.data(), bytes.size());
    }
    return device::Buffer<uint8_t>::from_host(bytes);
  }

  struct OnDevice {
    device::Buffer<uint8_t> weights;
    device::Buffer<uint8_t> tokens;
    device::Buffer<float> start;
  };
  OnDevice upload(const Problem& problem) {
    return {upload(problem.format, problem.weights),
            upload(problem.format, problem.tokens),
            device::Buffer<float>::from_host(problem.start)};
  }

  struct Choice {
    int columns = 8;
    MmaOrder order = MmaOrder::kWeightsAsA;
    MmaSource source = MmaSource::kShared;
    int promote_every = 0;
  };

  std::vector<float> product(const Problem& problem,
                             const OnDevice& on_device,
                             const Choice& choice) {
    device::Buffer<float> out(kRows * kTokens);
    out.fill_bytes(0xFF);
    launch_mma_probe({.weights = on_device.weights.data(),
                      .tokens = on_device.tokens.data(),
                      .start = on_device.start.data(),
                      .out = out.data(),
                      .rows = kRows,
                      .num_tokens = kTokens,
                      .k = problem.k,
                      .format = problem.format,
                      .columns = choice.columns,
                      .order = choice.order,
                      .source = choice.source,
                      .promote_every = choice.promote_every},
                     stream());
    synchronize();
    return out.to_host();
  }

  static int64_t differing(const std::vector<float>& a, const std::vector<float>& b) {
    int64_t count = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      count += std::memcmp(&a[i], &b[i], sizeof(float)) != 0 ? 1 : 0;
    }
    return count;
  }
};

TEST_F(MmaEquivalenceGpu, EqualsADoubleProductToTheAddersPrecision) {
  for (const MmaFormat format : {MmaFormat::kBf16, MmaFormat::kE4m3}) {
    const Problem problem = make(format, Inputs::kSpread, 256, 1);
    const std::vector<float> y =
        product(problem, upload(problem), {.columns = 64, .promote_every = 128});
    const auto value = [&](uint16_t bits) {
      return format == MmaFormat::kBf16
                 ? static_cast<double>(numerics::bf16_to_float(bits))
                 : static_cast<double>(numerics::e4m3_to_float(static_cast<uint8_t>(bits)));
    };
    for (int r = 0; r < kRows; r += 37) {
      for (int t = 0; t < kTokens; t += 41) {
        double sum = problem.start[static_cast<std::size_t>(r * kTokens + t)];
        double magnitude = std::abs(sum);
        for (int k = 0; k < problem.k; ++k) {
          const double term = value(problem.weights[static_cast<std::size_t>(r * problem.k + k)]) *
                              value(problem.tokens[static_cast<std::size_t>(t * problem.k + k)]);
          sum += term;
          magnitude += std::abs(term);
        }
        // e4m3: 13 fraction bits of the largest addend, five additions in a stretch.
        const double bound = (format == MmaFormat::kBf16 ? 1e-6 : 5e-4) * magnitude;
        ASSERT_NEAR(y[static_cast<std::size_t>(r * kTokens + t)], sum, bound)
            << "row " << r << " token " << t;
      }
    }
  }
}

TEST_F(MmaEquivalenceGpu, ShapeSideAndSourceLeaveEveryBit) {
  int64_t compared = 0;
  for (const MmaFormat format : {MmaFormat::kBf16, MmaFormat::kE4m3}) {
    for (const Inputs inputs : kAllInputs) {
      for (const int k : {128, 4096}) {
        const Problem problem = make(format, inputs, k, 100 + static_cast<uint64_t>(inputs));
        const OnDevice on_device = upload(problem);
        for (const int promote_every : {0, 128}) {
          const std::vector<float> expected =
              product(problem, on_device, {.promote_every = promote_every});
          for (const int columns : {8, 16, 24, 64, 128, 256}) {
            for (const MmaOrder order : {MmaOrder::kWeightsAsA, MmaOrder::kTokensAsA}) {
              for (const MmaSource source : {MmaSource::kShared, MmaSource::kRegisters}) {
                const std::vector<float> y =
                    product(problem, on_device, {columns, order, source, promote_every});
                compared += static_cast<int64_t>(y.size());
                ASSERT_EQ(differing(y, expected), 0)
                    << name(inputs) << " format " << static_cast<int>(format) << " k " << k
                    << " columns " << columns << " tokens as A " << (order == MmaOrder::kTokensAsA)
                    << " from registers " << (source == MmaSource::kRegisters) << " promote "
                    << promote_every;
              }
            }
          }
        }
      }
    }
  }
  RecordProperty("elements_compared", std::to_string(compared));
  EXPECT_GE(compared, 10'000'000);
}

TEST_F(MmaEquivalenceGpu, OrderInsideAnInstructionLeavesEveryBitAcrossItDoesNot) {
  for (const MmaFormat format : {MmaFormat::kBf16, MmaFormat::kE4m3}) {
    const int width = group(format);
    for (const Inputs inputs : kAllInputs) {
      const Problem problem = make(format, inputs, 4096, 200 + static_cast<uint64_t>(inputs));
      const std::vector<float> expected = product(problem, upload(problem), {.columns = 64});
      // A reversal and an odd stride inside every group, applied to both operands alike.
      for (const int stride : {-1, 5}) {
        Problem moved = problem;
        for (std::size_t i = 0; i < problem.weights.size(); ++i) {
          const int in_group = static_cast<int>(i) % width;
          const int from = ((in_group * stride) % width + width) % width;
          const std::size_t source =
              i - static_cast<std::size_t>(in_group) + static_cast<std::size_t>(from);
          moved.weights[i] = problem.weights[source];
          moved.tokens[i] = problem.tokens[source];
        }
        EXPECT_EQ(differing(product(moved, upload(moved), {.columns = 64}), expected), 0)
            << name(inputs) << " stride " << stride;
      }
      // Control: the last k of a group changes places with the first of the next.
      Problem crossed = problem;
      for (std::size_t i = static_cast<std::size_t>(width); i < crossed.weights.size();
           i += static_cast<std::size_t>(2 * width)) {
        std::swap(crossed.weights[i], crossed.weights[i - 1]);
        std::swap(crossed.tokens[i], crossed.tokens[i - 1]);
      }
      if (inputs == Inputs::kSpread) {
        EXPECT_GT(differing(product(crossed, upload(crossed), {.columns = 64}), expected),
                  kRows * kTokens / 4);
      }
    }
  }
}

TEST_F(MmaEquivalenceGpu, NeighboursAndPlacesLeaveEveryBit) {
  for (const MmaFormat format : {MmaFormat::kBf16, MmaFormat::kE4m3}) {
    const Problem problem = make(format, Inputs::kSpread, 4096, 300);
    const std::vector<float> expected = product(problem, upload(problem), {.columns = 64});
    // Rows reversed: results move with their rows. Every second token zero: the others keep their
    // bits.
    Problem changed = problem;
    const auto k = static_cast<std::ptrdiff_t>(problem.k);
    for (int r = 0; r < kRows; ++r) {
      std::copy_n(
          problem.weights.begin() + r * k, k, changed.weights.begin() + (kRows - 1 - r) * k);
      std::copy_n(problem.start.begin() + r * kTokens,
                  kTokens,
                  changed.start.begin() + (kRows - 1 - r) * kTokens);
    }
    for (int t = 1; t < kTokens; t += 2) {
      std::fill_n(changed.tokens.begin() + t * k, k, uint16_t{0});
    }
    const std::vector<float> y = product(changed, upload(changed), {.columns = 64});
    int64_t differences = 0;
    for (int r = 0; r < kRows; ++r) {
      for (int t = 0; t < kTokens; t += 2) {
        const float* here = &y[static_cast<std::size_t>((kRows - 1 - r) * kTokens + t)];
        differences +=
            std::memcmp(
                here, &expected[static_cast<std::size_t>(r * kTokens + t)], sizeof(float)) != 0;
      }
    }
    EXPECT_EQ(differences, 0);
  }
}

TEST_F(MmaEquivalenceGpu, PromotionPointsArePartOfTheResult) {
  const Problem problem = make(MmaFormat::kE4m3, Inputs::kSpread, 4096, 400);
  const OnDevice on_device = upload(problem);
  const std::vector<float> every_128 =
      product(problem, on_device, {.columns = 64, .promote_every = 128});
  const std::vector<float> every_64 =
      product(problem, on_device, {.columns = 64, .promote_every = 64});
  EXPECT_GT(differing(every_128, every_64), kRows * kTokens / 2);
}

}  // namespace
}  // namespace baleen::kernels
