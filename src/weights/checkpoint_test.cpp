#include "weights/checkpoint.h"

#include <cstring>
#include <fstream>
#include <mutex>
#include <thread>

#include <gmock/gmock.h>

#include "base/log.h"
#include "weights/config_json.h"
#include "weights/model_folder_test.h"
#include "weights/name_map.h"

namespace baleen::weights {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class CheckpointTest : public ModelFolderTest {
 protected:
  void SetUp() override {
    ModelFolderTest::SetUp();
    write_synthetic(folder_, tiny_config(), {});
  }
};

TEST_F(CheckpointTest, OpensWhatSynthWroteAndReadsEachParameterOnce) {
  const Checkpoint checkpoint = Checkpoint::open(folder_);
  EXPECT_EQ(write_config_json(checkpoint.config()), write_config_json(tiny_config()));
  EXPECT_EQ(checkpoint.generation().chat_profile, "v4");
  EXPECT_EQ(checkpoint.parameters().size(), parameter_inventory(tiny_config()).size());
  EXPECT_EQ(checkpoint.expert_format(), WeightFormat::kFp4);
  EXPECT_TRUE(checkpoint.unused_tensors().empty());
  EXPECT_TRUE(checkpoint.contains("mtp.0.e_proj.weight"));
  EXPECT_FALSE(checkpoint.contains("mtp.0.e_proj.scale"));
  for (const Parameter& parameter : checkpoint.parameters()) {
    if (parameter.kind == ParameterKind::kTable) {
      std::vector<int64_t> table(static_cast<std::size_t>(parameter.num_elements()));
      checkpoint.read_int64(parameter.name, table);
      EXPECT_EQ(table, synthetic_table(parameter, tiny_config(), 0));
      continue;
    }
    const std::vector<float> values = values_of(checkpoint, parameter);
    const std::vector<float> made = synthetic_values(parameter, tiny_config(), 0);
    std::vector<double> wide(values.size());
    checkpoint.read_double(parameter.name, wide);
    // Relative to the largest value: f32 exact, bf16 2^-8, E4M3 2^-4, E2M1 1/5
    // (5 lies between 4 and 6).
    const WeightFormat format = checkpoint.format(parameter.name);
    const float bound = format == WeightFormat::kF32    ? 0.0F
                        : format == WeightFormat::kBf16 ? 0x1p-8F
                        : format == WeightFormat::kFp8  ? 0x1p-4F
                                                        : 0.2F;
    float largest = 0.0F;
    for (const float value : made) {
      largest = std::max(largest, std::abs(value));
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_LE(std::abs(values[i] - made[i]), bound * largest) << parameter.name << " " << i;
      ASSERT_EQ(static_cast<double>(values[i]), wide[i]);
    }
  }
}

TEST_F(CheckpointTest, ProgressCountsEveryByteOnceFromManyThreads) {
  uint64_t highest = 0;
  uint64_t total = 0;
  std::mutex mutex;
  OpenOptions options;
  options.progress = [&](uint64_t done, uint64_t all) {
    const std::lock_guard lock(mutex);
    highest = std::max(highest, done);
    total = all;
  };
  const Checkpoint checkpoint = Checkpoint::open(folder_, options);
  {
    std::vector<std::jthread> threads;
    for (std::size_t t = 0; t < 4; ++t) {
      threads.emplace_back([&checkpoint, t] {
        for (std::size_t i = t; i < checkpoint.parameters().size(); i += 4) {
          const Parameter& parameter = checkpoint.parameters()[i];
          if (parameter.kind == ParameterKind::kTable) {
            std::vector<int64_t> table(static_cast<std::size_t>(parameter.num_elements()));
            checkpoint.read_int64(parameter.name, table);
          } else {
            values_of(checkpoint, parameter);
          }
        }
      });
    }
  }
  EXPECT_EQ(highest, checkpoint.total_bytes());
  EXPECT_EQ(total, checkpoint.total_bytes());
}

TEST_F(CheckpointTest, MissingTensorIsNamed) {
  edit([](EditableTensors& tensors) { tensors.erase("layers.3.attn.compressor.ape"); });
  EXPECT_THAT(open_error(), AllOf(HasSubstr("1 of"), HasSubstr("layers.3.attn.compressor.ape")));
}

TEST_F(CheckpointTest, MissingScaleIsNamed) {
  edit([](EditableTensors& tensors) { tensors.erase("layers.2.ffn.experts.0.w1.scale"); });
  EXPECT_THAT(open_error(), AllOf(HasSubstr("layers.2.ffn.experts.0.w1"), HasSubstr("scale")));
  edit([](EditableTensors& tensors) {
    tensors["layers.2.ffn.experts.0.w1.scale"] = {
        DType::kF8E8m0, {64, 4}, std::vector<std::byte>(256, std::byte{120})};
    tensors.erase("layers.0.attn.wq_a.scale");
  });
  EXPECT_THAT(open_error(),
              AllOf(HasSubstr("layers.0.attn.wq_a.weight is fp8"),
                    HasSubstr("layers.0.attn.wq_a.scale is not there")));
}

TEST_F(CheckpointTest, WrongShapeAndTypeAreNamedWithBothSides) {
  edit([](EditableTensors& tensors) { tensors["norm.weight"].shape = {64, 2}; });
  EXPECT_THAT(open_error(),
              AllOf(HasSubstr("model.safetensors: tensor norm.weight"),
                    HasSubstr("[64, 2]"),
                    HasSubstr("expected [128]")));
  edit([](EditableTensors& tensors) {
    tensors["norm.weight"] = {DType::kF8E4m3, {128}, std::vector<std::byte>(128)};
  });
  EXPECT_THAT(open_error(), AllOf(HasSubstr("tensor norm.weight"), HasSubstr("F8_E4M3")));
  edit([](EditableTensors& tensors) {
    tensors["norm.weight"] = {DType::kF32, {128}, std::vector<std::byte>(512)};
    tensors["layers.1.attn.wq_a.scale"].dtype = DType::kU8;
  });
  EXPECT_THAT(open_error(), AllOf(HasSubstr("layers.1.attn.wq_a.scale"), HasSubstr("U8")));
  edit([](EditableTensors& tensors) {
    tensors["layers.1.attn.wq_a.scale"].dtype = DType::kF8E8m0;
    tensors["layers.1.attn.wq_a.weight"].dtype = DType::kI8;
  });
  EXPECT_THAT(open_error(), AllOf(HasSubstr("layers.1.attn.wq_a.weight"), HasSubstr("type I8")));
}

TEST_F(CheckpointTest, UnexpectedTensorsAreNamed) {
  edit([](EditableTensors& tensors) {
    tensors["layers.1.attn.extra.weight"] = {DType::kF32, {1}, std::vector<std::byte>(4)};
  });
  EXPECT_THAT(open_error(),
              HasSubstr("1 stored tensors belong to no parameter: "
                        "layers.1.attn.extra.weight"));
  // A window layer has no compressor, a hash-routed layer no bias.
  edit([](EditableTensors& tensors) {
    tensors.erase("layers.1.attn.extra.weight");
    tensors["layers.0.ffn.gate.bias"] = {DType::kF32, {8}, std::vector<std::byte>(32)};
    tensors["layers.0.attn.compressor.norm.weight"] = {
        DType::kBf16, {64}, std::vector<std::byte>(128)};
  });
  EXPECT_THAT(open_error(),
              AllOf(HasSubstr("layers.0.ffn.gate.bias"),
                    HasSubstr("layers.0.attn.compressor.norm.weight")));
}

TEST_F(CheckpointTest, UnusedDrafterTensorsLoadAndAreReported) {
  edit([](EditableTensors& tensors) {
    for (const char* name : {"mtp.1.a", "mtp.1.b.weight", "mtp.2.markov_head.w"}) {
      tensors[name] = {DType::kF32, {1}, std::vector<std::byte>(4)};
    }
  });
  EXPECT_THAT(Checkpoint::open(folder_).unused_tensors(),
              ElementsAre("mtp.1.a", "mtp.1.b.weight", "mtp.2.markov_head.w"));
  OpenOptions options;
  options.load_mtp = false;
  const Checkpoint without = Checkpoint::open(folder_, options);
  EXPECT_EQ(without.config().num_nextn_predict_layers, 0);
  EXPECT_GT(without.unused_tensors().size(), 40U);
}

TEST_F(CheckpointTest, AliasSpellingsLoadAndTwinsAreRefused) {
  const std::vector<float> before = values_of(
      Checkpoint::open(folder_), {"hc_head_fn", ParameterKind::kF32, {4, 512}, LayerIndex()});
  edit([](EditableTensors& tensors) {
    tensors["hc_head.fn"] = tensors["hc_head_fn"];
    tensors.erase("hc_head_fn");
  });
  EXPECT_EQ(values_of(Checkpoint::open(folder_),
                      {"hc_head_fn", ParameterKind::kF32, {4, 512}, LayerIndex()}),
            before);
  edit([](EditableTensors& tensors) { tensors["hc_head_fn"] = tensors["hc_head.fn"]; });
  EXPECT_THAT(open_error(),
              AllOf(HasSubstr("two stored tensors"),
                    HasSubstr("tensor hc_head.fn"),
                    HasSubstr("tensor hc_head_fn")));
}

TEST_F(CheckpointTest, RoutingTableIsCheckedAgainstTheExperts) {
  for (const int64_t wrong : {int64_t{8}, int64_t{-1}}) {
    edit([wrong](EditableTensors& tensors) {
      std::memcpy(tensors["layers.0.ffn.gate.tid2eid"].bytes.data() + 80, &wrong, 8);
    });
    EXPECT_THAT(open_error(),
                AllOf(HasSubstr("tid2eid"),
                      HasSubstr("token 5"),
                      HasSubstr(std::to_string(wrong)),
                      HasSubstr("0 to 7")));
  }
}

TEST_F(CheckpointTest, NanScaleIsRefusedWhenRead) {
  edit([](EditableTensors& tensors) {
    tensors["layers.0.attn.wq_a.scale"].bytes[0] = std::byte{255};
  });
  const Checkpoint checkpoint = Checkpoint::open(folder_);
  std::vector<float> values(64 * 128);
  try {
    checkpoint.read_float("layers.0.attn.wq_a.weight", values);
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_THAT(error.what(), HasSubstr("layers.0.attn.wq_a.weight"));
  }
}

TEST_F(CheckpointTest, OtherNamesAndFusedExpertsGiveTheSameValues) {
  const std::filesystem::path plain = folder_;
  std::vector<std::vector<float>> before;
  const Checkpoint published = Checkpoint::open(plain);
  folder_ = top_ / "exchange";
  std::filesystem::copy(plain, folder_);
  edit([](EditableTensors& tensors) {
    EditableTensors renamed;
    for (auto& [name, tensor] : tensors) {
      renamed[exchange_name(name, 4)] = tensor;
    }
    tensors = renamed;
  });
  const Checkpoint exchange = Checkpoint::open(folder_);

  // Port form: bf16, fused experts, no MTP blocks, layers from layer_types.
  folder_ = top_ / "port";
  SynthOptions options;
  options.format = {WeightFormat::kBf16, WeightFormat::kBf16};
  write_synthetic(folder_, tiny_config(), options);
  const Checkpoint separate = Checkpoint::open(folder_);
  const std::filesystem::path separate_folder = folder_;
  folder_ = top_ / "fused";
  std::filesystem::copy(separate_folder, folder_);
  edit([](EditableTensors& tensors) {
    EditableTensors renamed;
    for (auto& [name, tensor] : tensors) {
      if (const std::optional<std::string> port = port_name(name)) {
        renamed[*port] = tensor;
      }
    }
    const auto append = [](EditableTensor& to, const EditableTensor& from) {
      to.dtype = from.dtype;
      to.bytes.insert(to.bytes.end(), from.bytes.begin(), from.bytes.end());
    };
    for (int layer = 0; layer < 4; ++layer) {
      const std::string from = "layers." + std::to_string(layer) + ".ffn.experts.";
      const std::string to = "model.layers." + std::to_string(layer) + ".mlp.experts.";
      EditableTensor& gate_up = renamed[to + "gate_up_proj"];
      EditableTensor& down = renamed[to + "down_proj"];
      gate_up.shape = {8, 128, 128};
      down.shape = {8, 128, 64};
      for (int expert = 0; expert < 8; ++expert) {
        const std::string prefix = from + std::to_string(expert);
        append(gate_up, tensors[prefix + ".w1.weight"]);
        append(gate_up, tensors[prefix + ".w3.weight"]);
        append(down, tensors[prefix + ".w2.weight"]);
      }
    }
    tensors = renamed;
  });
  ModelConfig config = tiny_config();
  config.quantization_config.reset();
  std::string text = write_config_json(config);
  const std::string ratios = "\"compress_ratios\": [0, 4, 128, 4, 0]";
  ASSERT_NE(text.find(ratios), std::string::npos);
  text.replace(text.find(ratios),
               ratios.size(),
               R"("layer_types": ["sliding_attention", "compressed_sparse_attention",
                  "heavily_compressed_attention", "compressed_sparse_attention"])");
  write_text_file(folder_ / "config.json", text);
  const Checkpoint fused = Checkpoint::open(folder_);
  EXPECT_EQ(fused.config().num_nextn_predict_layers, 0);
  EXPECT_EQ(fused.expert_format(), WeightFormat::kBf16);
  for (const Parameter& parameter : published.parameters()) {
    if (parameter.kind == ParameterKind::kTable) {
      continue;
    }
    EXPECT_EQ(values_of(exchange, parameter), values_of(published, parameter)) << parameter.name;
    if (fused.contains(parameter.name)) {
      EXPECT_EQ(values_of(fused, parameter), values_of(separate, parameter)) << parameter.name;
    } else {
      EXPECT_TRUE(parameter.name.starts_with("mtp.")) << parameter.name;
    }
  }
  edit([](EditableTensors& tensors) {
    tensors["model.layers.0.mlp.experts.down_proj"].shape = {4, 256, 64};
  });
  EXPECT_THAT(open_error(), HasSubstr("expected [8, 128, 64]"));
}

