#pragma once
// Rows of scores for the tests and benchmarks of top-k: what index scores look like, and what makes
// a choice hard (ties, narrow ranges, crowded digits, runs, NaN). Host only; the same seed gives
// the same row.
//
//   std::vector<float> row = make_scores(ScoreKind::kSkewed, 262144, /*seed=*/1);

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "kernels/testing/random_values.h"
#include "numerics/bfloat16.h"

namespace baleen::kernels::testing {

enum class ScoreKind {
  kNormal,
  kNormalBf16,
  kNarrow,      // mean 100, deviation 2
  kNarrowBf16,  // the same with a bf16 step of 0.5: thousands of ties
  kSkewed,      // heavy tail, many exact zeros, recent entries higher: like index scores
  kConstant,
  kTwoValues,
  kFewFinite,  // -inf but 5
  kSomeNan,
  kDenormal,
  kSignedZeros,  // +0 and -0 and a few positive
  kAscending,
  kDescending,
  kSameHighHalf,  // equal in the high 16 bits
  kOneBlock,      // the best all lie in words that one block of a cluster of 8 holds
  kOneThread,     // the best come in aligned groups far apart, and tie in pairs
  kOutlier,       // narrow, with one score of 1e30
  kAllNan,
};

inline const std::vector<ScoreKind>& all_score_kinds() {
  static const std::vector<ScoreKind> kinds = [] {
    std::vector<ScoreKind> all;
    for (int kind = 0; kind <= static_cast<int>(ScoreKind::kAllNan); ++kind) {
      all.push_back(static_cast<ScoreKind>(kind));
    }
    return all;
  }();
  return kinds;
}

inline std::string score_kind_name(ScoreKind kind) {
  static const char* const names[] = {"normal",
                                      "normal_bf16",
                                      "narrow",
                                      "narrow_bf16",
                                      "skewed",
                                      "constant",
                                      "two_values",
                                      "few_finite",
                                      "some_nan",
                                      "denormal",
                                      "signed_zeros",
                                      "ascending",
                                      "descending",
                                      "same_high_half",
                                      "one_block",
                                      "one_thread",
                                      "outlier",
                                      "all_nan"};
  return names[static_cast<int>(kind)];
}

inline std::vector<float> make_scores(ScoreKind kind, int64_t count, uint64_t seed) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  RandomValues random(seed);
  std::vector<float> row(static_cast<std::size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    float& score = row[static_cast<std::size_t>(i)];
    switch (kind) {
      case ScoreKind::kNormal:
        score = random.normal();
        break;
      case ScoreKind::kNormalBf16:
        score = numerics::round_to_bf16(random.normal());
        break;
      case ScoreKind::kNarrow:
        score = 100.0F + 2.0F * random.normal();
        break;
      case ScoreKind::kNarrowBf16:
        score = numerics::round_to_bf16(100.0F + 2.0F * random.normal());
        break;
      case ScoreKind::kSkewed: {
        const float strength = random.normal();
        const float recency = 4.0F * static_cast<float>(i + 1) / static_cast<float>(count);
        score = strength < 0 ? 0.0F : std::exp(2.0F * strength + recency * recency / 8.0F) - 1.0F;
        break;
      }
      case ScoreKind::kConstant:
        score = -1.5F;
        break;
      case ScoreKind::kTwoValues:
        score = random.integer(0, 1) == 0 ? 1.0F : 1.0000001F;
        break;
      case ScoreKind::kFewFinite:
        score = -kInfinity;
        break;
      case ScoreKind::kSomeNan:
        score = random.integer(0, 3) == 0 ? kNan : random.normal();
        break;
      case ScoreKind::kDenormal:
        score = static_cast<float>(random.integer(-4000, 4000)) * 1.4e-45F;
        break;
      case ScoreKind::kSignedZeros:
        score = random.integer(0, 999) == 0 ? std::fabs(random.normal())
                                            : (random.integer(0, 1) == 0 ? 0.0F : -0.0F);
        break;
      case ScoreKind::kAscending:
        score = static_cast<float>(i) - static_cast<float>(count) / 2;
        break;
      case ScoreKind::kDescending:
        score = static_cast<float>(count) / 2 - static_cast<float>(i);
        break;
      case ScoreKind::kSameHighHalf:
        score = numerics::float_from_bits(0x40490000U |
                                          static_cast<uint32_t>(random.integer(0, 0xFFFF)));
        break;
      case ScoreKind::kOneBlock:
        score = (i / 32) % 8 == 3 ? 10.0F + random.normal() : random.normal();
        break;
      case ScoreKind::kOneThread:
        score = (i / 4) % 512 == 5 ? 10.0F + std::floor(std::fabs(random.normal()) * 64)
                                   : random.normal();
        break;
      case ScoreKind::kOutlier:
        score = i == count / 3 ? 1e30F : 100.0F + 2.0F * random.normal();
        break;
      case ScoreKind::kAllNan:
        score = kNan;
        break;
    }
  }
  if (kind == ScoreKind::kFewFinite) {
    for (int64_t i = 0; i < 5 && i < count; ++i) {
      row[static_cast<std::size_t>(count - 1 - i * (count / 6))] = static_cast<float>(i);
    }
  }
  return row;
}

}  // namespace baleen::kernels::testing
