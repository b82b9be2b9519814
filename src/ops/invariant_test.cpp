// What Summation::kInvariant promises, operator by operator: the bits of a row depend neither on
// the rows beside it nor on how they are cut into calls, on threads, or on whether gradients are
// kept; values and gradients are those of kFast up to summation order.

#include "ops/invariant.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "ops/attention.h"
#include "ops/compressor.h"
#include "ops/experts.h"
#include "ops/grouped_projection.h"
#include "ops/hadamard.h"
#include "ops/hyper_connection.h"
#include "ops/indexer.h"
#include "ops/linear.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"
#include "ops/router.h"
#include "ops/tensor_checks.h"
#include "ops/token_loss.h"

namespace baleen::ops {
namespace {

constexpr int64_t kRows = 41;
constexpr HcConfig kHcConfig;

/// One operator on kRows rows. `run` takes the inputs and a range of rows; its results have the
/// rows of that range along `dim`.
struct RowCase {
  std::string name;
  std::vector<at::Tensor> inputs;
  int64_t dim = 0;
  std::function<std::vector<at::Tensor>(
      const std::vector<at::Tensor>&, const Numerics&, int64_t begin, int64_t count)>
      run;
};

HcWeights hc_of(const std::vector<at::Tensor>& in) {
  return {.fn = in[1], .base = in[2], .scale = in[3]};
}

std::vector<RowCase> linear_cases(at::ScalarType dtype) {
  const auto x = [&](int64_t width) { return seeded({kRows, width}, 1, dtype); };
  return {
      {"linear",
       {x(137), seeded({11, 137}, 2, dtype)},
       0,
       [](const auto& in, const Numerics& numerics, int64_t begin, int64_t count) {
         return std::vector<at::Tensor>{
             linear(in[0].narrow(0, begin, count), in[1], LinearFormat::kFp8, numerics)};
       }},
      {"unrounded",
       {x(64), seeded({9, 64}, 2, dtype)},
       0,
       [](const auto& in, const Numerics& numerics, int64_t begin, int64_t count) {
         return std::vector<at::Tensor>{
             linear_unrounded(in[0].narrow(0, begin, count), in[1], numerics)};
       }},
      {"grouped",
       {seeded({kRows, 4, 20}, 1, dtype), seeded({2 * 7, 40}, 2, dtype)},
       0,
       [](const auto& in, const Numerics& numerics, int64_t begin, int64_t count) {
         return std::vector<at::Tensor>{
             grouped_projection(in[0].narrow(0, begin, count), in[1], 2, numerics)};
       }},
      {"norm",
       {x(72), seeded({72}, 2, dtype)},
       0,
       [](const auto& in, const Numerics& numerics, int64_t begin, int64_t count) {
         return std::vector<at::Tensor>{
             rms_norm(in[0].narrow(0, begin, count), in[1], 1e-6, numerics)};
       }},
      {"head norm",
       {seeded({kRows, 3, 40}, 1, dtype)},
       0,
       [](const auto& in, const Numerics& numerics, int64_t begin, int64_t count) {
         return std::vector<at::Tensor>{
             query_head_norm(in[0].narrow(0, begin, count), 1e-6, numerics)};
       }},
      {"hadamard",
       {seeded({kRows, 2, 64}, 1, dtype)},
       0,
       [](const auto& in, const Numerics& numerics, int64_t begin, int64_t count) {
         return std::vector<at::Tensor>{hadamard(in[0].narrow(0, begin, count), numerics)};
       }},
      {"rotation",
       {seeded({1, kRows, 2, 24}, 1, dtype)},
       1,
       [dtype](const auto& in, const Numerics& numerics, int64_t begin, int64_t count) {
         const RopeTable table = make_rope_table(rope_frequencies(16, 10000.0, {}),
                                                 kRows,
                                                 at::empty({0}, at::TensorOptions(dtype)),
                                                 numerics);
         return std::vector<at::Tensor>{
             rotate(in[0].narrow(1, begin, count), table.rows(begin, count), false, numerics)};
       }},
      {"logprobs",
       {seeded({kRows, 50}, 1, dtype) * 8.0},
       0,
       [](const auto& in, const Numerics& numerics, int64_t begin, int64_t count) {
         const at::Tensor targets = at::arange(kRows, at::kLong).remainder(50);
         return std::vector<at::Tensor>{token_logprobs(
             in[0].narrow(0, begin, count), targets.narrow(0, begin, count), numerics.summation)};
       }},
  };
}

std::vector<RowCase> stream_cases(at::ScalarType dtype) {
  const at::Tensor streams = seeded({kRows, 4, 12}, 1, dtype);
  return {
      {"hc in",
       {streams, seeded({24, 48}, 2, dtype), seeded({24}, 3, dtype), seeded({3}, 4, dtype)},
       0,
       [](const auto& in, const Numerics& numerics, int64_t begin, int64_t count) {
         const HcMix mix = hc_pre(in[0].narrow(0, begin, count), hc_of(in), kHcConfig, numerics);
         return std::vector<at::Tensor>{mix.y, mix.post, mix.comb};
       }},
      {"hc out",
       {streams,
        seeded({kRows, 12}, 2, dtype),
        seeded({kRows, 4}, 3, dtype),
        seeded({kRows, 4, 4}, 4, dtype)},
       0,
       [](const auto& in, const Numerics& numerics, int64_t begin, int64_t count) {
         return std::vector<at::Tensor>{hc_post(in[1].narrow(0, begin, count),
                                                in[0].narrow(0, begin, count),
                                                in[2].narrow(0, begin, count),
                                                in[3].narrow(0, begin, count),
                                                numerics)};
       }},
      {"hc head",
       {streams, seeded({4, 48}, 2, dtype), seeded({4}, 3, dtype), seeded({1}, 4, dtype)},
       0,
       [](const auto& in, const Numerics& numerics, int64_t begin, int64_t count) {
         return std::vector<at::Tensor>{
             hc_head(in[0].narrow(0, begin, count), hc_of(in), kHcConfig, numerics)};
       }},
  };
}

std::vector<RowCase> expert_cases(at::ScalarType dtype) {
  const at::Tensor x = seeded({kRows, 40}, 1, dtype);
  const at::Tensor ids =
      (at::arange(kRows * 3, at::kLong) * 7 + at::arange(kRows * 3, at::kLong).floor_divide(5))
          .remainder(5)
          .view({kRows, 3});
  return {
      {"router",
       {x, seeded({5, 40}, 2, dtype)},
       0,
       [ids](const auto& in, const Numerics& numerics, int64_t begin, int64_t count) {
         const at::Tensor scores = router_scores(in[0].narrow(0, begin, count), in[1], numerics);
         return std::vector<at::Tensor>{
             scores, route_weights(scores, ids.narrow(0, begin, count), 1.5, numerics)};
       }},
      {"experts",
       {x,
        seeded({kRows, 3}, 2, dtype),
        seeded({5, 22, 40}, 3, dtype),
        seeded({5, 22, 40}, 4, dtype),
        seeded({5, 40, 22}, 5, dtype)},
       0,
       [ids](const auto& in, const Numerics& numerics, int64_t begin, int64_t count) {
         return std::vector<at::Tensor>{routed_experts(in[0].narrow(0, begin, count),
                                                       ids.narrow(0, begin, count),
                                                       in[1].narrow(0, begin, count),
                                                       {.w1 = in[2], .w3 = in[3], .w2 = in[4]},
                                                       LinearFormat::kFp4,
                                                       2.0,
                                                       numerics)};
       }},
      {"shared expert",
       {x, seeded({22, 40}, 3, dtype), seeded({22, 40}, 4, dtype), seeded({40, 22}, 5, dtype)},
       0,
       [](const auto& in, const Numerics& numerics, int64_t begin, int64_t count) {
         return std::vector<at::Tensor>{swiglu_expert(in[0].narrow(0, begin, count),
                                                      in[1],
                                                      in[2],
                                                      in[3],
                                                      LinearFormat::kFp8,
                                                      std::nullopt,
                                                      numerics)};
       }},
  };
}

std::vector<RowCase> attention_cases(at::ScalarType dtype) {
  constexpr int64_t kWindow = 6;
  constexpr int64_t kRatio = 4;
  constexpr int64_t kEntries = kRows / kRatio;
  return {
      {"index scores",
       {seeded({1, kRows, 3, 16}, 1, dtype),
        seeded({1, kEntries, 16}, 2, dtype),
        seeded({1, kRows, 3}, 3, dtype)},
       1,
       [](const auto& in, const Numerics& numerics, int64_t begin, int64_t count) {
         return std::vector<at::Tensor>{indexer_scores(
             in[0].narrow(1, begin, count), in[1], in[2].narrow(1, begin, count), numerics)};
       }},
      {"attention",
       {seeded({1, kRows, 3, 20}, 1, dtype),
        seeded({1, kRows, 20}, 2, dtype),
        seeded({1, kEntries, 20}, 3, dtype),
        seeded({3}, 4, dtype)},
       1,
       [](const auto& in, const Numerics& numerics, int64_t begin, int64_t count) {
         // Rows as a decode step or a chunk sees them: no more of the past than it needs.
         const int64_t first = std::max<int64_t>(0, begin - (kWindow - 1));
         const int64_t seen = (begin + count) / kRatio;
         const at::Tensor picks =
             seeded({1, kRows, kEntries}, 9).gt(-0.3).narrow(1, begin, count).narrow(2, 0, seen);
         const AttentionRows rows{.raw = in[1].narrow(1, first, begin + count - first),
                                  .entries = in[2].narrow(1, 0, seen),
                                  .picks = picks,
                                  .ratio = kRatio,
                                  .window = kWindow};
         return std::vector<at::Tensor>{
             sparse_attention(in[0].narrow(1, begin, count), rows, in[3], begin, numerics)};
       }},
  };
}

std::vector<RowCase> all_cases(at::ScalarType dtype) {
  std::vector<RowCase> cases = linear_cases(dtype);
  for (const auto& more : {stream_cases(dtype), expert_cases(dtype), attention_cases(dtype)}) {
    cases.insert(cases.end(), more.begin(), more.end());
  }
  return cases;
}

Numerics fixed_order(Numerics numerics) {
  numerics.summation = Summation::kInvariant;
  return numerics;
}

std::vector<Numerics> fixed_orders() {
  Numerics stepwise = Numerics::reference();
  stepwise.query_norm = QueryNorm::kBf16;
  stepwise.routing_weight = RoutingWeight::kAfterW2;
  stepwise.wo_a_activation = LinearActivation::kFp8;
  return {
      fixed_order(Numerics::plain()), fixed_order(Numerics::reference()), fixed_order(stepwise)};
}

void expect_parts(const RowCase& c,
                  const Numerics& numerics,
                  const std::vector<at::Tensor>& whole,
                  int64_t chunk) {
  for (int64_t begin = 0; begin < kRows; begin += chunk) {
    const int64_t count = std::min(chunk, kRows - begin);
    const auto part_of = c.run(c.inputs, numerics, begin, count);
    for (std::size_t i = 0; i < whole.size(); ++i) {
      ASSERT_TRUE(at::equal(part_of[i], whole[i].narrow(c.dim, begin, count)))
          << c.name << " result " << i << " rows " << begin << " + " << count;
    }
  }
}

TEST(InvariantTest, RowsHaveTheSameBitsHoweverTheyAreCut) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    for (const Numerics& numerics : fixed_orders()) {
      for (const RowCase& c : all_cases(dtype)) {
        const auto whole = c.run(c.inputs, numerics, 0, kRows);
        for (const int64_t chunk : {1, 2, 3, 4, 5, 7, 16, 32, 40}) {
          ASSERT_NO_FATAL_FAILURE(expect_parts(c, numerics, whole, chunk));
        }
      }
    }
  }
}