class ShardedCheckpointTest : public ModelFolderTest {
 protected:
  void SetUp() override {
    ModelFolderTest::SetUp();
    SynthOptions options;
    options.max_shard_bytes = 300'000;
    write_synthetic(folder_, tiny_config(), options);
  }
  void replace_in_index(const std::string& from, const std::string& to) {
    const std::filesystem::path path = folder_ / "model.safetensors.index.json";
    std::string text = read_text_file(path);
    ASSERT_NE(text.find(from), std::string::npos);
    text.replace(text.find(from), from.size(), to);
    write_text_file(path, text);
  }
};

TEST_F(ShardedCheckpointTest, LoadsWhatOneFileHolds) {
  EXPECT_TRUE(std::filesystem::exists(folder_ / "model.safetensors.index.json"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "model.safetensors"));
  const Checkpoint sharded = Checkpoint::open(folder_);
  write_synthetic(top_ / "whole", tiny_config(), {});
  const Checkpoint whole = Checkpoint::open(top_ / "whole");
  EXPECT_EQ(sharded.total_bytes(), whole.total_bytes());
  for (const Parameter& parameter : whole.parameters()) {
    if (parameter.kind != ParameterKind::kTable) {
      EXPECT_EQ(values_of(sharded, parameter), values_of(whole, parameter));
    }
  }
}

