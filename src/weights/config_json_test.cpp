#include "weights/config_json.h"

#include <boost/json.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "weights/model_presets.h"

namespace baleen::weights {
namespace {

namespace json = boost::json;
using testing::ElementsAre;
using testing::HasSubstr;

json::object published(const ModelConfig& config) {
  return json::parse(write_config_json(config)).get_object();
}

ParsedConfig parse(const json::object& object) {
  return parse_config_json(json::serialize(object), "config.json");
}

std::string error_of(const json::object& object) {
  try {
    parse(object);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

/// Equal in everything a config file says.
void expect_equal(const ModelConfig& a, const ModelConfig& b) {
  EXPECT_EQ(write_config_json(a), write_config_json(b));
  ASSERT_EQ(a.layers.size(), b.layers.size());
  for (std::size_t i = 0; i < a.layers.size(); ++i) {
    EXPECT_EQ(a.layers[i].kind, b.layers[i].kind) << i;
    EXPECT_EQ(a.layers[i].ratio, b.layers[i].ratio) << i;
    EXPECT_EQ(a.layers[i].hash_routed, b.layers[i].hash_routed) << i;
  }
}

TEST(ConfigJsonTest, PresetsSurviveARoundTrip) {
  for (const std::string& name : preset_names()) {
    const ModelConfig config = preset_config(name);
    const ParsedConfig parsed = parse(published(config));
    EXPECT_TRUE(parsed.unknown_keys.empty());
    EXPECT_FALSE(parsed.port_form);
    expect_equal(parsed.config, config);
  }
  EXPECT_THROW(preset_config("flush"), ConfigError);
}

TEST(ConfigJsonTest, PublishedSchedules) {
  const ModelConfig flash = flash_config();
  EXPECT_EQ(flash.layers.size(), 44U);
  EXPECT_EQ(flash.count_layers(LayerKind::kSwa), 2);
  EXPECT_EQ(flash.count_layers(LayerKind::kC4), 21);
  EXPECT_EQ(flash.count_layers(LayerKind::kC128), 20);
  EXPECT_EQ(flash.layers[42].ratio, 4);
  EXPECT_EQ(flash.layers[43].ratio, 0);
  const ModelConfig pro = pro_config();
  EXPECT_EQ(pro.layers.size(), 62U);
  EXPECT_EQ(pro.count_layers(LayerKind::kC4), 30);
  EXPECT_EQ(pro.count_layers(LayerKind::kC128), 31);
  EXPECT_EQ(pro.layers[0].ratio, 128);
  EXPECT_EQ(pro.layers[60].ratio, 4);
}

TEST(ConfigJsonTest, ReadsTheFormOfThePort) {
  json::object object = published(flash_config());
  for (const char* key : {"compress_ratios",
                          "num_hash_layers",
                          "qk_rope_head_dim",
                          "rope_theta",
                          "compress_rope_theta",
                          "rope_scaling"}) {
    object.erase(key);
  }
  json::array types;
  json::array mlp_types;
  for (int i = 0; i < 43; ++i) {
    types.emplace_back(i < 2        ? "sliding_attention"
                       : i % 2 == 0 ? "compressed_sparse_attention"
                                    : "heavily_compressed_attention");
    mlp_types.emplace_back(i < 3 ? "hash_moe" : "moe");
  }
  object["layer_types"] = types;
  object["mlp_layer_types"] = mlp_types;
  object["compress_rates"] = {{"compressed_sparse_attention", 4},
                              {"heavily_compressed_attention", 128}};
  object["partial_rotary_factor"] = 0.125;
  object["rope_parameters"] = {
      {"main", {{"rope_type", "default"}, {"rope_theta", 10000}, {"partial_rotary_factor", 0.125}}},
      {"compress",
       {{"rope_type", "yarn"},
        {"factor", 16},
        {"original_max_position_embeddings", 65536},
        {"beta_fast", 32},
        {"beta_slow", 1},
        {"rope_theta", 160000},
        {"attention_factor", 1.0},
        {"partial_rotary_factor", 0.125}}}};
  const ParsedConfig parsed = parse(object);
  EXPECT_TRUE(parsed.port_form);
  EXPECT_TRUE(parsed.unknown_keys.empty());
  expect_equal(parsed.config, flash_config());

  object["layer_types"].as_array()[5] = "full_attention";
  EXPECT_THAT(error_of(object), HasSubstr("full_attention"));
  object["layer_types"].as_array().pop_back();
  EXPECT_THAT(error_of(object), HasSubstr("expected 43 entries"));
}

TEST(ConfigJsonTest, RatiosOfTheToyGoThroughThePortForm) {
  ModelConfig toy = tiny_config();
  toy.layers = {{LayerKind::kSwa, 0, true},
                {LayerKind::kC4, 4, false},
                {LayerKind::kC128, 16, false},
                {LayerKind::kC4, 4, false},
                {LayerKind::kSwa, 0, false}};
  const ParsedConfig parsed = parse(published(toy));
  EXPECT_TRUE(parsed.port_form);
  expect_equal(parsed.config, toy);
  toy.layers[0].hash_routed = false;
  toy.layers[3].hash_routed = true;
  toy.layers[2].ratio = 128;
  expect_equal(parse(published(toy)).config, toy);
}

TEST(ConfigJsonTest, ReadsTheKeysOfTheReferenceProgram) {
  json::object object = {{"vocab_size", 129280},
                         {"dim", 4096},
                         {"moe_inter_dim", 2048},
                         {"n_layers", 43},
                         {"n_hash_layers", 3},
                         {"n_mtp_layers", 1},
                         {"n_heads", 64},
                         {"n_routed_experts", 256},
                         {"n_shared_experts", 1},
                         {"n_activated_experts", 6},
                         {"score_func", "sqrtsoftplus"},
                         {"route_scale", 1.5},
                         {"swiglu_limit", 10.0},
                         {"q_lora_rank", 1024},
                         {"head_dim", 512},
                         {"rope_head_dim", 64},
                         {"o_groups", 8},
                         {"o_lora_rank", 1024},
                         {"window_size", 128},
                         {"original_seq_len", 65536},
                         {"rope_theta", 10000},
                         {"rope_factor", 16},
                         {"beta_fast", 32},
                         {"beta_slow", 1},
                         {"index_n_heads", 64},
                         {"index_head_dim", 128},
                         {"index_topk", 512},
                         {"hc_mult", 4},
                         {"hc_sinkhorn_iters", 20},
                         {"dtype", "fp8"},
                         {"scale_fmt", "ue8m0"},
                         {"expert_dtype", "fp4"},
                         {"compress_rope_theta", 160000}};
  object["compress_ratios"] = published(flash_config())["compress_ratios"];
  const ParsedConfig parsed = parse(object);
  EXPECT_TRUE(parsed.unknown_keys.empty());
  expect_equal(parsed.config, flash_config());
}

TEST(ConfigJsonTest, ThetaMayBeNested) {
  json::object object = published(flash_config());
  object.erase("rope_theta");
  object["rope_scaling"].as_object()["rope_theta"] = 20000;
  EXPECT_EQ(parse(object).config.rope_theta, 20000.0);
  object["rope_parameters"] = object["rope_scaling"];
  object.erase("rope_scaling");
  const ModelConfig config = parse(object).config;
  EXPECT_EQ(config.rope_theta, 20000.0);
  ASSERT_TRUE(config.yarn.has_value());
  EXPECT_EQ(config.yarn->factor, 16.0);
}

TEST(ConfigJsonTest, RatioListTooShortIsNamedWithBothLengths) {
  json::object object = published(flash_config());
  object["compress_ratios"].as_array().pop_back();
  const std::string error = error_of(object);
  EXPECT_THAT(error, HasSubstr("compress_ratios"));
  EXPECT_THAT(error, HasSubstr("44"));
  EXPECT_THAT(error, HasSubstr("43"));
}

TEST(ConfigJsonTest, RatioOtherThanThePublishedOnesIsNamedByValue) {
  json::object object = published(flash_config());
  object["compress_ratios"].as_array()[7] = 8;
  const std::string error = error_of(object);
  EXPECT_THAT(error, HasSubstr("compress_ratios"));
  EXPECT_THAT(error, HasSubstr("entry 7 is 8"));
  object["compress_ratios"].as_array()[7] = 128;
  object["compress_ratios"].as_array()[43] = 4;
  EXPECT_THAT(error_of(object), HasSubstr("must be 0, got 4"));
}

TEST(ConfigJsonTest, RefusesWrongValuesByKey) {
  const auto with = [](const char* key, const json::value& value) {
    json::object object = published(flash_config());
    object[key] = value;
    return error_of(object);
  };
  EXPECT_THAT(with("hidden_act", "gelu"), HasSubstr("hidden_act: only \"silu\""));
  EXPECT_THAT(with("scoring_func", "sigmoid"), HasSubstr("scoring_func"));
  EXPECT_THAT(with("model_type", "deepseek_v3"), HasSubstr("model_type"));
  EXPECT_THAT(with("tie_word_embeddings", true), HasSubstr("tie_word_embeddings"));
  EXPECT_THAT(with("n_shared_experts", 2), HasSubstr("n_shared_experts"));
  EXPECT_THAT(with("hidden_size", "wide"), HasSubstr("hidden_size: expected an integer"));
  EXPECT_THAT(with("hidden_size", 4096.5), HasSubstr("hidden_size: expected an integer"));
  EXPECT_THAT(with("hidden_size", nullptr), HasSubstr("hidden_size: the key is missing"));
  EXPECT_THAT(with("swiglu_limit", "ten"), HasSubstr("swiglu_limit: expected a number"));
  EXPECT_THAT(with("expert_dtype", "int4"), HasSubstr("expert_dtype"));
  EXPECT_THAT(with("num_hash_layers", 44), HasSubstr("num_hash_layers"));
  EXPECT_THAT(with("dim", 5), HasSubstr("two spellings"));
  EXPECT_THAT(with("rope_scaling", {{"type", "linear"}}), HasSubstr("linear"));
  EXPECT_THAT(
      with("quantization_config", {{"quant_method", "fp8"}, {"weight_block_size", {32, 32}}}),
      HasSubstr("weight_block_size"));
  EXPECT_THROW(parse_config_json("{", "config.json"), ConfigError);
  EXPECT_THROW(parse_config_json("[1]", "config.json"), ConfigError);
}

TEST(ConfigJsonTest, UnknownKeysAreReportedNotRefused) {
  json::object object = published(flash_config());
  object["some_new_switch"] = true;
  object["_name_or_path"] = "x";
  EXPECT_THAT(parse(object).unknown_keys, ElementsAre("some_new_switch"));
}

TEST(ConfigJsonTest, DsparkCheckpointsRunWithoutTheirDrafters) {
  json::object object = published(flash_config());
  object["dspark_block_size"] = 8;
  object["num_nextn_predict_layers"] = 3;
  for (int i = 0; i < 2; ++i) {
    object["compress_ratios"].as_array().emplace_back(0);
  }
  const ParsedConfig parsed = parse(object);
  EXPECT_TRUE(parsed.has_dspark_keys);
  EXPECT_EQ(parsed.config.num_nextn_predict_layers, 0);
  EXPECT_EQ(parsed.config.layers.size(), 43U);
}

}  // namespace
}  // namespace baleen::weights
