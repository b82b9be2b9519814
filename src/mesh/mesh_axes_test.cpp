// Parallel equals single: losses of every token and gradients of every parameter on every mesh
// shape against the plain forward of the model on one rank.

#include <algorithm>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mesh/mesh_model_for_tests.h"
#include "mesh/mesh_run_for_tests.h"

namespace baleen::mesh {
namespace {

// Doubles add up some 10^4 products of size 1 in another order: 10^-16 * 10^2 and a margin for what
// the layers make of it.
constexpr double kTolerance = 1e-10;
// AdamW divides by |g| + 1e-8, so noise of 1e-16 in a gradient that is 0 moves a weight by 1e-8
// times the learning rate of 1e-3, every step.
constexpr double kStepTolerance = 1e-9;

/// The model, its batch, and one rank's outcome by the plain forward; made once.
struct Reference {
  model::ModelParameters whole = nano_mesh_model(at::kDouble);
  MeshBatch batch = make_batch(8, {32}, whole.config.vocab_size);
  ops::Numerics numerics = ops::Numerics::plain();
  MeshOutcome outcome = run_plainly(whole, batch, numerics);
};

const Reference& reference() {
  static const Reference value;
  return value;
}

/// The last token has no next one, so its MTP row is not compared.
double token_difference(const MeshOutcome& a, const MeshOutcome& b, const MeshBatch& batch) {
  const at::Tensor main = (a.logprobs - b.logprobs).abs();
  const at::Tensor mtp =
      (a.mtp_logprobs - b.mtp_logprobs).abs().masked_fill(batch.mtp_weights.eq(0.0), 0.0);
  return std::max(main.max().item<double>(), mtp.max().item<double>());
}

void expect_equal_to_single(const MeshCase& mesh_case,
                            const model::ModelParameters& whole,
                            const MeshBatch& batch,
                            const MeshOutcome& single) {
  const MeshOutcome outcome = run_on_mesh(mesh_case, whole, batch, ops::Numerics::plain());
  EXPECT_THAT(outcome.disagreements, testing::IsEmpty());
  EXPECT_NEAR(outcome.losses[0], single.losses[0], kTolerance * std::abs(single.losses[0]));
  EXPECT_NEAR(
      outcome.gradient_norms[0], single.gradient_norms[0], kTolerance * single.gradient_norms[0]);
  EXPECT_LT(token_difference(outcome, single, batch), kTolerance);
  std::string worst;
  EXPECT_LT(largest_difference(single.gradients, outcome.gradients, &worst), kTolerance) << worst;
}

class MeshShapesTest : public testing::TestWithParam<MeshCase> {};

TEST_P(MeshShapesTest, LossesAndGradientsEqualThoseOfOneRank) {
  expect_equal_to_single(GetParam(), reference().whole, reference().batch, reference().outcome);
}

INSTANTIATE_TEST_SUITE_P(All,
                         MeshShapesTest,
                         testing::ValuesIn(all_mesh_shapes()),
                         [](const auto& shape) { return shape.param.name; });

TEST(MeshAxesTest, OneRankOfAMeshIsThePlainModel) {
  expect_equal_to_single(
      {.name = "one"}, reference().whole, reference().batch, reference().outcome);
  expect_equal_to_single({.name = "chunks", .chunks_per_rank = 4, .micro_batches = 2},
                         reference().whole,
                         reference().batch,
                         reference().outcome);
}

TEST(MeshAxesTest, CutsAnywhereAndPackedSamplesEqualSamplesAlone) {
  const Reference& r = reference();
  // Cuts go through groups of both ratios and windows reach over several pieces; the second sample
  // is shorter than the window, the last one closes no entry.
  const MeshBatch batch = make_batch(2, {17, 6, 11, 3}, r.whole.config.vocab_size);
  const MeshOutcome single = run_plainly(r.whole, batch, r.numerics);
  for (const MeshCase& mesh_case : std::vector<MeshCase>{
           {.name = "one"},
           {.name = "cp2", .shape = {.cp = 2}},
           {.name = "cp3_zigzag", .shape = {.cp = 3}, .zig_zag = true},
           {.name = "cp5", .shape = {.cp = 5}},
           {.name = "tp2", .shape = {.tp = 2}},
           {.name = "tp2_sp", .shape = {.tp = 2, .sequence_parallel = true}},
           {.name = "cp2_dp2_ep2", .shape = {.dp = 2, .cp = 2, .ep = 2}},
       }) {
    SCOPED_TRACE(mesh_case.name);
    expect_equal_to_single(mesh_case, r.whole, batch, single);
  }
}

TEST(MeshAxesTest, TensorRanksThatSplitTokensOfContextRanksAndExperts) {
  const Reference& r = reference();
  for (const MeshCase& mesh_case : std::vector<MeshCase>{
           {.name = "cp2_tp2_sp_ep4",
            .shape = {.cp = 2, .tp = 2, .ep = 4, .sequence_parallel = true}},
           {.name = "cp2_zigzag_tp2_sp",
            .shape = {.cp = 2, .tp = 2, .sequence_parallel = true},
            .zig_zag = true},
           {.name = "pp2_tp2_sp_gpipe",
            .shape = {.pp = 2, .tp = 2, .sequence_parallel = true},
            .micro_batches = 2,
            .order = PipelineOrder::kForwardsFirst},
       }) {
    SCOPED_TRACE(mesh_case.name);
    expect_equal_to_single(mesh_case, r.whole, r.batch, r.outcome);
  }
}

TEST(MeshAxesTest, FiveStepsEndInTheSameWeights) {
  const Reference& r = reference();
  const MeshOutcome single = run_on_mesh({.name = "one", .steps = 5}, r.whole, r.batch, r.numerics);
  EXPECT_LT(single.losses[4], single.losses[0]);
  for (MeshCase mesh_case : mesh_shapes_named({"dp4", "tp2_cp2_ep2", "pp2_cp2_dp2"})) {
    SCOPED_TRACE(mesh_case.name);
    mesh_case.steps = 5;
    const MeshOutcome outcome = run_on_mesh(mesh_case, r.whole, r.batch, r.numerics);
    EXPECT_THAT(outcome.disagreements, testing::IsEmpty());
    for (std::size_t step = 0; step < 5; ++step) {
      EXPECT_NEAR(outcome.losses[step], single.losses[step], kTolerance * single.losses[step]);
      EXPECT_NEAR(outcome.gradient_norms[step],
                  single.gradient_norms[step],
                  kTolerance * single.gradient_norms[step]);
    }
    std::string worst;
    EXPECT_LT(largest_difference(single.values, outcome.values, &worst), kStepTolerance) << worst;
  }
}

TEST(MeshAxesTest, PipelineContextAndExpertRanksChangeNoBitOfAnyToken) {
  const Reference& r = reference();
  const ops::Numerics numerics = ops::Numerics::by_name("plain+invariant");
  const MeshOutcome single = run_on_mesh({.name = "one"}, r.whole, r.batch, numerics);
  // Tensor ranks add heads' outputs in another order.
  for (const MeshCase& mesh_case : mesh_shapes_named(
           {"pp4", "pp2_interleaved", "cp4", "cp4_zigzag", "ep4", "cp2_ep2", "pp2_cp2_dp2"})) {
    SCOPED_TRACE(mesh_case.name);
    const MeshOutcome outcome = run_on_mesh(mesh_case, r.whole, r.batch, numerics);
    EXPECT_TRUE(at::equal(outcome.logprobs, single.logprobs));
    EXPECT_EQ(token_difference(outcome, single, r.batch), 0.0);
  }
}

TEST(MeshAxesTest, PipelineRanksChangeNoBitOfAnyGradient) {
  // One rank with the same micro-batches; the embedding alone is added up in another order, main
  // and MTP share apart.
  const Reference& r = reference();
  const MeshOutcome single =
      run_on_mesh({.name = "one", .micro_batches = 4}, r.whole, r.batch, r.numerics);
  for (const MeshCase& mesh_case : std::vector<MeshCase>{
           {.name = "pp2", .shape = {.pp = 2}, .micro_batches = 4},
           {.name = "pp4", .shape = {.pp = 4}, .micro_batches = 4},
           {.name = "interleaved", .shape = {.pp = 2}, .chunks_per_rank = 2, .micro_batches = 4}}) {
    SCOPED_TRACE(mesh_case.name);
    const MeshOutcome outcome = run_on_mesh(mesh_case, r.whole, r.batch, r.numerics);
    EXPECT_EQ(outcome.losses, single.losses);
    for (const auto& [name, gradient] : single.gradients) {
      if (name != "embed.weight") {
        EXPECT_TRUE(at::equal(gradient, outcome.gradients.at(name))) << name;
      }
    }
  }
}

TEST(MeshAxesTest, AnErrorInTheMiddleOfAStepEndsEveryRank) {
  const Reference& r = reference();
  MeshBatch batch = r.batch;
  batch.num_rows = 7;  // does not give every rank equally many rows; the last row is nobody's
  batch.weights = batch.weights.narrow(0, 0, 3);  // too few for the rows of data rank 1
  EXPECT_ANY_THROW(
      run_on_mesh({.name = "dp2_cp2", .shape = {.dp = 2, .cp = 2}}, r.whole, batch, r.numerics));
}

}  // namespace
}  // namespace baleen::mesh
