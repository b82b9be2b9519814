#pragma once
// What the tests of attention kernels share: a launch on painted outputs and the comparison with
// the double oracle. Bound of an output: weights round to bf16 (2^-8 of sum p |row|), the result
// too (2^-8 of itself), and FP32 scores err by some 2^-16 of the largest; the form for few queries
// also rounds partial outputs to f16 (2^-11 of sum p |row|, `of_partials`). Cosine distance of all
// outputs 5e-6, log-sums within 1e-6 or a relative 8 / 65,536, as public tests of this row format
// have it.
//
//   using SparseAttentionGpu = testing::AttentionGpuTest;
//   check(scene, run(scene, plan), text("heads ", heads));

#include <algorithm>
#include <cmath>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/sparse_attention/attention_scene.h"
#include "kernels/testing/gpu_test.h"

namespace baleen::kernels::testing {

/// The arguments one after another.
template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream joined;
  (joined << ... << parts);
  return joined.str();
}

class AttentionGpuTest : public GpuTest {
 protected:
  SceneOutput run(AttentionScene& scene, const SparseAttentionPlan& plan) {
    scene.paint_output();
    launch_sparse_attention(scene.params(plan), stream());
    synchronize();
    return scene.output();
  }

  /// The queries of a scene in another order, new place i having what `order[i]` had: their outputs
  /// move with them, bit for bit.
  void expect_permuted_bits(AttentionScene& scene,
                            const SparseAttentionPlan& plan,
                            const std::vector<int32_t>& order) {
    const SceneOutput before = run(scene, plan);
    scene.permute(order);
    scene.upload();
    const SceneOutput after = run(scene, plan);
    const std::size_t width = static_cast<std::size_t>(scene.options().heads) * kKvDims;
    for (std::size_t i = 0; i < order.size(); ++i) {
      const auto from = static_cast<std::size_t>(order[i]);
      for (std::size_t k = 0; k < width; ++k) {
        ASSERT_EQ(after.o[i * width + k], before.o[from * width + k]) << i << " " << k;
      }
    }
  }

  // Weights below 2^-126 count as nothing; rows stay below 2^20 here.
  static constexpr double kLeftOut = 0x1p-106;
  static double bound(const AttentionOutcome& expected,
                      std::size_t i,
                      bool turned,
                      double of_partials) {
    const double weights = 0x1p-8 + of_partials + 0x1p-16 * expected.largest_score;
    if (!turned || i < kKvNopeDims) {
      return weights * expected.spread[i] + 0x1p-8 * std::abs(expected.o[i]) + kLeftOut;
    }
    // A turned pair mixes both errors; rounded before and after.
    const std::size_t other = i ^ 1;
    return weights * (expected.spread[i] + expected.spread[other]) +
           0x1p-7 * (std::abs(expected.o[i]) + std::abs(expected.o[other]));
  }

  /// Compares every `head_step`-th head; says where the first and the worst difference lie.
  static void check(const AttentionScene& scene,
                    const SceneOutput& output,
                    const std::string& label,
                    int32_t head_step = 1,
                    double of_partials = 0) {
    const SceneOptions& options = scene.options();
    double dot = 0;
    double square_a = 0;
    double square_b = 0;
    double worst = 0;
    int64_t wrong = 0;
    int64_t wrong_lse = 0;
    std::string first;
    std::string dims;
    for (int32_t query = 0; query < options.queries; ++query) {
      for (int32_t head = query % head_step; head < options.heads; head += head_step) {
        const AttentionOutcome expected = scene.expected(query, head);
        const auto row = static_cast<std::size_t>(query * options.heads + head);
        for (std::size_t i = 0; i < kKvDims; ++i) {
          const auto value =
              static_cast<double>(numerics::bf16_to_float(output.o[row * kKvDims + i]));
          const double difference = std::abs(value - expected.o[i]);
          dot += value * expected.o[i];
          square_a += value * value;
          square_b += expected.o[i] * expected.o[i];
          worst = std::max(worst, difference);
          if (!(difference <= bound(expected, i, options.inverse_rope, of_partials))) {
            if (wrong == 0) {
              first = text(
                  "query ", query, " head ", head, " dim ", i, ": ", value, " for ", expected.o[i]);
            }
            if (wrong < 12) {
              dims += text(" ", i, ":", value, "/", expected.o[i]);
            }
            ++wrong;
          }
        }
        const auto close = [](float value, double wanted) {
          const auto got = static_cast<double>(value);
          return got == wanted ||
                 std::abs(got - wanted) <= std::max(1e-6, 8.0 / 65536 * std::abs(wanted));
        };
        if (!close(output.lse[row], expected.lse) ||
            !close(output.lse_with_sink[row], expected.lse_with_sink)) {
          if (wrong_lse == 0) {
            dims += text(" lse ",
                         output.lse[row],
                         " for ",
                         expected.lse,
                         ", with sink ",
                         output.lse_with_sink[row],
                         " for ",
                         expected.lse_with_sink);
          }
          ++wrong_lse;
        }
      }
    }
    const double cosine = square_a == 0 && square_b == 0 ? 0 : 1 - 2 * dot / (square_a + square_b);
    EXPECT_TRUE(wrong == 0 && wrong_lse == 0 && std::abs(cosine) <= 5e-6)
        << label << ": wrong " << wrong << " lse " << wrong_lse << " worst " << worst
        << " distance " << cosine << " first " << first << dims;
  }
};

}  // namespace baleen::kernels::testing
