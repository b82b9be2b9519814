#include "kernels/indexer_scores/indexer_scores_cpu.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/indexer_scores/indexer_scores_oracle.h"

namespace baleen::kernels {
namespace {

std::vector<double> index_wave(std::size_t count, double phase) {
  std::vector<double> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = numerics::round_to_bf16(std::sin(2.1 * static_cast<double>(i) + phase));
  }
  return values;
}

template <class T>
std::vector<T> scored(const std::vector<double>& q,
                      const std::vector<double>& keys,
                      const std::vector<double>& weights,
                      std::size_t width,
                      bool rounded) {
  const std::vector<T> q_t(q.begin(), q.end());
  const std::vector<T> keys_t(keys.begin(), keys.end());
  const std::vector<T> weights_t(weights.begin(), weights.end());
  std::vector<T> scores(keys.size() / width);
  std::vector<T> dots(scores.size() * weights.size());
  indexer_scores_cpu<T>({.q = q_t.data(),
                         .keys = keys_t.data(),
                         .weights = weights_t.data(),
                         .scores = scores.data(),
                         .dots = dots.data(),
                         .heads = static_cast<int64_t>(weights.size()),
                         .width = static_cast<int64_t>(width),
                         .entries = static_cast<int64_t>(scores.size()),
                         .rounded = rounded});
  return scores;
}

TEST(IndexerScoresCpuTest, AgainstTheOracle) {
  for (const std::size_t entries : {0U, 1U, 4U, 9U}) {
    for (const std::size_t width : {1U, 16U, 33U}) {
      const auto q = index_wave(3 * width, 0.1);
      const auto keys = index_wave(entries * width, 0.2);
      const auto weights = index_wave(3, 0.3);
      for (const bool rounded : {false, true}) {
        const auto exact = scored<double>(q, keys, weights, width, rounded);
        const auto single = scored<float>(q, keys, weights, width, rounded);
        for (std::size_t e = 0; e < entries; ++e) {
          const double expected =
              indexer_score_oracle(q, std::span(keys).subspan(e * width, width), weights, rounded);
          // Products of bf16 values are exact and 33 of them add up without loss in double.
          EXPECT_NEAR(exact[e], expected, rounded ? 0.0 : 1e-13);
          // In float a sum may fall on the other side of a bf16 border: a step of each of 3 heads.
          EXPECT_NEAR(single[e], expected, rounded ? 3 * 33 * 0x1p-8 : 3 * 33 * 36 * 0x1p-24);
        }
      }
    }
  }
}

TEST(IndexerScoresCpuTest, AScoreDoesNotDependOnTheOtherKeys) {
  const auto q = index_wave(4 * 20, 0.1);
  const auto keys = index_wave(11 * 20, 0.2);
  const auto weights = index_wave(4, 0.3);
  const auto all = scored<float>(q, keys, weights, 20, false);
  for (std::size_t e = 0; e < 11; ++e) {
    const std::vector<double> one(keys.begin() + static_cast<std::ptrdiff_t>(e * 20),
                                  keys.begin() + static_cast<std::ptrdiff_t>((e + 1) * 20));
    EXPECT_EQ(scored<float>(q, one, weights, 20, false)[0], all[e]);
  }
}

}  // namespace
}  // namespace baleen::kernels
