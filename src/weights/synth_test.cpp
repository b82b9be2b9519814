#include "weights/synth.h"

#include <cmath>
#include <set>

#include <gmock/gmock.h>

#include "weights/model_folder_test.h"
#include "weights/toy_parameters.h"

namespace baleen::weights {
namespace {

using testing::HasSubstr;

TEST(SynthValuesTest, DoNotDependOnThreadsAndDoDependOnNameAndSeed) {
  const Parameter parameter{
      "layers.0.attn.wq_a.weight", ParameterKind::kMatrix, {641, 513}, LayerIndex(0)};
  const ModelConfig config = tiny_config();
  const std::vector<float> one = synthetic_values(parameter, config, 7, 1);
  EXPECT_EQ(synthetic_values(parameter, config, 7, 3), one);
  EXPECT_NE(synthetic_values(parameter, config, 8, 1), one);
  Parameter other = parameter;
  other.name = "layers.1.attn.wq_a.weight";
  EXPECT_NE(synthetic_values(other, config, 7, 1), one);
  // Unit gain: variance 1 / inputs, mean 0; five standard errors of 328,833 draws.
  double sum = 0;
  double squares = 0;
  for (const float value : one) {
    sum += static_cast<double>(value);
    squares += static_cast<double>(value) * static_cast<double>(value);
  }
  const auto count = static_cast<double>(one.size());
  EXPECT_NEAR(squares / count * 513, 1.0, 5 * std::sqrt(0.8 / count));
  EXPECT_NEAR(sum / count * std::sqrt(513.0), 0.0, 5 / std::sqrt(count));
}

TEST(SynthValuesTest, TablesHoldDistinctExpertsAndUseThemAll) {
  const Parameter parameter{
      "layers.0.ffn.gate.tid2eid", ParameterKind::kTable, {300, 6}, LayerIndex(0)};
  ModelConfig config = tiny_config();
  std::set<int64_t> seen;
  const std::vector<int64_t> table = synthetic_table(parameter, config, 0);
  for (std::size_t row = 0; row < 300; ++row) {
    std::set<int64_t> in_row(table.begin() + static_cast<std::ptrdiff_t>(row * 6),
                             table.begin() + static_cast<std::ptrdiff_t>(row * 6 + 6));
    EXPECT_EQ(in_row.size(), 6U);
    seen.insert(in_row.begin(), in_row.end());
  }
  EXPECT_EQ(seen.size(), 8U);
  EXPECT_EQ(*seen.rbegin(), 7);
}

TEST(SynthValuesTest, CutsKeepTheOtherLayers) {
  const ModelConfig cut = with_num_experts(with_num_layers(flash_config(), 4), 16);
  EXPECT_EQ(cut.layers.size(), 5U);
  EXPECT_EQ(cut.layers[2].kind, LayerKind::kC4);
  EXPECT_TRUE(cut.layers[2].hash_routed);
  EXPECT_EQ(cut.layers[3].kind, LayerKind::kC128);
  EXPECT_EQ(cut.layers[4].kind, LayerKind::kSwa);
  EXPECT_THROW(with_num_layers(flash_config(), 44), ConfigError);
  EXPECT_THROW(with_num_layers(flash_config(), 0), ConfigError);
  EXPECT_THROW(with_num_experts(flash_config(), 5), ConfigError);
}

class SynthFolderTest : public ModelFolderTest {};

TEST_F(SynthFolderTest, WritesTokenizerProfileAndProgress) {
  write_text_file(top_ / "tokenizer.json", "{}");
  SynthOptions options;
  options.tokenizer = top_ / "tokenizer.json";
  options.chat_profile = "v4-0731";
  uint64_t last = 0;
  uint64_t total = 0;
  options.progress = [&](uint64_t done, uint64_t all) {
    EXPECT_GT(done, last);
    last = done;
    total = all;
  };
  write_synthetic(folder_, tiny_config(), options);
  EXPECT_EQ(last, total);
  EXPECT_EQ(read_text_file(folder_ / "tokenizer.json"), "{}");
  const Checkpoint checkpoint = Checkpoint::open(folder_);
  EXPECT_EQ(checkpoint.generation().chat_profile, "v4-0731");
  EXPECT_EQ(checkpoint.total_bytes(), total);
  EXPECT_THAT(open_error(), HasSubstr("no error"));
  EXPECT_THROW(write_synthetic(folder_, tiny_config(), options), CheckpointError)
      << "never over a model";
  options.chat_profile = "v9";
  EXPECT_THROW(write_synthetic(top_ / "other", tiny_config(), options), ConfigError);
  options.chat_profile = "v4";
  options.tokenizer = top_ / "absent.json";
  EXPECT_THROW(write_synthetic(top_ / "third", tiny_config(), options), SystemError);
  EXPECT_FALSE(std::filesystem::exists(top_ / "third" / "config.json"));
}

TEST_F(SynthFolderTest, EveryFormatOpensAndReportsIt) {
  const std::vector<CheckpointFormat> formats = {{WeightFormat::kFp8, WeightFormat::kFp8},
                                                 {WeightFormat::kBf16, WeightFormat::kBf16},
                                                 {WeightFormat::kF32, WeightFormat::kF32}};
  for (const CheckpointFormat& format : formats) {
    SynthOptions options;
    options.format = format;
    const auto folder = top_ / weight_format_name(format.matrices);
    write_synthetic(folder, tiny_config(), options);
    const Checkpoint checkpoint = Checkpoint::open(folder);
    EXPECT_EQ(checkpoint.expert_format(), format.experts);
    EXPECT_EQ(checkpoint.format("layers.0.attn.wq_a.weight"), format.matrices);
    EXPECT_EQ(checkpoint.config().quantization_config.has_value(),
              format.matrices == WeightFormat::kFp8);
  }
}

TEST_F(SynthFolderTest, ToyModelIsStoredAsDefined) {
  EXPECT_EQ(fnv1a("embed.weight"), 3223481952U);
  const double expected[4] = {0.145175338, -0.693171501, 0.663898110, -0.277115464};
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(toy_parameter("embed.weight", i), expected[i], 5e-10);
  }
  SynthOptions options;
  options.fill = SynthFill::kToy;
  EXPECT_THROW(write_synthetic(folder_, toy_config(), options), CheckpointError)
      << "widths of 16 and 12 have no FP4 groups";
  options.format = {WeightFormat::kF64, WeightFormat::kF64};
  write_synthetic(folder_, toy_config(), options);
  const Checkpoint checkpoint = Checkpoint::open(folder_);
  for (const Parameter& parameter : checkpoint.parameters()) {
    if (parameter.kind == ParameterKind::kTable) {
      std::vector<int64_t> table(64);
      checkpoint.read_int64(parameter.name, table);
      for (int64_t token = 0; token < 32; ++token) {
        EXPECT_EQ(table[static_cast<std::size_t>(2 * token)], (5 * token + 1) % 6);
        EXPECT_EQ(table[static_cast<std::size_t>(2 * token + 1)], (5 * token + 3) % 6);
      }
      continue;
    }
    std::vector<double> values(static_cast<std::size_t>(parameter.num_elements()));
    checkpoint.read_double(parameter.name, values);
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(values[i], toy_parameter(parameter.name, static_cast<int64_t>(i)));
    }
  }
}

}  // namespace
}  // namespace baleen::weights
