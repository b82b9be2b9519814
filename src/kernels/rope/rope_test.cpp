#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/rope/rope_cpu.h"
#include "kernels/rope/rope_oracle.h"
#include "numerics/bfloat16.h"

namespace baleen::kernels {
namespace {

std::vector<double> table(const std::vector<double>& frequencies, int64_t position) {
  std::vector<double> cis;
  for (const double frequency : frequencies) {
    cis.push_back(std::cos(static_cast<double>(position) * frequency));
    cis.push_back(std::sin(static_cast<double>(position) * frequency));
  }
  return cis;
}

std::vector<double> wave(std::size_t count) {
  std::vector<double> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = 2.0 * std::sin(1.3 * static_cast<double>(i) + 0.1);
  }
  return values;
}

TEST(RotateCpuTest, AgainstTheOracle) {
  const std::vector<double> all_frequencies = {1.0, 0.37, 0.05, 0.001};
  for (const std::size_t pairs : {1U, 4U}) {
    const std::vector<double> frequencies(all_frequencies.begin(),
                                          all_frequencies.begin() + static_cast<int64_t>(pairs));
    for (const std::size_t width : {2 * pairs, 2 * pairs + 5}) {
      for (const int64_t position : {0, 1, 127, 4096}) {
        for (const bool inverse : {false, true}) {
          const std::vector<double> x = wave(3 * width);
          const std::vector<double> cis = table(frequencies, position);
          std::vector<double> y(x.size(), NAN);
          rotate_cpu<double>({.x = x.data(),
                              .cis = cis.data(),
                              .y = y.data(),
                              .rows = 3,
                              .width = static_cast<int64_t>(width),
                              .pairs = static_cast<int64_t>(pairs),
                              .inverse = inverse});
          std::vector<double> expected = x;
          for (std::size_t row = 0; row < 3; ++row) {
            rope_oracle(
                std::span(expected).subspan(row * width, width), frequencies, position, inverse);
          }
          for (std::size_t i = 0; i < y.size(); ++i) {
            // Same products in the same precision; the inverse negates the sine instead of the
            // angle.
            EXPECT_NEAR(y[i], expected[i], 4 * 0x1p-52)
                << "element " << i << " position " << position;
          }
        }
      }
    }
  }
}

TEST(RotateCpuTest, InPlaceAndRoundedAsTheSeparateSteps) {
  const std::vector<double> wide = wave(2 * 9);
  const std::vector<float> x(wide.begin(), wide.end());
  const std::vector<double> wide_cis = table({1.0, 0.2}, 7);
  const std::vector<float> cis(wide_cis.begin(), wide_cis.end());
  std::vector<float> exact(x.size());
  RotateArgs<float> args{
      .x = x.data(), .cis = cis.data(), .y = exact.data(), .rows = 2, .width = 9, .pairs = 2};
  rotate_cpu(args);
  std::vector<float> rounded = x;
  args.x = rounded.data();
  args.y = rounded.data();
  args.rounded = true;
  rotate_cpu(args);
  for (std::size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(rounded[i], numerics::round_to_bf16(exact[i])) << i;
  }
}

}  // namespace
}  // namespace baleen::kernels
