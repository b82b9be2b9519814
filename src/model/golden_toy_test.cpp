// The golden toy: logits, intermediate values, MTP, loss and gradients of a formula-filled model in
// double precision, computed independently of this program and printed with nine decimals.

#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "model/hash_fill.h"
#include "model/whole_model.h"
#include "ops/token_loss.h"

namespace baleen::model {
namespace {

constexpr double kPrinted = 1e-9;  // half a unit of the ninth decimal, and summation order
constexpr int64_t kTokens = 20;

struct GoldenRow {
  int64_t position;
  std::vector<double> first;
  double sum;
  double sum_of_squares;
  int64_t argmax;
};

const std::vector<GoldenRow>& golden_rows() {
  static const std::vector<GoldenRow> rows = {
      {0,
       {0.124553336, 0.617477409, -1.271221864, 0.840822847, 0.438996115, 0.337173463},
       -9.195917759,
       60.180675586,
       30},
      {3,
       {0.168493979, -0.002164177, -1.539303089, 0.593738228, 0.452633626, 1.844446606},
       -1.634950158,
       48.882492796,
       30},
      {4,
       {-1.338558347, -1.468419678, -0.786189583, 1.496564249, 0.914806683, 2.127699453},
       -6.710943369,
       63.947202698,
       5},
      {7,
       {0.819931454, 0.749398440, -2.047650746, 0.148867153, -2.882513080, 0.079601520},
       -2.961613053,
       48.125736016,
       21},
      {12,
       {-0.415555679, 0.291385584, -2.340781963, 2.854381130, -2.094014287, -1.610842680},
       -5.696298299,
       48.830846958,
       28},
      {15,
       {2.161736277, 2.534180971, -0.325126821, 0.569724915, -1.762380070, -1.789077932},
       9.894467195,
       62.829400539,
       17},
      {19,
       {2.018911006, 2.334300458, 0.069602626, 0.265888394, -1.886613519, -1.259738877},
       3.674085654,
       59.406940680,
       16}};
  return rows;
}

/// MTP logits of row 18, elements 0 ... 5.
std::vector<double> golden_mtp_row() {
  return {-2.227343477, -0.647141346, 0.283474416, -0.014436699, -0.778079386, -0.697944115};
}

at::Tensor golden_ids() {
  at::Tensor ids = at::arange(kTokens, at::kLong);
  return (ids * 7 + 3).remainder(32);
}

ModelParameters golden_parameters(at::ScalarType dtype = at::kDouble) {
  return make_hash_filled(golden_toy_config(), {}, at::TensorOptions(dtype));
}

void expect_values(const at::Tensor& got,
                   const std::vector<double>& expected,
                   double tolerance,
                   const std::string& what) {
  const at::Tensor flat = got.to(at::kDouble).contiguous().flatten();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(flat[static_cast<int64_t>(i)].item<double>(), expected[i], tolerance)
        << what << " element " << i;
  }
}

void expect_golden_row(const at::Tensor& logits, const GoldenRow& row, double tolerance) {
  const std::string what = "logits of position " + std::to_string(row.position);
  expect_values(logits, row.first, tolerance, what);
  EXPECT_NEAR(logits.sum().item<double>(), row.sum, 32 * tolerance) << what;
  EXPECT_NEAR(logits.square().sum().item<double>(), row.sum_of_squares, 200 * tolerance) << what;
  EXPECT_EQ(logits.argmax().item<int64_t>(), row.argmax) << what;
}

TEST(GoldenToyTest, FillsParametersFromTheirNames) {
  const ModelParameters params = golden_parameters();
  expect_values(params.embed,
                {0.145175338, -0.693171501, 0.663898110, -0.277115464},
                kPrinted,
                "embed.weight");
  EXPECT_EQ(params.blocks[0].moe.tid2eid[7][1].item<int64_t>(), (5 * 7 + 3) % 6);
}

TEST(GoldenToyTest, GivesTheGoldenLogitsForAWholeSequence) {
  const ModelParameters params = golden_parameters();
  ForwardOptions options{.numerics = ops::Numerics::plain()};
  const TrainingOutput out = forward_training(params, golden_ids().unsqueeze(0), options);
  for (const GoldenRow& row : golden_rows()) {
    expect_golden_row(out.logits[0][row.position], row, kPrinted);
  }
}

TEST(GoldenToyTest, GivesTheGoldenLogitsInFloat) {
  const ModelParameters params = golden_parameters(at::kFloat);
  ForwardOptions options{.numerics = ops::Numerics::plain()};
  const TrainingOutput out = forward_training(params, golden_ids().unsqueeze(0), options);
  for (const GoldenRow& row : golden_rows()) {
    expect_golden_row(out.logits[0][row.position].to(at::kDouble), row, 2e-5);
  }
}

TEST(GoldenToyTest, BatchRowsAreIndependent) {
  const ModelParameters params = golden_parameters();
  ForwardOptions options{.numerics = ops::Numerics::plain(), .with_mtp = true};
  const at::Tensor ids = golden_ids();
  const at::Tensor other = (ids * 3 + 1).remainder(32);
  const TrainingOutput alone = forward_training(params, ids.unsqueeze(0), options);
  const TrainingOutput both = forward_training(params, at::stack({other, ids, other}), options);
  EXPECT_LT((both.logits[1] - alone.logits[0]).abs().max().item<double>(), 1e-12);
  EXPECT_LT((both.mtp_logits[1] - alone.mtp_logits[0]).abs().max().item<double>(), 1e-12);
  EXPECT_LT((both.logits[0] - both.logits[2]).abs().max().item<double>(), 1e-12);
}

TEST(GoldenToyTest, GivesTheGoldenIntermediateValues) {
  const ModelParameters params = golden_parameters();
  Trace trace;
  ForwardOptions options{.numerics = ops::Numerics::plain(), .with_mtp = true, .trace = &trace};
  const TrainingOutput out = forward_training(params, golden_ids().unsqueeze(0), options);

  const auto stream_sums = [&](int layer, int64_t position) {
    return trace.at("layers." + std::to_string(layer) + ".streams")[position].sum(-1);
  };
  expect_values(stream_sums(0, 19),
                {-0.245021949, -0.907701326, -0.809664914, -0.509251855},
                4 * kPrinted,
                "sums after layer 0 at 19");
  expect_values(trace.at("layers.0.streams")[19][0],
                {0.612437533, -0.613353089, 0.979871321, -1.209714471},
                kPrinted,
                "stream 0 after layer 0");
  expect_values(stream_sums(0, 3),
                {0.767796579, 0.858956193, 0.993695751, 1.171349513},
                4 * kPrinted,
                "sums after layer 0 at 3");
  expect_values(stream_sums(1, 19),
                {-5.076113875, -4.623389858, -4.867187293, -4.794353108},
                4 * kPrinted,
                "sums after layer 1 at 19");
  expect_values(stream_sums(1, 3),
                {3.208252526, 3.130060181, 3.375380447, 3.097707480},
                4 * kPrinted,
                "sums after layer 1 at 3");
  expect_values(stream_sums(2, 19),
                {-4.586310209, -5.338933669, -4.271905231, -4.278518654},
                4 * kPrinted,
                "sums after layer 2 at 19");
  expect_values(stream_sums(3, 19),
                {-2.408571110, -2.269582157, -3.322793761, -2.071911937},
                4 * kPrinted,
                "sums after layer 3 at 19");
  expect_values(trace.at("layers.1.hc_attn.post")[19],
                {1.035665251, 1.251791491, 0.576123887, 1.574124149},
                kPrinted,
                "post");
  const at::Tensor comb = trace.at("layers.1.hc_attn.comb")[19];
  expect_values(comb[0], {0.244871278, 0.165232830, 0.407763944, 0.182130948}, kPrinted, "comb 0");
  expect_values(comb[1], {0.272041603, 0.250974188, 0.207598041, 0.269385168}, kPrinted, "comb 1");

  const at::Tensor entries = trace.at("layers.1.attn.entries")[0];
  ASSERT_EQ(entries.size(0), 5);
  expect_values(
      entries[0], {-1.110801384, -0.358748044, 1.042098754, -0.461350301}, kPrinted, "entry 0");
  expect_values(entries[0].narrow(0, 14, 2), {0.009946145, 0.677856297}, kPrinted, "entry 0 tail");
  expect_values(
      entries[4], {1.313176940, -0.050156355, 0.461739933, 0.777042322}, kPrinted, "entry 4");
  expect_values(entries[4].narrow(0, 14, 2), {0.939203059, -0.084568651}, kPrinted, "entry 4 tail");
  expect_values(trace.at("layers.1.attn.index_keys")[0][4],
                {0.327504102, -1.019585182, 0.340254796, -0.760089691},
                kPrinted,
                "index key 4");
  // These are printed with a relative error of about 1e-9; toy_reference_test.cpp has more digits.
  expect_values(trace.at("layers.1.attn.index_scores")[0][19],
                {0.445326566, 0.168039063, 0.0, 1.268468171, 0.085923352},
                2e-9,
                "index scores");
  const at::Tensor picks = trace.at("layers.1.attn.picks")[0][19];
  for (int64_t entry = 0; entry < 5; ++entry) {
    EXPECT_EQ(picks[entry].item<bool>(), entry == 0 || entry == 1 || entry == 3) << entry;
  }
  expect_values(trace.at("layers.1.attn.output")[19],
                {-1.189122706, -1.702067803, -0.653076222, -0.756694668},
                kPrinted,
                "attention output");

  const at::Tensor mtp = out.mtp_logits[0][18];
  expect_values(mtp, golden_mtp_row(), kPrinted, "MTP logits");
  EXPECT_NEAR(mtp.sum().item<double>(), -0.704312406, 32 * kPrinted);
}

TEST(GoldenToyTest, GivesTheGoldenLogitsForEveryPrefillLength) {
  const ModelParameters params = golden_parameters();
  const ops::Numerics numerics = ops::Numerics::plain();
  const RopeTables tables = make_rope_tables(params.config, kTokens, params.embed, numerics);
  const at::Tensor ids = golden_ids();
  const at::NoGradGuard no_grad;
  for (int64_t prefill = 1; prefill <= kTokens; ++prefill) {
    SequenceState state(
        params.config, {.with_mtp = true, .paint_unused = true}, at::TensorOptions(at::kDouble));
    std::vector<at::Tensor> logits;
    std::vector<at::Tensor> mtp_logits;
    for (int64_t begin = 0; begin < kTokens;) {
      const int64_t count = begin == 0 ? prefill : 1;
      const StepOutput out = forward_step(params,
                                          tables,
                                          {{.state = &state,
                                            .num_tokens = count,
                                            .logits = LogitsWanted::kAll,
                                            .mtp_logits = true}},
                                          ids.narrow(0, begin, count),
                                          numerics);
      logits.push_back(out.logits);
      if (out.mtp_logits.defined()) {
        mtp_logits.push_back(out.mtp_logits);
      }
      begin += count;
    }
    const at::Tensor all = at::cat(logits, 0);
    for (const GoldenRow& row : golden_rows()) {
      expect_golden_row(all[row.position], row, kPrinted);
    }
    const at::Tensor mtp = at::cat(mtp_logits, 0);
    ASSERT_EQ(mtp.size(0), kTokens - 1);
    expect_values(mtp[18], golden_mtp_row(), kPrinted, "MTP logits");
  }
}

struct GoldenGradient {
  const char* name;
  std::vector<int64_t> index;
  double value;
};

TEST(GoldenToyTest, GivesTheGoldenLossAndGradients) {
  ModelParameters params = golden_parameters();
  for_each_parameter(params, [](const ParameterInfo& info, at::Tensor& value) {
    value.requires_grad_(info.trainable());
  });
  ForwardOptions options{.numerics = ops::Numerics::plain()};
  const at::Tensor ids = golden_ids();
  const TrainingOutput out = forward_training(params, ids.unsqueeze(0), options);
  const at::Tensor loss =
      ops::cross_entropy(out.logits[0].narrow(0, 0, kTokens - 1), ids.narrow(0, 1, kTokens - 1))
          .mean();
  EXPECT_NEAR(loss.item<double>(), 4.279890187, kPrinted);
  loss.backward();

  std::map<std::string, at::Tensor> gradients;
  for_each_parameter(params, [&](const ParameterInfo& info, at::Tensor& value) {
    if (info.stack == 0) {
      gradients[info.name] = value.grad();
    }
    for (int64_t expert = 0; expert < info.stack; ++expert) {
      gradients[info.member_name(expert)] =
          value.grad().defined() ? value.grad().select(0, expert) : at::Tensor();
    }
  });
  const std::vector<GoldenGradient> expected = {
      {"embed.weight", {3, 0}, -0.10954462},
      {"head.weight", {6, 1}, 0.01647091},
      {"norm.weight", {2}, 0.02199317},
      {"hc_head_fn", {1, 7}, 0.00076463},
      {"hc_head_base", {0}, 0.00002442},
      {"hc_head_scale", {0}, 0.00691462},
      {"layers.0.attn.wq_a.weight", {0, 0}, 0.20674829},
      {"layers.0.attn.wkv.weight", {9, 3}, -0.00842678},
      {"layers.1.attn.wq_b.weight", {5, 2}, 0.03529118},
      {"layers.1.attn.wkv.weight", {0, 0}, 0.03817950},
      {"layers.1.attn.kv_norm.weight", {15}, -0.00184283},
      {"layers.1.attn.attn_sink", {0}, -0.01574548},
      {"layers.1.attn.compressor.ape", {0, 0}, -0.00048808},
      {"layers.1.attn.compressor.ape", {3, 20}, -0.00326337},
      {"layers.1.attn.compressor.wkv.weight", {2, 1}, -0.00416836},
      {"layers.1.attn.compressor.wkv.weight", {18, 1}, -0.01740298},
      {"layers.1.attn.compressor.wgate.weight", {18, 1}, 0.01728669},
      {"layers.2.attn.compressor.wgate.weight", {4, 4}, -0.00127198},
      {"layers.2.attn.compressor.norm.weight", {12}, -0.00089230},
      {"layers.1.attn.wo_a.weight", {7, 3}, 0.04543653},
      {"layers.1.attn.wo_b.weight", {1, 8}, -0.00958643},
      {"layers.1.hc_attn_fn", {0, 0}, 0.00007933},
      {"layers.1.hc_attn_fn", {5, 20}, 0.00197362},
      {"layers.1.hc_attn_fn", {9, 33}, 0.00000658},
      {"layers.1.hc_attn_base", {13}, -0.00000568},
      {"layers.1.hc_ffn_scale", {0}, -0.00271608},
      {"layers.1.hc_ffn_scale", {1}, 0.02918301},
      {"layers.1.hc_ffn_scale", {2}, 0.00085598},
      {"layers.0.ffn.gate.weight", {1, 2}, -0.00850103},
      {"layers.3.ffn.gate.weight", {2, 5}, 0.00220111},
      {"layers.2.ffn.experts.1.w1.weight", {0, 0}, -0.00392489},
      {"layers.2.ffn.experts.1.w3.weight", {3, 2}, -0.01001948},
      {"layers.2.ffn.experts.1.w2.weight", {4, 5}, -0.00933376},
      {"layers.2.ffn.shared_experts.w1.weight", {0, 0}, 0.00600638},
  };
  for (const GoldenGradient& golden : expected) {
    at::Tensor gradient = gradients.at(golden.name);
    ASSERT_TRUE(gradient.defined()) << golden.name;
    for (const int64_t i : golden.index) {
      gradient = gradient[i];
    }
    // The expected values are central differences, good to about 1e-8.
    EXPECT_NEAR(gradient.item<double>(), golden.value, 2e-8) << golden.name;
  }
  for (const auto& [name, gradient] : gradients) {
    const bool indexer = name.find(".indexer.") != std::string::npos;
    const bool constant = indexer || name.ends_with("gate.bias") || name.ends_with("tid2eid");
    const bool mtp = name.starts_with("mtp.");
    if (constant || mtp) {
      EXPECT_TRUE(!gradient.defined() || gradient.abs().max().item<double>() == 0.0) << name;
    } else {
      EXPECT_TRUE(gradient.defined()) << name << " has no gradient";
    }
  }
}

}  // namespace
}  // namespace baleen::model
