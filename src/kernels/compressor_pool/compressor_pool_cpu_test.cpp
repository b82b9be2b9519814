#include "kernels/compressor_pool/compressor_pool_cpu.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/compressor_pool/compressor_pool_oracle.h"

namespace baleen::kernels {
namespace {

/// `tokens` rows of u and z as the oracle takes them.
struct PoolRows {
  std::size_t width, ratio;
  bool overlap;
  std::vector<double> u, z;

  PoolRows(std::size_t entry_width, std::size_t group, bool two_halves, std::size_t tokens)
      : width(entry_width), ratio(group), overlap(two_halves) {
    for (std::size_t i = 0; i < tokens * row(); ++i) {
      u.push_back(std::sin(1.3 * static_cast<double>(i)));
      z.push_back(4.0 * std::cos(0.9 * static_cast<double>(i)));
    }
  }
  std::size_t row() const { return overlap ? 2 * width : width; }

  template <class T>
  std::vector<T> entry(std::size_t w) const {
    const std::vector<T> values(u.begin(), u.end());
    const std::vector<T> scores(z.begin(), z.end());
    std::vector<const T*> value_rows;
    std::vector<const T*> score_rows;
    const auto add = [&](std::size_t position, std::size_t channel) {
      value_rows.push_back(values.data() + position * row() + channel);
      score_rows.push_back(scores.data() + position * row() + channel);
    };
    for (std::size_t p = ratio * (w - 1); overlap && w > 0 && p < ratio * w; ++p) {
      add(p, 0);
    }
    for (std::size_t p = ratio * w; p < ratio * (w + 1); ++p) {
      add(p, overlap ? width : 0);
    }
    std::vector<T> out(width);
    compressor_pool_cpu<T>({.values = value_rows.data(),
                            .scores = score_rows.data(),
                            .entry = out.data(),
                            .num_slots = static_cast<int64_t>(value_rows.size()),
                            .width = static_cast<int64_t>(width)});
    return out;
  }
};

TEST(CompressorPoolCpuTest, AgainstTheOracle) {
  for (const bool overlap : {false, true}) {
    for (const std::size_t ratio : {1U, 4U, 7U, 128U}) {
      const PoolRows rows(5, ratio, overlap, 3 * ratio);
      for (const std::size_t w : {0U, 1U, 2U}) {
        const auto expected = compressor_entry_oracle(rows.u, rows.z, 5, ratio, overlap, w);
        const auto exact = rows.entry<double>(w);
        const auto single = rows.entry<float>(w);
        for (std::size_t i = 0; i < 5; ++i) {
          // Values are at most 1 and weights add up to 1: a rounding of each slot on both sides;
          // float scores up to 4 are off by 2^-23, which the exponential passes on.
          const double slots = static_cast<double>(2 * ratio + 8);
          EXPECT_NEAR(exact[i], expected[i], 4 * slots * 0x1p-53);
          EXPECT_NEAR(single[i], expected[i], 4 * slots * 0x1p-24);
        }
      }
    }
  }
}

TEST(CompressorPoolCpuTest, LongGroupsAreSummedInEightRuns) {
  // Runs of 16. Ones beside 2^25 are lost in a float sum: the first run gives 2^25, the second
  // -2^25. Slot by slot the second fifteen ones would come after the two had cancelled, and stay.
  std::vector<float> values(128, 0.0F);
  const std::vector<float> scores(128, 0.0F);
  for (std::size_t s = 0; s < 32; ++s) {
    values[s] = s == 0 ? 0x1p25F : (s == 16 ? -0x1p25F : 1.0F);
  }
  std::vector<const float*> value_rows;
  std::vector<const float*> score_rows;
  for (std::size_t s = 0; s < 128; ++s) {
    value_rows.push_back(&values[s]);
    score_rows.push_back(&scores[s]);
  }
  float entry = -1;
  compressor_pool_cpu<float>({.values = value_rows.data(),
                              .scores = score_rows.data(),
                              .entry = &entry,
                              .num_slots = 128,
                              .width = 1});
  EXPECT_EQ(entry, 0.0F);
}

TEST(CompressorPoolCpuTest, NoSlotsAbort) {
  EXPECT_DEATH(compressor_pool_cpu<float>({}), "at least one slot");
}

}  // namespace
}  // namespace baleen::kernels
