#include "weights/shard_bytes.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "weights/model_presets.h"

namespace baleen::weights {
namespace {

TEST(ShardBytesTest, RanksShareTheSplitTensorsAndRepeatTheRest) {
  const ModelConfig config = flash_4layer_config();
  int64_t split = 0;
  int64_t total = 0;
  for (const Parameter& parameter : parameter_inventory(config)) {
    for (const TensorSpec& tensor :
         stored_forms(parameter, CheckpointFormat{}.format_of(parameter.kind))) {
      split += is_split(parameter) ? tensor.num_bytes() : 0;
      total += tensor.num_bytes();
    }
  }
  EXPECT_EQ(rank_bytes(config, {}, 1), total);
  EXPECT_EQ(rank_bytes(config, {}, 4), total - split + split / 4);
  EXPECT_GT(split, total / 2);
  EXPECT_THROW(rank_bytes(config, {}, 3), ConfigError);
  EXPECT_THROW(rank_bytes(config, {}, 0), ConfigError);
  EXPECT_TRUE(is_split({"layers.2.attn.indexer.wq_b.weight", ParameterKind::kMatrix, {}, {}}));
  EXPECT_FALSE(is_split({"layers.2.attn.wq_a.weight", ParameterKind::kMatrix, {}, {}}));
  EXPECT_FALSE(is_split({"layers.2.ffn.shared_experts.w1.weight", ParameterKind::kMatrix, {}, {}}));
}

}  // namespace
}  // namespace baleen::weights
