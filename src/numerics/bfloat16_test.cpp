#include "numerics/bfloat16.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace baleen::numerics {
namespace {

bool is_nan_code(int code) {
  return (code & 0x7FFF) > 0x7F80;
}

TEST(Bfloat16Test, EveryCodeSurvivesARoundTrip) {
  for (int code = 0; code < 65536; ++code) {
    const float value = bf16_to_float(static_cast<uint16_t>(code));
    if (is_nan_code(code)) {
      EXPECT_TRUE(std::isnan(value));
      EXPECT_EQ(bf16_from_float(value), code | 0x40);
      EXPECT_TRUE(is_nan_code(bf16_from_double(static_cast<double>(value))));
      continue;
    }
    EXPECT_EQ(bf16_from_float(value), code);
    EXPECT_EQ(bf16_from_double(static_cast<double>(value)), code);
  }
}

TEST(Bfloat16Test, EveryMidpointGoesToTheEvenCodeAndItsNeighboursToTheNearest) {
  for (int code = 0; code < 0x7F80; ++code) {
    const double low = static_cast<double>(bf16_to_float(static_cast<uint16_t>(code)));
    // Above the largest finite code the next step would be 2^128.
    const double high = code == 0x7F7F
                            ? 0x1p128
                            : static_cast<double>(bf16_to_float(static_cast<uint16_t>(code + 1)));
    const double tie = low + (high - low) / 2;
    const int even = code % 2 == 0 ? code : code + 1;
    for (const double sign : {1.0, -1.0}) {
      const int sign_bit = sign < 0 ? 0x8000 : 0;
      EXPECT_EQ(bf16_from_double(sign * tie), even | sign_bit);
      EXPECT_EQ(bf16_from_float(static_cast<float>(sign * tie)), even | sign_bit);
      // One double step beside the tie rounds to the tie in float: two roundings would go wrong.
      EXPECT_EQ(bf16_from_double(sign * std::nextafter(tie, 0.0)), code | sign_bit);
      EXPECT_EQ(bf16_from_double(sign * std::nextafter(tie, 0x1p200)), (code + 1) | sign_bit);
    }
  }
}

TEST(Bfloat16Test, HugeAndTinyDoubles) {
  EXPECT_EQ(bf16_from_double(1e300), 0x7F80);
  EXPECT_EQ(bf16_from_double(-1e300), 0xFF80);
  EXPECT_EQ(bf16_from_double(static_cast<double>(std::numeric_limits<float>::max())), 0x7F80);
  EXPECT_EQ(bf16_from_double(0x1.FEp127), 0x7F7F);
  EXPECT_EQ(bf16_from_double(1e-300), 0);
  EXPECT_EQ(bf16_from_double(-1e-300), 0x8000);
  EXPECT_EQ(bf16_from_double(std::numeric_limits<double>::infinity()), 0x7F80);
}

TEST(Bfloat16Test, HalfDecodesEveryCode) {
  for (int code = 0; code < 65536; ++code) {
    const float value = half_to_float(static_cast<uint16_t>(code));
    const int exponent = (code >> 10) & 31;
    const int mantissa = code & 1023;
    const double sign = (code & 0x8000) != 0 ? -1.0 : 1.0;
    if (exponent == 31) {
      EXPECT_EQ(std::isnan(value), mantissa != 0);
      EXPECT_EQ(std::isinf(value), mantissa == 0);
      EXPECT_EQ(std::signbit(value), sign < 0);
      continue;
    }
    const double expected = exponent == 0 ? sign * std::ldexp(mantissa, -24)
                                          : sign * std::ldexp(1024 + mantissa, exponent - 25);
    EXPECT_EQ(static_cast<double>(value), expected);
    EXPECT_EQ(std::signbit(value), sign < 0);
  }
}

}  // namespace
}  // namespace baleen::numerics
