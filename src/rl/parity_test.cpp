// Serving and training passes give equal bits at every point; each of eight planted faults is found
// at the point where it was planted, and its cause is among those named there.

#include "rl/parity.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "model/fake_quantized.h"
#include "numerics/float8.h"
#include "ops/indexer.h"
#include "train/nano_model.h"

namespace baleen::rl {
namespace {

std::vector<TokenIds> parity_texts() {
  std::vector<TokenIds> texts;
  uint64_t state = 5;
  for (const std::size_t length : {33U, 12U, 41U, 41U, 20U}) {
    texts.emplace_back();
    for (std::size_t t = 0; t < length; ++t) {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      texts.back().push_back(static_cast<int32_t>((state >> 33) % 32));
    }
  }
  return texts;
}

class ParityTest : public testing::Test {
 protected:
  explicit ParityTest(bool quantised = false)
      : masters_(train::fresh_nano(train::nano_config(), 11, at::kFloat)),
        numerics_(ops::Numerics::by_name(quantised ? "reference+invariant" : "plain+invariant")),
        texts_(parity_texts()) {
    const at::NoGradGuard no_grad;
    if (quantised) {
      model::set_formats(masters_, {ops::LinearFormat::kFp8, ops::LinearFormat::kFp4});
      params_ = model::fake_quantized(masters_);
    } else {
      params_ = masters_;
    }
    // Large enough activations for the clamp, biases that matter.
    params_.config.swiglu_limit = 0.5;
    for (model::BlockParameters& block : params_.blocks) {
      if (block.moe.gate_bias.defined()) {
        block.moe.gate_bias = block.moe.gate_bias + at::arange(8, at::kFloat) * 0.01F;
      }
    }
  }

  std::vector<TokenPoints> engine(int64_t prefill = 7) const {
    return engine_points(params_, texts_, {.numerics = numerics_, .prefill = prefill});
  }
  std::vector<TokenPoints> trainer(const model::ModelParameters& params) const {
    return trainer_points(params, texts_, {.numerics = numerics_, .pad_multiple = 8});
  }
  /// The first point at which a trainer with this fault parts from the engine.
  PointDifference first_with(const std::vector<TokenPoints>& faulty) const {
    const ParityReport report = compare_points(engine(), faulty);
    const auto first = report.first();
    return first ? *first : PointDifference{};
  }

