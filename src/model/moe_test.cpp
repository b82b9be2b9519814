// Router cases with extreme logits through the whole layer: scores, choice, weights, output.

#include "model/moe.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "model/small_models_for_tests.h"

namespace baleen::model {
namespace {

struct RouterCase {
  const char* name;
  std::vector<double> logits;
  std::vector<double> bias;    // empty: zero
  std::vector<int64_t> table;  // experts of the token; empty: chosen by score
  int64_t top_k;
  double scale;
  std::vector<int64_t> experts;
  std::vector<double> weights;  // empty: only finite
};

const std::vector<RouterCase>& router_cases() {
  static const std::vector<RouterCase> cases = {
      {"bias moves the choice, not the weights",
       {0.0, 1.0, -2.0, 3.0, -1.0, 0.5},
       {0.0, 0.0, 2.0, 0.0, 0.0, -0.3},
       {},
       3,
       1.5,
       {2, 3, 1},
       {0.16451987, 0.80628569, 0.52919443}},
      {"very negative",
       {-17.0, -20.0, -18.5, -30.0},
       {},
       {},
       2,
       1.5,
       {0, 2},
       {1.01876805, 0.48123195}},
      {"large", {100.0, 88.9, 0.0, -5.0}, {}, {}, 2, 1.5, {0, 1}, {0.77205452, 0.72794548}},
      {"table", {0.2, -0.4, 1.1, 0.0}, {}, {2, 0}, 2, 2.5, {2, 0}, {1.42167618, 1.07832382}},
      {"everything underflows", {-200.0, -210.0, -220.0}, {}, {0, 2}, 2, 2.5, {0, 2}, {}},
      {"equal scores take the lower expert",
       {0.5, 0.5, 0.5, 0.5},
       {},
       {},
       2,
       2.0,
       {0, 1},
       {1.0, 1.0}},
  };
  return cases;
}

TEST(MoeTest, RoutesTheRouterCases) {
  const at::NoGradGuard no_grad;
  for (const RouterCase& item : router_cases()) {
    ModelConfig config = small_config({0});
    config.n_routed_experts = static_cast<int64_t>(item.logits.size());
    config.num_experts_per_tok = item.top_k;
    config.routed_scaling_factor = item.scale;
    const LayerSpec spec{LayerKind::kSwa, 0, !item.table.empty()};
    config.layers[0] = spec;
    ModelParameters params = small_model(config, at::kFloat);
    MoeParameters& moe = params.blocks[0].moe;
    // The input is the first unit vector, so the gate's first column is the logits.
    moe.gate_weight.zero_();
    moe.gate_weight.select(1, 0).copy_(at::tensor(item.logits));
    if (moe.gate_bias.defined()) {
      moe.gate_bias.zero_();
      if (!item.bias.empty()) {
        moe.gate_bias.copy_(at::tensor(item.bias));
      }
    }
    if (!item.table.empty()) {
      moe.tid2eid.select(0, 5).copy_(at::tensor(item.table));
    }
    at::Tensor x = at::zeros({1, config.hidden_size}, at::kFloat);
    x.select(1, 0).fill_(1.0);

    const ops::Numerics numerics = ops::Numerics::plain();
    const RopeTables tables = make_rope_tables(config, 1, params.embed, numerics);
    StepContext step(config, numerics, tables, at::full({1}, 5, at::kLong), {{.tokens = 1}});
    Trace trace;
    step.trace = &trace;
    const BlockPlace place{.prefix = "layers.0.", .index = 0};
    const at::Tensor y = mixture_of_experts(x, moe, spec, place, step);

    EXPECT_TRUE(at::isfinite(y).all().item<bool>()) << item.name;
    const at::Tensor weights = trace.at("layers.0.ffn.weights")[0];
    for (std::size_t slot = 0; slot < item.experts.size(); ++slot) {
      const auto i = static_cast<int64_t>(slot);
      EXPECT_EQ(trace.at("layers.0.ffn.experts")[0][i].item<int64_t>(), item.experts[slot])
          << item.name;
      EXPECT_TRUE(std::isfinite(weights[i].item<float>())) << item.name;
      if (!item.weights.empty()) {
        EXPECT_NEAR(weights[i].item<double>() / item.weights[slot], 1.0, 1e-5) << item.name;
      }
    }
  }
}

}  // namespace
}  // namespace baleen::model