TEST(InvariantTest, ThreadsChangeNoBit) {
  const int before = at::get_num_threads();
  for (const RowCase& c : all_cases(at::kFloat)) {
    at::set_num_threads(1);
    const auto alone = c.run(c.inputs, fixed_order(Numerics::reference()), 0, kRows);
    for (const int threads : {2, 3, 5}) {
      at::set_num_threads(threads);
      const auto together = c.run(c.inputs, fixed_order(Numerics::reference()), 0, kRows);
      for (std::size_t i = 0; i < alone.size(); ++i) {
        EXPECT_TRUE(at::equal(alone[i], together[i])) << c.name << " " << threads << " threads";
      }
    }
  }
  at::set_num_threads(before);
}

TEST(InvariantTest, ValuesAreThoseOfTheFastFormUpToSummationOrder) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    for (const RowCase& c : all_cases(dtype)) {
      const auto fast = c.run(c.inputs, Numerics::plain(), 0, kRows);
      const auto fixed = c.run(c.inputs, fixed_order(Numerics::plain()), 0, kRows);
      for (std::size_t i = 0; i < fast.size(); ++i) {
        EXPECT_LE(relative_error(fixed[i], values_of(fast[i])), error_bound(dtype, 137))
            << c.name << " result " << i;
      }
    }
  }
}

