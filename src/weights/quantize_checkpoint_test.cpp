#include "weights/quantize_checkpoint.h"

#include <gmock/gmock.h>

#include "weights/model_folder_test.h"

namespace baleen::weights {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr CheckpointFormat kPublished{WeightFormat::kFp8, WeightFormat::kFp4};
constexpr CheckpointFormat kFp8{WeightFormat::kFp8, WeightFormat::kFp8};
constexpr CheckpointFormat kBf16{WeightFormat::kBf16, WeightFormat::kBf16};
constexpr CheckpointFormat kF32{WeightFormat::kF32, WeightFormat::kF32};

class QuantizeCheckpointTest : public ModelFolderTest {
 protected:
  void SetUp() override {
    ModelFolderTest::SetUp();
    write_text_file(top_ / "tokenizer.json", "{\"model\": 1}");
    SynthOptions options;
    options.tokenizer = top_ / "tokenizer.json";
    write_synthetic(folder_, tiny_config(), options);
  }
  ConvertReport convert(const char* from, const char* to, const CheckpointFormat& format) {
    ConvertOptions options;
    options.format = format;
    return convert_checkpoint(top_ / from, top_ / to, options);
  }
  void expect_same_values(const char* left, const char* right) {
    const Checkpoint a = Checkpoint::open(top_ / left);
    const Checkpoint b = Checkpoint::open(top_ / right);
    ASSERT_EQ(a.parameters().size(), b.parameters().size());
    for (const Parameter& parameter : a.parameters()) {
      if (parameter.kind != ParameterKind::kTable) {
        EXPECT_EQ(values_of(a, parameter), values_of(b, parameter)) << parameter.name;
      }
    }
  }
};

TEST_F(QuantizeCheckpointTest, Fp4ToFp8IsLossless) {
  const ConvertReport report = convert("model", "fp8", kFp8);
  EXPECT_EQ(report.lossless, 5 * 8 * 3);
  EXPECT_EQ(report.reencoded, 0);
  expect_same_values("model", "fp8");
  EXPECT_THAT(read_text_file(top_ / "fp8" / "config.json"), HasSubstr("\"expert_dtype\": \"fp8\""));
}

TEST_F(QuantizeCheckpointTest, BothPlainFormsHoldEveryQuantisedValue) {
  convert("model", "bf16", kBf16);
  expect_same_values("model", "bf16");
  convert("bf16", "f32", kF32);
  expect_same_values("model", "f32");
  const std::string config = read_text_file(top_ / "bf16" / "config.json");
  EXPECT_THAT(config,
              AllOf(testing::Not(HasSubstr("quantization_config")),
                    testing::Not(HasSubstr("expert_dtype"))));
}

TEST_F(QuantizeCheckpointTest, BackFromBf16KeepsEveryValue) {
  convert("model", "bf16", kBf16);
  const ConvertReport report = convert("bf16", "back", kPublished);
  EXPECT_GT(report.copied, 0);
  EXPECT_GT(report.reencoded, 0);
  expect_same_values("model", "back");
  const std::string config = read_text_file(top_ / "back" / "config.json");
  EXPECT_THAT(config,
              AllOf(HasSubstr("\"expert_dtype\": \"fp4\""), HasSubstr("weight_block_size")));
}

TEST_F(QuantizeCheckpointTest, EqualFormatsAreCopiedByteForByte) {
  const ConvertReport report = convert("model", "copy", kPublished);
  EXPECT_EQ(report.copied, static_cast<int64_t>(parameter_inventory(tiny_config()).size()));
  EXPECT_EQ(read_text_file(top_ / "copy" / "model.safetensors"),
            read_text_file(top_ / "model" / "model.safetensors"));
}

TEST_F(QuantizeCheckpointTest, OtherFilesAndKeysComeAlong) {
  std::filesystem::create_directories(folder_ / "encoding");
  write_text_file(folder_ / "encoding" / "encoder.py", "x");
  std::string config = read_text_file(folder_ / "config.json");
  config.insert(config.find('{') + 1, "\"_name_or_path\": \"kept\",");
  write_text_file(folder_ / "config.json", config);
  ConvertOptions options;
  options.format = kFp8;
  options.max_shard_bytes = 300'000;
  options.chat_profile = "v4.1";
  const ConvertReport report = convert_checkpoint(folder_, top_ / "out", options);
  EXPECT_GT(report.num_shards, 2U);
  EXPECT_EQ(read_text_file(top_ / "out" / "encoding" / "encoder.py"), "x");
  EXPECT_EQ(read_text_file(top_ / "out" / "tokenizer.json"), "{\"model\": 1}");
  EXPECT_THAT(read_text_file(top_ / "out" / "config.json"), HasSubstr("kept"));
  EXPECT_EQ(Checkpoint::open(top_ / "out").generation().chat_profile, "v4.1");
  expect_same_values("model", "out");
}

TEST_F(QuantizeCheckpointTest, WideScalesAreRefusedUnlessLossIsAllowed) {
  const std::string name = "layers.1.ffn.experts.3.w2";
  edit([&](EditableTensors& tensors) {
    tensors[name + ".scale"].bytes[0] = std::byte{90};
    tensors[name + ".scale"].bytes[1] = std::byte{110};
  });
  ConvertOptions options;
  options.format = kFp8;
  try {
    convert_checkpoint(folder_, top_ / "out", options);
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr(name), HasSubstr("2^14")));
  }
  EXPECT_FALSE(std::filesystem::exists(top_ / "out" / "config.json")) << "cannot be loaded";
  options.allow_lossy = true;
  EXPECT_EQ(convert_checkpoint(folder_, top_ / "lossy", options).lossy, 1);
}

TEST_F(QuantizeCheckpointTest, NeverOverAModel) {
  EXPECT_THROW(convert("model", "model", kFp8), CheckpointError);
}

}  // namespace
}  // namespace baleen::weights