TEST_F(ShardedCheckpointTest, MissingShardIsNamedWithATensor) {
  std::filesystem::path victim;
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    if (entry.path().filename().string().starts_with("model-00002-of")) {
      victim = entry.path();
    }
  }
  std::filesystem::remove(victim);
  EXPECT_THAT(open_error(), AllOf(HasSubstr(victim.filename().string()), HasSubstr("layers.0.")));
}

TEST_F(ShardedCheckpointTest, IndexAndFilesMustAgree) {
  replace_in_index("\"hc_head_fn\":", "\"hc_head_fx\":");
  EXPECT_THAT(open_error(), HasSubstr("hc_head_f"));
  replace_in_index("\"hc_head_fx\":", "\"hc_head_fn\":");
  EXPECT_EQ(open_error(), "no error");
  replace_in_index("\"total_size\":", "\"total_size\":9");
  EXPECT_THAT(open_error(), HasSubstr("total_size is 9"));
  replace_in_index("\"total_size\":9", "\"total_size\":");
  replace_in_index("model-00001-of", "../model-00001-of");
  EXPECT_THAT(open_error(), HasSubstr("is not a file name"));
  replace_in_index("{", "");
  EXPECT_THAT(open_error(), HasSubstr("not valid JSON"));
}

TEST_F(ModelFolderTest, FolderWithoutWeightsOrConfigIsRefused) {
  EXPECT_THAT(open_error(), HasSubstr("not a folder"));
  std::filesystem::create_directories(folder_);
  EXPECT_THAT(open_error(), HasSubstr("config.json"));
  write_text_file(folder_ / "config.json", write_config_json(tiny_config()));
  EXPECT_THAT(open_error(), HasSubstr("model.safetensors"));
}

