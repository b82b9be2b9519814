#include "model/forward.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "model/hash_fill.h"
#include "model/small_models_for_tests.h"

namespace baleen::model {
namespace {

ModelParameters toy(at::ScalarType dtype) {
  return make_hash_filled(golden_toy_config(), {}, at::TensorOptions(dtype));
}

std::vector<int32_t> toy_ids(int32_t count) {
  std::vector<int32_t> ids;
  for (int32_t t = 0; t < count; ++t) {
    ids.push_back((7 * t + 3) % 32);
  }
  return ids;
}

TEST(ForwardTest, GivesTheGoldenLogitsInBothTypes) {
  Model doubles(toy(at::kDouble), {.compute = ComputeType::kFloat64, .numerics = "plain"});
  Model floats(toy(at::kFloat), {.numerics = "plain"});
  const std::vector<int32_t> ids = toy_ids(20);
  ForwardOutput output;
  Sequence a = doubles.new_sequence();
  const RowInput row_a{.sequence = &a, .first_position = 0, .ids = ids};
  doubles.forward({&row_a, 1}, output);
  ASSERT_EQ(output.logits_f64.size(), 32U);
  EXPECT_TRUE(output.logits.empty());
  EXPECT_NEAR(output.logits_f64[0], 2.018911006, 1e-9);
  Sequence b = floats.new_sequence();
  const RowInput row_b{.sequence = &b, .first_position = 0, .ids = ids};
  floats.forward({&row_b, 1}, output);
  EXPECT_TRUE(output.logits_f64.empty());
  ASSERT_EQ(output.row(0).size(), 32U);
  EXPECT_NEAR(output.row(0)[0], 2.018911F, 2e-5F);
}

TEST(ForwardTest, RunsSeveralSequencesAtOnce) {
  Model model(toy(at::kFloat), {.numerics = "plain"});
  const std::vector<int32_t> ids = toy_ids(20);
  const std::span<const int32_t> all(ids);
  std::vector<Sequence> sequences;
  std::vector<RowInput> rows;
  for (int i = 0; i < 64; ++i) {
    sequences.push_back(model.new_sequence());
  }
  ForwardOutput output;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    rows.push_back({.sequence = &sequences[i],
                    .first_position = 0,
                    .ids = all.first(1 + i % 19),
                    .logits = LogitsWanted::kNone});
  }
  model.forward(rows, output);
  EXPECT_TRUE(output.logits.empty());
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const auto done = static_cast<std::size_t>(sequences[i].num_tokens());
    rows[i] = {.sequence = &sequences[i],
               .first_position = sequences[i].num_tokens(),
               .ids = all.subspan(done)};
  }
  model.forward(rows, output);
  ASSERT_EQ(output.spans.size(), 64U);
  for (const LogitsSpan span : output.spans) {
    ASSERT_EQ(span.count, 1);
    EXPECT_NEAR(output.row(span.begin)[1], 2.3343005F, 2e-5F);
  }
}

TEST(ForwardTest, LayersReadFromTheFilesGiveTheSameBits) {
  ForwardConfig config{.max_context = 200, .with_mtp = true};
  Model kept = Model::load("models/abacus", config);
  config.keep_layers = false;
  Model read = Model::load("models/abacus", config);
  EXPECT_LT(read.weight_bytes(), kept.weight_bytes() / 2);
  const std::vector<int32_t> ids = toy_ids(40);
  ForwardOutput expected;
  ForwardOutput found;
  Sequence a = kept.new_sequence();
  Sequence b = read.new_sequence();
  const std::vector<int32_t> next(ids.begin() + 1, ids.end());
  for (const bool kept_one : {true, false}) {
    Model& model = kept_one ? kept : read;
    Sequence& sequence = kept_one ? a : b;
    ForwardOutput& output = kept_one ? expected : found;
    const RowInput row{.sequence = &sequence,
                       .ids = ids,
                       .logits = LogitsWanted::kAll,
                       .mtp = MtpRows::kKeepStreams};
    model.forward({&row, 1}, output);
    const std::vector<float> logits = output.logits;
    const DraftInput draft{.sequence = &sequence, .next_ids = next};
    model.draft({&draft, 1}, output);
    output.logits = logits;
  }
  EXPECT_EQ(found.logits, expected.logits);
  EXPECT_EQ(found.mtp_logits, expected.mtp_logits);
  EXPECT_EQ(a.draft_rows_end(), 39);
  EXPECT_EQ(b.draft_rows_end(), 39);
  EXPECT_LT(read.weight_bytes(), kept.weight_bytes() / 2);
}

