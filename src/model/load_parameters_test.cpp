#include "model/load_parameters.h"

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/error.h"
#include "model/device_decode.h"
#include "model/fake_quantized.h"
#include "model/hash_fill.h"
#include "model/small_models_for_tests.h"
#include "weights/checkpoint_writer.h"
#include "weights/config_json.h"
#include "weights/parameter_codec.h"
#include "weights/synth.h"

namespace baleen::model {
namespace {

using weights::WeightFormat;

/// Widths that FP4 can store and that leave partial FP8 tiles.
ModelConfig wide_config() {
  ModelConfig config = small_config({0, 4, 128});
  config.hidden_size = 160;
  config.moe_intermediate_size = 64;
  config.index_topk = 2;
  config.quantization_config = QuantizationConfig{};
  return config;
}

class LoadParametersTest : public testing::Test {
 protected:
  LoadParametersTest()
      : folder_(std::filesystem::temp_directory_path() /
                ("baleen_load_parameters_test_" + std::to_string(::getpid()))) {}
  ~LoadParametersTest() override { std::filesystem::remove_all(folder_); }

  /// Writes `params` as a checkpoint.
  void write(ModelParameters& params, const weights::CheckpointFormat& format) {
    std::filesystem::remove_all(folder_);
    std::map<std::string, at::Tensor> tensors;
    for_each_published_tensor(params, [&](const std::string& name, at::Tensor value) {
      tensors[name] = value.contiguous();
    });
    weights::CheckpointWriter writer(folder_, params.config, format);
    for (const weights::Parameter& parameter : writer.parameters()) {
      const at::Tensor& value = tensors.at(parameter.name);
      const auto count = static_cast<std::size_t>(value.numel());
      if (parameter.kind == weights::ParameterKind::kTable) {
        writer.put(parameter,
                   weights::encode_table(std::span(value.const_data_ptr<int64_t>(), count)));
      } else {
        writer.put(parameter,
                   weights::encode_parameter(std::span(value.const_data_ptr<float>(), count),
                                             parameter.shape,
                                             writer.format_of(parameter)));
      }
    }
    writer.finish(weights::write_config_json(params.config));
  }

  ModelParameters load(at::ScalarType dtype = at::kFloat, bool with_mtp = true) const {
    weights::OpenOptions options;
    options.load_mtp = with_mtp;
    return load_parameters(weights::Checkpoint::open(folder_, options), at::TensorOptions(dtype));
  }

