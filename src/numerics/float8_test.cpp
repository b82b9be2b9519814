#include "numerics/float8.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace baleen::numerics {
namespace {

/// The value of a code from the definition of the format.
double e4m3_by_definition(int code) {
  const double sign = (code & 0x80) != 0 ? -1.0 : 1.0;
  const int exponent = (code >> 3) & 15;
  const int mantissa = code & 7;
  if (exponent == 15 && mantissa == 7) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  return sign *
         (exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10));
}

TEST(E4m3Test, EveryCodeDecodesByDefinitionAndSurvivesARoundTrip) {
  for (int code = 0; code < 256; ++code) {
    const float value = e4m3_to_float(static_cast<uint8_t>(code));
    const double expected = e4m3_by_definition(code);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(value));
    } else {
      EXPECT_EQ(static_cast<double>(value), expected);
    }
    EXPECT_EQ(std::signbit(value), code >= 128);
    EXPECT_EQ(e4m3_from_float(value), code);
    EXPECT_EQ(e4m3_from_double(static_cast<double>(value)), code);
  }
}

TEST(E4m3Test, KnownCodes) {
  EXPECT_EQ(e4m3_to_float(0x01), 0x1p-9F);
  EXPECT_EQ(e4m3_to_float(0x08), 0x1p-6F);
  EXPECT_EQ(e4m3_to_float(0x38), 1.0F);
  EXPECT_EQ(e4m3_to_float(0x40), 2.0F);
  EXPECT_EQ(e4m3_to_float(0x7E), 448.0F);
  EXPECT_EQ(e4m3_to_float(0xC0), -2.0F);
}

TEST(E4m3Test, EveryMidpointGoesToTheEvenCodeAndItsNeighboursToTheNearest) {
  for (int code = 0; code < 0x7E; ++code) {
    const double tie = (e4m3_by_definition(code) + e4m3_by_definition(code + 1)) / 2;
    const int even = code % 2 == 0 ? code : code + 1;
    for (const double sign : {1.0, -1.0}) {
      const int sign_bit = sign < 0 ? 0x80 : 0;
      const auto tie_float = static_cast<float>(sign * tie);
      EXPECT_EQ(e4m3_from_float(tie_float), even | sign_bit);
      EXPECT_EQ(e4m3_from_float(std::nextafter(tie_float, 0.0F)), code | sign_bit);
      EXPECT_EQ(e4m3_from_float(std::nextafter(tie_float, static_cast<float>(sign * 1e6))),
                (code + 1) | sign_bit);
      EXPECT_EQ(e4m3_from_double(sign * tie), even | sign_bit);
      EXPECT_EQ(e4m3_from_double(sign * std::nextafter(tie, 0.0)), code | sign_bit);
      EXPECT_EQ(e4m3_from_double(sign * std::nextafter(tie, 1e6)), (code + 1) | sign_bit);
    }
  }
}

TEST(E4m3Test, ClampsAndKeepsNan) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float value : {448.0F, 449.0F, 464.0F, 1e30F, kInfinity}) {
    EXPECT_EQ(e4m3_from_float(value), 0x7E);
    EXPECT_EQ(e4m3_from_float(-value), 0xFE);
    EXPECT_EQ(e4m3_from_double(static_cast<double>(value)), 0x7E);
    EXPECT_EQ(e4m3_from_double(static_cast<double>(-value)), 0xFE);
  }
  EXPECT_EQ(e4m3_from_float(std::numeric_limits<float>::quiet_NaN()) & 0x7F, 0x7F);
  EXPECT_EQ(e4m3_from_double(std::numeric_limits<double>::quiet_NaN()) & 0x7F, 0x7F);
  EXPECT_EQ(e4m3_from_float(-0.0F), 0x80);
  EXPECT_EQ(e4m3_from_float(1e-40F), 0x00);
}

TEST(Ue8m0Test, EveryCode) {
  for (int code = 0; code < 255; ++code) {
    const float value = ue8m0_to_float(static_cast<uint8_t>(code));
    EXPECT_EQ(static_cast<double>(value), std::ldexp(1.0, code - 127)) << code;
    EXPECT_EQ(ue8m0_from_pow2(value), code);
  }
  EXPECT_EQ(float_bits(ue8m0_to_float(0)), 0x00400000U);
  EXPECT_TRUE(std::isnan(ue8m0_to_float(255)));
}

TEST(Pow2UpTest, EveryExponentWithAndWithoutMantissa) {
  for (int exponent = -126; exponent <= 127; ++exponent) {
    const float power = std::ldexp(1.0F, exponent);
    EXPECT_EQ(pow2up(power), power);
    const float next = std::min(2.0F * power, 0x1p127F);
    EXPECT_EQ(pow2up(std::nextafter(power, INFINITY)), next);
    EXPECT_EQ(pow2up(1.5F * power), next);
    EXPECT_EQ(pow2up(-power), power);
  }
  EXPECT_EQ(pow2up(INFINITY), 0x1p127F);
}

}  // namespace
}  // namespace baleen::numerics