TEST(GenerationConfigTest, ReadsDefaultsAndRefusesWrongValues) {
  const ModelConfig config = flash_config();
  const GenerationConfig generation = parse_generation_config(
      R"({"_from_model_config": true, "bos_token_id": 0, "eos_token_id": 1, "do_sample": true,
          "temperature": 1.0, "top_p": 0.95, "transformers_version": "4.46.3"})",
      "generation_config.json",
      config);
  EXPECT_EQ(generation.top_p, 0.95);
  EXPECT_EQ(generation.eos_token_ids, std::vector<int64_t>{1});
  EXPECT_FALSE(generation.chat_profile.has_value());
  const auto error_of = [&](const char* text) -> std::string {
    try {
      parse_generation_config(text, "generation_config.json", config);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(error_of(R"({"eos_token_id": [1, 2], "chat_profile": "v4-0731"})"), "no error");
  EXPECT_THAT(error_of(R"({"chat_profile": "v5"})"), HasSubstr("chat_profile"));
  EXPECT_THAT(error_of(R"({"top_p": 0})"), HasSubstr("top_p"));
  EXPECT_THAT(error_of(R"({"temperature": -1})"), HasSubstr("temperature"));
  EXPECT_THAT(error_of(R"({"eos_token_id": 200000})"), HasSubstr("eos_token_id"));
  EXPECT_THAT(error_of(R"({"eos_token_id": []})"), HasSubstr("eos_token_id"));
}

}  // namespace
}  // namespace baleen::weights