  model::ModelParameters masters_;
  model::ModelParameters params_;
  ops::Numerics numerics_;
  std::vector<TokenIds> texts_;
};

class QuantisedParityTest : public ParityTest {
 protected:
  QuantisedParityTest() : ParityTest(true) {}
};

void expect_equal(const ParityReport& report, const std::string& what) {
  EXPECT_TRUE(report.equal()) << what << "\n" << parity_text(report, "a", "b");
  EXPECT_GT(report.points.size(), 60U);
  EXPECT_EQ(report.num_tokens, 142);
}

TEST_F(ParityTest, EveryPointHasEqualBitsOnAllPaths) {
  const std::vector<TokenPoints> decode = engine(1);
  for (const int64_t prefill : {4, 7, 100}) {
    expect_equal(compare_points(decode, engine(prefill)), std::to_string(prefill));
  }
  expect_equal(compare_points(decode, trainer(params_)), "trainer");
}

TEST_F(QuantisedParityTest, EveryPointHasEqualBitsOnAllPaths) {
  const std::vector<TokenPoints> decode = engine(1);
  expect_equal(compare_points(decode, engine(9)), "prefill");
  expect_equal(compare_points(decode, trainer(params_)), "trainer");
}

TEST_F(ParityTest, FaultTemperature) {
  const PointDifference first = first_with(trainer_points(
      params_, texts_, {.numerics = numerics_, .pad_multiple = 8, .temperature = 1.01}));
  EXPECT_EQ(first.point, "logprob");
  EXPECT_GT(first.num_tokens, 130);
  EXPECT_NE(parity_hint(first.point).find("temperature"), std::string_view::npos);
}

TEST_F(ParityTest, FaultShift) {
  const PointDifference first = first_with(trainer_points(
      params_, texts_, {.numerics = numerics_, .pad_multiple = 8, .target_shift = 1}));
  EXPECT_EQ(first.point, "logprob");
  EXPECT_GT(first.largest, 1.0);
  EXPECT_NE(parity_hint(first.point).find("shift"), std::string_view::npos);
}

TEST_F(ParityTest, FaultCarryHalf) {
  model::ModelParameters faulty = params_;
  at::Tensor& wkv = faulty.blocks[1].attention.compressor->wkv;
  wkv = wkv.clone();
  wkv.narrow(0, 0, 32).zero_();  // what overlaps from the group before
  const PointDifference first = first_with(trainer(faulty));
  EXPECT_EQ(first.point, "layers.1.attn.entries");
  EXPECT_EQ(first.position, 7) << "the first group has none before it";
  EXPECT_NE(parity_hint(first.point).find("carry half"), std::string_view::npos);
}

TEST_F(QuantisedParityTest, FaultScaleType) {
  // Scales as they come instead of powers of two.
  model::ModelParameters faulty = params_;
  at::Tensor wkv = masters_.blocks[2].attention.wkv.weight.clone();
  const float scale = wkv.abs().max().item<float>() / 448.0F;
  float* value = wkv.mutable_data_ptr<float>();
  for (int64_t i = 0; i < wkv.numel(); ++i) {
    value[i] = numerics::e4m3_to_float(numerics::e4m3_from_float(value[i] / scale)) * scale;
  }
  faulty.blocks[2].attention.wkv.weight = wkv;
  const PointDifference first = first_with(trainer(faulty));
  EXPECT_EQ(first.point, "layers.2.attn.kv");
  EXPECT_NE(parity_hint(first.point).find("scale type"), std::string_view::npos);
}

TEST_F(ParityTest, FaultTieRule) {
  // Layer 1 scores everything alike; the faulty side breaks ties to the later entry.
  params_.blocks[1].attention.indexer->weights_proj =
      at::zeros_like(params_.blocks[1].attention.indexer->weights_proj);
  const std::vector<TokenIds> one = {texts_[0]};
  const int64_t tokens = static_cast<int64_t>(one[0].size()) - 1;
  at::Tensor late = at::zeros({1, tokens, tokens / 4}, at::kBool);
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t visible = (t + 1) / 4;
    for (int64_t e = std::max<int64_t>(0, visible - 2); e < visible; ++e) {
      late[0][t][e] = true;
    }
  }
  model::ChoicesByLayer given(params_.config.layers.size());
  given[1].picks = {late};
  const auto a = engine_points(params_, one, {.numerics = numerics_, .prefill = 3});
  const auto b = trainer_points(params_, one, {.numerics = numerics_, .given = &given});
  const auto first = compare_points(a, b).first();
  ASSERT_TRUE(first);
  EXPECT_EQ(first->point, "layers.1.attn.picks");
  EXPECT_EQ(first->position, 11);
  EXPECT_EQ(first->largest, 4.0) << "two entries picked here, two others there";
  EXPECT_NE(parity_hint(first->point).find("tie rule"), std::string_view::npos);
}

TEST_F(ParityTest, FaultClamp) {
  ops::Numerics loose = numerics_;
  loose.shared_expert_clamp = false;
  const PointDifference first =
      first_with(trainer_points(params_, texts_, {.numerics = loose, .pad_multiple = 8}));
  EXPECT_EQ(first.point, "layers.0.ffn.output");
  EXPECT_NE(parity_hint(first.point).find("clamp"), std::string_view::npos);
}

TEST_F(ParityTest, FaultBias) {
  model::ModelParameters faulty = params_;
  faulty.blocks[3].moe.gate_bias = at::zeros({8}, at::kFloat);  // not synchronised
  const PointDifference first = first_with(trainer(faulty));
  EXPECT_EQ(first.point, "layers.3.ffn.experts");
  EXPECT_LT(first.num_tokens, 142) << "only where it decides";
  EXPECT_NE(parity_hint(first.point).find("bias"), std::string_view::npos);
}

TEST_F(ParityTest, FaultKeyOrder) {
  // Two rows of the window change places before the last token: the same keys in another order.
  const std::vector<TokenIds> one = {texts_[2]};
  const auto last = static_cast<int64_t>(one[0].size()) - 2;
  const auto swap = [&](model::SequenceState& state, int64_t position) {
    if (position != last) {
      return;
    }
    at::Tensor rows = state.layer(2).raw->view(last - 4, last - 2);
    rows.copy_(rows.flip(0).clone());
  };
  const auto a = engine_points(params_, one, {.numerics = numerics_, .before_step = swap});
  const auto b = trainer_points(params_, one, {.numerics = numerics_});
  const auto first = compare_points(a, b).first();
  ASSERT_TRUE(first);
  EXPECT_EQ(first->point, "layers.2.attn.context");
  EXPECT_EQ(first->position, last);
  EXPECT_EQ(first->num_tokens, 1);
  EXPECT_LT(first->largest, 1e-5) << "the same sum but for its rounding";
  EXPECT_NE(parity_hint(first->point).find("order of the keys"), std::string_view::npos);
  const std::string text = parity_text(compare_points(a, b), "engine decode", "trainer");
  EXPECT_NE(text.find("first: layers.2.attn.context"), std::string::npos) << text;
}

}  // namespace
}  // namespace baleen::rl
