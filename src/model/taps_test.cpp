#include "model/taps.h"

#include <string>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "model/hash_fill.h"
#include "model/whole_model.h"

namespace baleen::model {
namespace {

class TapsTest : public testing::Test {
 protected:
  TapsTest()
      : params_(make_hash_filled(golden_toy_config(), {}, at::TensorOptions(at::kDouble))),
        ids_((at::arange(40, at::kLong) * 7 + 3).remainder(32).view({2, 20})) {
    for_each_parameter(params_, [](const ParameterInfo& info, at::Tensor& value) {
      value.requires_grad_(info.trainable());
    });
  }

  TrainingOutput run(Taps* taps, Trace* trace = nullptr) {
    return forward_training(
        params_,
        ids_,
        {.numerics = ops::Numerics::plain(), .with_mtp = true, .trace = trace, .taps = taps});
  }

  ModelParameters params_;
  at::Tensor ids_;
};

TEST_F(TapsTest, IndexScoresTrainTheIndexerAndNothingElse) {
  Taps taps{.routing = false, .index_scores = true, .entry_attention = false, .layers = {}};
  Trace trace;
  run(&taps, &trace);
  const at::Tensor scores = taps.layers[1].index_scores.at(0);
  ASSERT_TRUE(scores.defined());
  EXPECT_TRUE(at::equal(scores.detach(), trace.at("layers.1.attn.index_scores")));
  EXPECT_FALSE(taps.layers[0].index_scores.at(0).defined());
  scores.square().sum().backward();
  for_each_parameter(params_, [](const ParameterInfo& info, at::Tensor& value) {
    const bool own = info.name.starts_with("layers.1.attn.indexer.");
    EXPECT_EQ(value.grad().defined() && value.grad().abs().max().item<double>() > 0.0, own)
        << info.name;
  });
}

TEST_F(TapsTest, EntryAttentionIsTheSoftmaxShareOfEachEntry) {
  Taps taps{.routing = false, .index_scores = false, .entry_attention = true, .layers = {}};
  run(&taps);
  const at::Tensor dense = taps.layers[2].entry_attention.at(0);  // 4 heads, ratio 16: one entry
  ASSERT_EQ(dense.sizes(), at::IntArrayRef({2, 20, 1}));
  EXPECT_FALSE(dense.requires_grad());
  EXPECT_EQ(dense.narrow(1, 0, 15).abs().max().item<double>(), 0.0);
  EXPECT_GT(dense.narrow(1, 15, 5).min().item<double>(), 0.0);
  const at::Tensor sparse = taps.layers[1].entry_attention.at(0);
  EXPECT_LT(sparse.sum(-1).max().item<double>(), 4.0);  // the rest goes to window and sink
  EXPECT_FALSE(taps.layers[0].entry_attention.at(0).defined());
}

TEST_F(TapsTest, RoutingGivesChoicesAndDifferentiableScores) {
  Taps taps{.routing = true, .index_scores = false, .entry_attention = false, .layers = {}};
  run(&taps);
  ASSERT_EQ(taps.layers.size(), 5U);
  EXPECT_EQ(taps.layers[3].router_experts.sizes(), at::IntArrayRef({40, 2}));
  EXPECT_EQ(taps.layers[4].router_scores.sizes(), at::IntArrayRef({38, 6}));  // MTP
  taps.layers[3].router_scores.sum().backward();
  EXPECT_TRUE(params_.blocks[3].moe.gate_weight.grad().defined());
}

TEST_F(TapsTest, ChangeNoLogits) {
  Taps taps{.routing = true, .index_scores = true, .entry_attention = true, .layers = {}};
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(at::equal(run(&taps).logits, run(nullptr).logits));
}

}  // namespace
}  // namespace baleen::model
