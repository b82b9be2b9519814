#include "numerics/float4.h"

#include <array>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace baleen::numerics {
namespace {

constexpr std::array<float, 8> kMagnitudes = {0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F};

TEST(E2m1Test, EveryCodeDecodesAndSurvivesARoundTrip) {
  for (int code = 0; code < 16; ++code) {
    const float expected = kMagnitudes[static_cast<std::size_t>(code % 8)] * (code < 8 ? 1 : -1);
    const float value = e2m1_to_float(static_cast<uint8_t>(code));
    EXPECT_EQ(value, expected);
    // -0 is a code of its own on disk, but encoding never distinguishes zeros.
    EXPECT_EQ(e2m1_from_float(value), code == 8 ? 0 : code);
    EXPECT_EQ(e2m1_from(static_cast<double>(value)), code == 8 ? 0 : code);
  }
  EXPECT_TRUE(std::signbit(e2m1_to_float(8)));
}

TEST(E2m1Test, MidpointsGoToTheEvenCode) {
  constexpr std::array<float, 7> kTies = {0.25F, 0.75F, 1.25F, 1.75F, 2.5F, 3.5F, 5.0F};
  constexpr std::array<float, 7> kRounded = {0.0F, 1.0F, 1.0F, 2.0F, 2.0F, 4.0F, 4.0F};
  for (std::size_t i = 0; i < kTies.size(); ++i) {
    for (const float sign : {1.0F, -1.0F}) {
      EXPECT_EQ(e2m1_to_float(e2m1_from_float(sign * kTies[i])), sign * kRounded[i]);
      EXPECT_EQ(e2m1_to_float(e2m1_from_float(sign * std::nextafter(kTies[i], 0.0F))),
                sign * kMagnitudes[i]);
      EXPECT_EQ(e2m1_to_float(e2m1_from_float(sign * std::nextafter(kTies[i], 9.0F))),
                sign * kMagnitudes[i + 1]);
      const double beside = std::nextafter(static_cast<double>(kTies[i]), 9.0);
      EXPECT_EQ(e2m1_to_float(e2m1_from(static_cast<double>(sign) * beside)),
                sign * kMagnitudes[i + 1]);
    }
  }
}

TEST(E2m1Test, ClampsAndHasNoNan) {
  EXPECT_EQ(e2m1_from_float(1e30F), 7);
  EXPECT_EQ(e2m1_from_float(-INFINITY), 15);
  EXPECT_EQ(e2m1_from_float(-0.1F), 8);
  EXPECT_EQ(e2m1_from_float(std::numeric_limits<float>::quiet_NaN()), 0);
}

TEST(E2m1Test, EvenElementIsTheLowNibble) {
  EXPECT_EQ(low_nibble(0x2B), 0xB);
  EXPECT_EQ(high_nibble(0x2B), 0x2);
  for (int byte = 0; byte < 256; ++byte) {
    const auto code = static_cast<uint8_t>(byte);
    EXPECT_EQ(pack_e2m1(low_nibble(code), high_nibble(code)), code);
  }
}

}  // namespace
}  // namespace baleen::numerics