  std::filesystem::path folder_;
};

TEST_F(LoadParametersTest, AQuantizedExportIsWhatTrainingComputedWith) {
  ModelParameters masters = small_model(wide_config(), at::kFloat);
  for (const WeightFormat experts : {WeightFormat::kFp4, WeightFormat::kFp8}) {
    set_formats(masters,
                {.dense = ops::LinearFormat::kFp8,
                 .experts = experts == WeightFormat::kFp4 ? ops::LinearFormat::kFp4
                                                          : ops::LinearFormat::kFp8});
    write(masters, {.matrices = WeightFormat::kFp8, .experts = experts});
    ModelParameters loaded = load();
    ModelParameters served = fake_quantized(masters);
    std::map<std::string, at::Tensor> expected;
    for_each_parameter(
        served, [&](const ParameterInfo& info, at::Tensor& value) { expected[info.name] = value; });
    for_each_parameter(loaded, [&](const ParameterInfo& info, at::Tensor& value) {
      EXPECT_TRUE(at::equal(value, expected.at(info.name))) << info.name;
    });
    EXPECT_EQ(loaded.blocks[1].moe.w2.format,
              experts == WeightFormat::kFp4 ? ops::LinearFormat::kFp4 : ops::LinearFormat::kFp8);
    EXPECT_EQ(loaded.blocks[1].attention.wq_b.format, ops::LinearFormat::kFp8);
    const at::Tensor ids = some_ids(150, masters.config.vocab_size).unsqueeze(0);
    const at::NoGradGuard no_grad;
    const ForwardOptions options{.numerics = ops::Numerics::reference(), .with_mtp = true};
    const TrainingOutput a = forward_training(loaded, ids, options);
    const TrainingOutput b = forward_training(served, ids, options);
    EXPECT_TRUE(at::equal(a.logits, b.logits));
    EXPECT_TRUE(at::equal(a.mtp_logits, b.mtp_logits));
  }
}

TEST_F(LoadParametersTest, FakeQuantizedWeightsPassGradientsToTheirMasters) {
  ModelParameters masters = small_model(wide_config(), at::kFloat);
  set_formats(masters, {.dense = ops::LinearFormat::kFp8, .experts = ops::LinearFormat::kFp4});
  for_each_parameter(masters, [](const ParameterInfo& info, at::Tensor& value) {
    value.requires_grad_(info.trainable());
  });
  const at::Tensor ids = some_ids(24, masters.config.vocab_size).view({2, 12});
  const TrainingOutput out = forward_training(
      fake_quantized(masters), ids, {.numerics = ops::Numerics::reference(), .with_mtp = true});
  (out.logits.square().mean() + out.mtp_logits.square().mean()).backward();
  for_each_parameter(masters, [](const ParameterInfo& info, at::Tensor& value) {
    // No group of 128 tokens closes in 12; the indexer has no gradient from this loss.
    const bool idle = info.name.starts_with("layers.2.attn.compressor") ||
                      info.name.find(".indexer.") != std::string::npos;
    if (info.trainable() && !idle) {
      ASSERT_TRUE(value.grad().defined()) << info.name;
      EXPECT_GT(value.grad().abs().max().item<float>(), 0.0F) << info.name;
    }
  });
}

TEST_F(LoadParametersTest, UnquantizedFilesComeBackAsTheyWere) {
  ModelParameters params = small_model(wide_config(), at::kFloat);
  write(params, {.matrices = WeightFormat::kF32, .experts = WeightFormat::kF32});
  ModelParameters loaded = load(at::kDouble);
  std::map<std::string, at::Tensor> expected;
  for_each_parameter(
      params, [&](const ParameterInfo& info, at::Tensor& value) { expected[info.name] = value; });
  for_each_matrix_or_tensor(
      loaded, [&](const ParameterInfo& info, at::Tensor& value, ops::LinearFormat* format) {
        const at::Tensor& original = expected.at(info.name);
        EXPECT_TRUE(at::equal(value, original.to(value.scalar_type()))) << info.name;
        if (format != nullptr) {
          EXPECT_EQ(*format, ops::LinearFormat::kPlain) << info.name;
        }
      });
}

TEST_F(LoadParametersTest, LeavesTheMtpBlockOutWhenAsked) {
  ModelParameters params = small_model(wide_config(), at::kFloat);
  write(params, {.matrices = WeightFormat::kF32, .experts = WeightFormat::kF32});
  EXPECT_TRUE(load(at::kFloat, false).mtp.empty());
  EXPECT_EQ(load(at::kFloat, true).mtp.size(), 1U);
}

TEST_F(LoadParametersTest, TheToyFolderIsTheToyInMemory) {
  weights::SynthOptions options;
  options.format = {.matrices = WeightFormat::kF32, .experts = WeightFormat::kF32};
  options.fill = weights::SynthFill::kToy;
  weights::write_synthetic(folder_, golden_toy_config(), options);
  ModelParameters loaded = load();
  ModelParameters filled = make_hash_filled(golden_toy_config(), {}, at::TensorOptions(at::kFloat));
  std::map<std::string, at::Tensor> expected;
  for_each_parameter(
      filled, [&](const ParameterInfo& info, at::Tensor& value) { expected[info.name] = value; });
  for_each_parameter(loaded, [&](const ParameterInfo& info, at::Tensor& value) {
    EXPECT_TRUE(at::equal(value, expected.at(info.name))) << info.name;
  });
}

TEST_F(LoadParametersTest, TensorOperatorsDecodeToTheBitsOfTheReader) {
  for (const WeightFormat experts : {WeightFormat::kFp4, WeightFormat::kFp8}) {
    ModelParameters params = make_hash_filled(wide_config(), {}, at::TensorOptions(at::kFloat));
    weights::CheckpointFormat format;
    format.experts = experts;
    write(params, format);
    weights::OpenOptions options;
    options.load_mtp = true;
    const weights::Checkpoint checkpoint = weights::Checkpoint::open(folder_, options);
    std::map<WeightFormat, int> seen;
    for (const weights::Parameter& parameter : checkpoint.parameters()) {
      const weights::StoredParameter& stored = checkpoint.stored(parameter.name);
      if (!decodes_on_device(stored.format)) {
        continue;
      }
      ++seen[stored.format];
      at::Tensor floats = at::empty(stored.shape, at::kFloat);
      checkpoint.read_float(
          parameter.name,
          std::span(floats.data_ptr<float>(), static_cast<std::size_t>(floats.numel())));
      at::Tensor doubles = at::empty(stored.shape, at::kDouble);
      checkpoint.read_double(
          parameter.name,
          std::span(doubles.data_ptr<double>(), static_cast<std::size_t>(doubles.numel())));
      ASSERT_TRUE(at::equal(decode_on(stored, at::kCPU, at::kFloat), floats)) << parameter.name;
      ASSERT_TRUE(at::equal(decode_on(stored, at::kCPU, at::kDouble), doubles)) << parameter.name;
    }
    EXPECT_GT(seen[WeightFormat::kFp8], 0);
    EXPECT_GT(seen[experts], 0);
    EXPECT_GT(seen[WeightFormat::kBf16] + seen[WeightFormat::kF32], 0);
  }
}

TEST_F(LoadParametersTest, TensorOperatorsRefuseAScaleThatIsNan) {
  const std::vector<std::byte> codes(64 * 32, std::byte{0x35});
  const std::vector<uint8_t> scales(64 * 2, uint8_t{120});
  std::vector<uint8_t> bad = scales;
  bad[17] = 255;
  weights::StoredParameter stored{.format = WeightFormat::kFp4,
                                  .shape = {64, 64},
                                  .values = codes,
                                  .scales = scales,
                                  .source = "file: layers.0.w"};
  EXPECT_EQ(decode_on(stored, at::kCPU, at::kFloat).numel(), 64 * 64);
  stored.scales = bad;
  try {
    decode_on(stored, at::kCPU, at::kFloat);
    FAIL() << "a NaN scale was taken";
  } catch (const CheckpointError& error) {
    EXPECT_STREQ(error.what(), "file: layers.0.w: a scale is NaN");
  }
}

}  // namespace
}  // namespace baleen::model
