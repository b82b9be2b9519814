#include "engine/decode_pace.h"

#include <gtest/gtest.h>

namespace baleen::engine {
namespace {

TEST(DecodePaceTest, WithoutAWishThereIsNoLimit) {
  DecodePace pace(0.0, 512);
  pace.observe(3.0, 1000);
  EXPECT_EQ(pace.limit(), DecodePace::kNoLimit);
}

TEST(DecodePaceTest, KeepsTheIntervalAlongAGiantPrompt) {
  // 5 ms for decoding; a prompt token costs 20 µs at the start and ten times that at its end.
  constexpr double kInterval = 0.050;
  DecodePace pace(kInterval, 512);
  for (int i = 0; i < 20; ++i) {
    pace.observe(0.005, 0);
  }
  EXPECT_EQ(pace.limit(), 512) << "nothing is known of prompts";
  double done = 0;
  int steps = 0;
  int late = 0;
  while (done < 1'000'000) {
    const int32_t tokens = pace.limit();
    const double per_token = 20e-6 * (1 + 9 * done / 1'000'000);
    const double step = 0.005 + per_token * tokens;
    late += step > 1.05 * kInterval ? 1 : 0;
    ASSERT_LT(step, 1.2 * kInterval);
    ASSERT_TRUE(steps == 0 || step > 0.8 * kInterval) << "wasted at " << done;
    pace.observe(step, tokens);
    done += tokens;
    ++steps;
  }
  EXPECT_LT(late, 2);
}

TEST(DecodePaceTest, PromptsAlwaysMove) {
  DecodePace pace(0.001, 4);
  EXPECT_EQ(pace.limit(), DecodePace::kLeast);
  pace.observe(0.5, 0);
  pace.observe(2.0, 16);
  EXPECT_EQ(pace.limit(), DecodePace::kLeast);
}

TEST(DecodePaceTest, RecoversWhenStepsAreCheapAgain) {
  DecodePace pace(0.050, 512);
  pace.observe(0.005, 0);
  pace.observe(1.0, 512);
  const int32_t low = pace.limit();
  for (int i = 0; i < 40; ++i) {
    pace.observe(0.005 + 20e-6 * pace.limit(), pace.limit());
  }
  EXPECT_GT(pace.limit(), 20 * low);
}

}  // namespace
}  // namespace baleen::engine