TEST(ForwardTest, TablesGrowWithTheLongestSequence) {
  ModelConfig config = golden_toy_config();
  config.max_position_embeddings = 10000;
  Model model(make_hash_filled(config, {}, at::TensorOptions(at::kFloat)), {.numerics = "plain"});
  const std::vector<int32_t> ids = toy_ids(5000);
  Sequence sequence = model.new_sequence();
  ForwardOutput output;
  for (std::size_t begin = 0; begin < ids.size(); begin += 1000) {
    const RowInput row{.sequence = &sequence,
                       .first_position = static_cast<int64_t>(begin),
                       .ids = std::span(ids).subspan(begin, 1000)};
    model.forward({&row, 1}, output);
  }
  EXPECT_EQ(sequence.num_tokens(), 5000);
  for (const float logit : output.row(0)) {
    EXPECT_TRUE(std::isfinite(logit));
  }
}

TEST(ForwardTest, ChoosesTheNumericsThatTheCheckpointAsksFor) {
  ModelConfig quantized = golden_toy_config();
  quantized.quantization_config = QuantizationConfig{};
  const at::TensorOptions floats(at::kFloat);
  EXPECT_EQ(Model(make_hash_filled(quantized, {}, floats), {}).numerics_name(), "reference");
  EXPECT_EQ(Model(toy(at::kFloat), {}).numerics_name(), "plain");
  EXPECT_EQ(Model(toy(at::kFloat), {.numerics = "reference"}).numerics_name(), "reference");
  EXPECT_EQ(Model(toy(at::kFloat), {.numerics = "checkpoint+invariant"}).numerics_name(),
            "plain+invariant");
  EXPECT_THROW(Model(toy(at::kFloat), {.numerics = "fancy"}), ConfigError);
}

TEST(ForwardTest, ReferenceNumericsStayNearThePlainOnes) {
  // Quantisation moves logits by a few percent of their size and must not do more or nothing.
  ModelParameters params = toy(at::kFloat);
  set_formats(params, {.dense = ops::LinearFormat::kFp8, .experts = ops::LinearFormat::kFp8});
  Model reference(params, {.numerics = "reference"});
  Model plain(params, {.numerics = "plain"});
  const std::vector<int32_t> ids = toy_ids(3);
  ForwardOutput a;
  ForwardOutput b;
  Sequence sa = reference.new_sequence();
  Sequence sb = plain.new_sequence();
  const RowInput ra{.sequence = &sa, .first_position = 0, .ids = ids};
  const RowInput rb{.sequence = &sb, .first_position = 0, .ids = ids};
  reference.forward({&ra, 1}, a);
  plain.forward({&rb, 1}, b);
  double difference = 0.0;
  double size = 0.0;
  for (std::size_t i = 0; i < a.logits.size(); ++i) {
    difference += std::pow(static_cast<double>(a.logits[i] - b.logits[i]), 2.0);
    size += std::pow(static_cast<double>(b.logits[i]), 2.0);
  }
  EXPECT_GT(std::sqrt(difference / size), 1e-3);
  EXPECT_LT(std::sqrt(difference / size), 0.2);
}

TEST(ForwardTest, SaysHowMuchMemoryItTakes) {
  Model model(toy(at::kFloat), {.numerics = "plain"});
  // Per token: entries of 16 and index keys of 16 every 4 tokens in two layers, 16 every 16 in one.
  EXPECT_DOUBLE_EQ(model.state_bytes_per_token(), (2 * 32 / 4.0 + 16 / 16.0) * 4);
  EXPECT_GT(model.fixed_state_bytes(), 0);
  EXPECT_GT(model.weight_bytes(), 4 * 32 * 16 * 2);
}

TEST(ForwardTest, RefusesContextsAndDraftersItDoesNotHave) {
  EXPECT_THROW(Model(toy(at::kFloat), {.numerics = "plain", .max_context = 1 << 21}), ConfigError);
  ModelConfig config = golden_toy_config();
  config.num_nextn_predict_layers = 0;
  config.layers.pop_back();
  EXPECT_THROW(Model(make_hash_filled(config, {}, at::TensorOptions(at::kFloat)),
                     {.numerics = "plain", .with_mtp = true}),
               ConfigError);
}

TEST(ForwardDeathTest, RefusesRowsThatDoNotContinueTheirSequence) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Model model(toy(at::kFloat), {.numerics = "plain", .max_context = 8});
  Sequence sequence = model.new_sequence();
  ForwardOutput output;
  const auto forward = [&](int64_t first, const std::vector<int32_t>& ids) {
    const RowInput row{.sequence = &sequence, .first_position = first, .ids = ids};
    model.forward({&row, 1}, output);
  };
  EXPECT_DEATH(forward(1, {1}), "first_position=1");
  EXPECT_DEATH(forward(0, {}), "ids=0");
  EXPECT_DEATH(forward(0, {32}), "token id 32");
  EXPECT_DEATH(forward(0, toy_ids(9)), "max_context 8");
}

}  // namespace
}  // namespace baleen::model
