#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"
#include "base/model_config.h"
#include "base/process_figures.h"
#include "base/result.h"
#include "base/strong_id.h"

namespace baleen {
namespace {

TEST(StrongIdTest, ComparesAndStartsInvalid) {
  EXPECT_FALSE(TokenPos().valid());
  EXPECT_LT(TokenPos(1), TokenPos(2));
  static_assert(!std::is_convertible_v<TokenPos, RequestSlot>);
  static_assert(!std::is_convertible_v<int, TokenPos>);
}

TEST(ResultTest, HoldsValueOrStatus) {
  Result<int> good = 4;
  EXPECT_TRUE(good.ok());
  EXPECT_EQ(*good, 4);
  Result<int> bad = Status::invalid("too long", "prompt", "context_length_exceeded");
  EXPECT_FALSE(bad.ok());
  EXPECT_EQ(bad.status().param, "prompt");
  EXPECT_EQ(bad.status().api_code, "context_length_exceeded");
}

TEST(ResultDeathTest, ReadingAMissingValueAborts) {
  Result<int> bad = Status::invalid("too long");
  EXPECT_DEATH(bad.value(), "too long");
}

TEST(CheckDeathTest, PrintsConditionValuesAndPlace) {
  const int k = 3;
  EXPECT_DEATH(BALEEN_CHECK(k < 2, "k={}", k), "base_test.cpp.*check failed: k < 2 k=3");
}

TEST(LogTest, ParsesLevelNames) {
  log::Level level{};
  EXPECT_TRUE(log::parse_level("warn", level));
  EXPECT_EQ(level, log::Level::kWarn);
  EXPECT_FALSE(log::parse_level("loud", level));
}

ModelConfig small_config() {
  ModelConfig config;
  config.vocab_size = 32;
  config.hidden_size = 16;
  config.num_hidden_layers = 2;
  config.num_nextn_predict_layers = 1;
  config.num_attention_heads = 4;
  config.head_dim = 16;
  config.qk_rope_head_dim = 8;
  config.q_lora_rank = 10;
  config.o_groups = 2;
  config.o_lora_rank = 6;
  config.sliding_window = 8;
  config.index_n_heads = 3;
  config.index_head_dim = 16;
  config.index_topk = 3;
  config.n_routed_experts = 6;
  config.num_experts_per_tok = 2;
  config.n_shared_experts = 1;
  config.moe_intermediate_size = 12;
  config.swiglu_limit = 0.7;
  config.hc_mult = 4;
  config.hc_sinkhorn_iters = 20;
  config.max_position_embeddings = 1024;
  config.layers = {
      {LayerKind::kSwa, 0, true}, {LayerKind::kC4, 4, false}, {LayerKind::kSwa, 0, false}};
  return config;
}

std::string validation_error(const ModelConfig& config) {
  try {
    validate(config);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(ModelConfigTest, AcceptsASmallConfigAndCountsKinds) {
  const ModelConfig config = small_config();
  EXPECT_EQ(validation_error(config), "");
  EXPECT_EQ(config.count_layers(LayerKind::kC4), 1);
  EXPECT_EQ(config.count_layers(LayerKind::kSwa), 1);
}

TEST(ModelConfigTest, NamesTheKeyAtFault) {
  ModelConfig config = small_config();
  config.hidden_size = 0;
  EXPECT_THAT(validation_error(config), testing::HasSubstr("hidden_size"));
  config = small_config();
  config.layers.pop_back();
  EXPECT_THAT(validation_error(config),
              testing::HasSubstr("compress_ratios describes 2 layers, expected 3"));
  config = small_config();
  config.layers[2] = {LayerKind::kC4, 4, false};
  EXPECT_THAT(validation_error(config), testing::HasSubstr("entry 2 belongs to an MTP block"));
  config = small_config();
  config.o_groups = 3;
  EXPECT_THAT(validation_error(config), testing::HasSubstr("o_groups (3) must divide"));
  config = small_config();
  config.index_head_dim = 24;
  EXPECT_THAT(validation_error(config),
              testing::HasSubstr("index_head_dim must be a power of two"));
}

TEST(ProcessFiguresTest, PeakIsNotBelowNowAndAgeGrows) {
  const double now = process_memory_bytes("VmRSS");
  EXPECT_GT(now, 1e6);
  EXPECT_LT(now, 1e12);
  EXPECT_GE(process_memory_bytes("VmHWM"), now);
  EXPECT_EQ(process_memory_bytes("VmNothing"), 0.0);
  const double age = process_age_s();
  EXPECT_GT(age, 0.0);
  EXPECT_LT(age, 3600.0);
  EXPECT_GE(process_age_s(), age);
}

}  // namespace
}  // namespace baleen
