#include "numerics/philox.h"

#include <vector>

#include <gtest/gtest.h>

namespace baleen::numerics {
namespace {

void expect_words(PhiloxBlock block, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  EXPECT_EQ(block.words[0], a);
  EXPECT_EQ(block.words[1], b);
  EXPECT_EQ(block.words[2], c);
  EXPECT_EQ(block.words[3], d);
}

// The known answers published with the generator: zeros, ones, and the digits of pi.
TEST(PhiloxTest, KnownAnswers) {
  expect_words(
      philox4x32_10({{0, 0, 0, 0}}, {{0, 0}}), 0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8);
  constexpr uint32_t kOnes = 0xFFFFFFFF;
  expect_words(philox4x32_10({{kOnes, kOnes, kOnes, kOnes}}, {{kOnes, kOnes}}),
               0x408F276D,
               0x41C83B0E,
               0xA20BC7C6,
               0x6D5451FD);
  expect_words(
      philox4x32_10({{0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344}}, {{0xA4093822, 0x299F31D0}}),
      0xD16CFE09,
      0x94FDCCEB,
      0x5001E420,
      0x24126EA1);
}

TEST(PhiloxTest, UniformsStayBelowOneAtTheEnds) {
  constexpr uint32_t kOnes = 0xFFFFFFFF;
  EXPECT_EQ(uniform_float(0), 0.0F);
  EXPECT_EQ(uniform_float(0x100), 0x1p-24F);
  EXPECT_EQ(uniform_float(kOnes), 1.0F - 0x1p-24F);
  EXPECT_EQ(uniform_double(0, 0), 0.0);
  EXPECT_EQ(uniform_double(0x800, 0), 0x1p-53);
  EXPECT_EQ(uniform_double(kOnes, kOnes), 1.0 - 0x1p-53);
}

TEST(PhiloxTest, NormalsHaveTheRightMomentsAndStayFinite) {
  constexpr int kDraws = 200000;
  double sum = 0;
  double squares = 0;
  double fourth = 0;
  double cross = 0;
  for (int i = 0; i < kDraws / 2; ++i) {
    const PhiloxBlock random =
        philox4x32_10({{static_cast<uint32_t>(i), 0, 0, 0}}, philox_key(0x123456789ABCDEF0ULL));
    const NormalPair pair = normal_pair(random.words[0], random.words[1]);
    for (const double value : {double(pair.first), double(pair.second)}) {
      sum += value;
      squares += value * value;
      fourth += value * value * value * value;
    }
    cross += double(pair.first) * double(pair.second);
  }
  // Five standard errors: var(x) = 1, var(x^2) = 2, var(x^4) = 96, var(xy) = 1.
  EXPECT_NEAR(sum / kDraws, 0.0, 5 * std::sqrt(1.0 / kDraws));
  EXPECT_NEAR(squares / kDraws, 1.0, 5 * std::sqrt(2.0 / kDraws));
  EXPECT_NEAR(fourth / kDraws, 3.0, 5 * std::sqrt(96.0 / kDraws));
  EXPECT_NEAR(cross / (kDraws / 2.0), 0.0, 5 * std::sqrt(2.0 / kDraws));
  EXPECT_NEAR(normal_pair(0, 0).first, 6.66F, 0.01F);
  EXPECT_EQ(normal_pair(0xFFFFFFFF, 0).first, 0.0F);
}

TEST(PhiloxTest, KeyHalvesAreLowWordFirst) {
  const PhiloxKey key = philox_key(0x0000000200000001ULL);
  EXPECT_EQ(key.words[0], 1U);
  EXPECT_EQ(key.words[1], 2U);
}

}  // namespace
}  // namespace baleen::numerics