TEST(InvariantTest, KeepingGradientsChangesNoBitAndGivesTheFastGradients) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    for (const RowCase& c : all_cases(dtype)) {
      const auto gradients_of = [&](const Numerics& numerics) {
        std::vector<at::Tensor> leaves;
        for (const at::Tensor& input : c.inputs) {
          leaves.push_back(input.detach().clone().requires_grad_(true));
        }
        const auto results = c.run(leaves, numerics, 0, kRows);
        at::Tensor total = at::zeros({}, at::TensorOptions(dtype));
        for (std::size_t i = 0; i < results.size(); ++i) {
          total = total + (results[i] * seeded(results[i].sizes(), 30 + i, dtype)).sum();
        }
        total.backward();
        std::vector<at::Tensor> out = results;
        for (const at::Tensor& leaf : leaves) {
          out.push_back(leaf.grad());
        }
        return out;
      };
      const auto bits = c.run(c.inputs, fixed_order(Numerics::plain()), 0, kRows);
      const auto fast = gradients_of(Numerics::plain());
      const auto fixed = gradients_of(fixed_order(Numerics::plain()));
      for (std::size_t i = 0; i < bits.size(); ++i) {
        EXPECT_TRUE(at::equal(bits[i], fixed[i])) << c.name << " result " << i;
      }
      for (std::size_t i = bits.size(); i < fast.size(); ++i) {
        ASSERT_EQ(fast[i].defined(), fixed[i].defined()) << c.name << " input " << i - bits.size();
        if (fast[i].defined()) {
          // The backward pass starts from values that differ in their last bits.
          EXPECT_LE(relative_error(fixed[i], values_of(fast[i])), 16 * error_bound(dtype, 137))
              << c.name << " input " << i - bits.size();
        }
      }
    }
  }
}

TEST(InvariantTest, BothFormsOfRoutedExpertsGiveTheSameBits) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    for (const Numerics& numerics : fixed_orders()) {
      const RowCase c = expert_cases(dtype)[1];
      const at::Tensor ids = at::arange(kRows * 3, at::kLong).remainder(5).view({kRows, 3});
      const auto run = [&](ExpertForm form) {
        return routed_experts(c.inputs[0],
                              ids,
                              c.inputs[1],
                              {.w1 = c.inputs[2], .w3 = c.inputs[3], .w2 = c.inputs[4]},
                              LinearFormat::kFp8,
                              2.0,
                              numerics,
                              form);
      };
      EXPECT_TRUE(at::equal(run(ExpertForm::kPerToken), run(ExpertForm::kGrouped)));
    }
  }
}

TEST(InvariantTest, EntriesDoNotDependOnTheRowsThatStandBeside) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    for (const bool overlap : {true, false}) {
      for (const int64_t ratio : {4, 20}) {
        const int64_t channels = overlap ? 14 : 7;
        const int64_t tokens = 6 * ratio;
        const at::Tensor u = seeded({2, tokens, channels}, 1, dtype);
        const at::Tensor z = seeded({2, tokens, channels}, 2, dtype) * 5.0;
        const Numerics numerics = fixed_order(Numerics::plain());
        const at::Tensor whole = pool_groups(u, z, 0, ratio, overlap, numerics);
        EXPECT_LE(relative_error(
                      whole, values_of(pool_groups(u, z, 0, ratio, overlap, Numerics::plain()))),
                  error_bound(dtype, 2 * ratio));
        for (int64_t first = 0; first + 2 * ratio <= tokens; ++first) {
          for (const int64_t rows : {2 * ratio, 3 * ratio, tokens - first}) {
            if (first + rows > tokens) {
              continue;
            }
            const PooledRange range = pooled_range(first, rows, ratio, overlap);
            const at::Tensor part_of = pool_groups(u.narrow(1, first, rows),
                                                   z.narrow(1, first, rows),
                                                   first,
                                                   ratio,
                                                   overlap,
                                                   numerics);
            EXPECT_TRUE(at::equal(part_of, whole.narrow(1, range.first_entry, range.num_entries)))
                << first << " + " << rows;
          }
        }
      }
    }
  }
}

TEST(InvariantTest, NamesOfTheMode) {
  EXPECT_EQ(Numerics::by_name("plain+invariant"), fixed_order(Numerics::plain()));
  EXPECT_EQ(Numerics::by_name("reference+invariant"), fixed_order(Numerics::reference()));
  EXPECT_FALSE(Numerics::by_name("plain").invariant());
}

}  // namespace
}  // namespace baleen::ops
