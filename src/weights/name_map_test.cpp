#include "weights/name_map.h"

#include <set>

#include <gtest/gtest.h>

#include "weights/model_presets.h"
#include "weights/tensor_inventory.h"

namespace baleen::weights {
namespace {

std::string normal(std::string_view stored) {
  return normalise_name(stored, 43).name;
}

TEST(NameMapTest, EveryNameComesBackFromEveryScheme) {
  for (const ModelConfig& config : {flash_4layer_config(), tiny_config()}) {
    const int64_t layers = config.num_hidden_layers;
    std::set<std::string> exchange_names;
    std::size_t in_port = 0;
    for (const TensorSpec& tensor : stored_tensors(config, {})) {
      EXPECT_EQ(normalise_name(tensor.name, layers).name, tensor.name);
      const std::string exchange = exchange_name(tensor.name, layers);
      EXPECT_TRUE(exchange_names.insert(exchange).second) << exchange;
      EXPECT_EQ(normalise_name(exchange, layers).name, tensor.name) << exchange;
      if (const std::optional<std::string> port = port_name(tensor.name)) {
        EXPECT_EQ(normalise_name(*port, layers).name, tensor.name) << *port;
        ++in_port;
      }
    }
    EXPECT_GT(in_port, 100U);
  }
}

TEST(NameMapTest, NamesOfThePort) {
  EXPECT_EQ(port_name("embed.weight"), "model.embed_tokens.weight");
  EXPECT_EQ(port_name("head.weight"), "lm_head.weight");
  EXPECT_EQ(port_name("norm.weight"), "model.norm.weight");
  EXPECT_EQ(port_name("hc_head_fn"), "model.hc_head.hc_fn");
  EXPECT_EQ(port_name("layers.3.hc_attn_base"), "model.layers.3.attn_hc.base");
  EXPECT_EQ(port_name("layers.3.hc_ffn_scale"), "model.layers.3.ffn_hc.scale");
  EXPECT_EQ(port_name("layers.3.ffn_norm.weight"),
            "model.layers.3.post_attention_layernorm.weight");
  EXPECT_EQ(port_name("layers.3.attn.q_norm.weight"), "model.layers.3.self_attn.q_a_norm.weight");
  EXPECT_EQ(port_name("layers.3.attn.attn_sink"), "model.layers.3.self_attn.sinks");
  EXPECT_EQ(port_name("layers.3.attn.compressor.ape"),
            "model.layers.3.self_attn.compressor.position_bias");
  EXPECT_EQ(port_name("layers.2.attn.indexer.wq_b.scale"),
            "model.layers.2.self_attn.compressor.indexer.q_b_proj.weight_scale_inv");
  EXPECT_EQ(port_name("layers.2.attn.indexer.weights_proj.weight"),
            "model.layers.2.self_attn.compressor.indexer.scorer.weights_proj.weight");
  EXPECT_EQ(port_name("layers.2.attn.indexer.compressor.norm.weight"),
            "model.layers.2.self_attn.compressor.indexer.kv_norm.weight");
  EXPECT_EQ(port_name("layers.3.ffn.gate.bias"), "model.layers.3.mlp.gate.e_score_correction_bias");
  EXPECT_EQ(port_name("layers.3.ffn.shared_experts.w3.weight"),
            "model.layers.3.mlp.shared_experts.up_proj.weight");
  EXPECT_EQ(port_name("layers.3.ffn.experts.0.w1.weight"), std::nullopt);
  EXPECT_EQ(port_name("mtp.0.enorm.weight"), std::nullopt);
}

TEST(NameMapTest, NamesOfTheExchange) {
  EXPECT_EQ(exchange_name("layers.0.ffn.gate.tid2eid", 43), "model.layers.0.mlp.topk.tid2eid");
  EXPECT_EQ(exchange_name("layers.0.ffn.experts.7.w2.scale", 43),
            "model.layers.0.mlp.experts.7.down_proj.weight_scale_inv");
  EXPECT_EQ(exchange_name("layers.2.attn.indexer.compressor.wkv.weight", 43),
            "model.layers.2.self_attn.indexer.compressor.wkv.weight");
  EXPECT_EQ(exchange_name("hc_head_base", 43), "model.hc_head_base");
  EXPECT_EQ(exchange_name("head.weight", 43), "lm_head.weight");
  EXPECT_EQ(exchange_name("mtp.0.norm.weight", 43), "model.layers.43.shared_head.norm.weight");
  EXPECT_EQ(exchange_name("mtp.0.e_proj.weight", 43), "model.layers.43.e_proj.weight");
  EXPECT_EQ(exchange_name("mtp.0.hc_head_fn", 43), "model.layers.43.hc_head_fn");
}

TEST(NameMapTest, OlderAndMixedSpellings) {
  EXPECT_EQ(normal("model.layers.1.self_attn.q_a_layernorm.weight"), "layers.1.attn.q_norm.weight");
  EXPECT_EQ(normal("layers.1.self_attn.kv_a_layernorm.weight"), "layers.1.attn.kv_norm.weight");
  EXPECT_EQ(normal("model.layers.2.self_attn.compressor.indexer.weights_proj.weight"),
            "layers.2.attn.indexer.weights_proj.weight");
  EXPECT_EQ(normal("hc_head.fn"), "hc_head_fn");
  EXPECT_EQ(normal("hc_head_fn"), "hc_head_fn");
  EXPECT_EQ(normal("model.layers.1.mlp.gate_proj.weight"), "layers.1.ffn.gate_proj.weight")
      << "a dense MLP is not a name of this architecture";
}

TEST(NameMapTest, OneWordUnderTwoParents) {
  EXPECT_EQ(normal("layers.2.self_attn.kv_proj.weight"), "layers.2.attn.wkv.weight");
  EXPECT_EQ(normal("layers.2.self_attn.compressor.kv_proj.weight"),
            "layers.2.attn.compressor.wkv.weight");
  EXPECT_EQ(normal("layers.2.self_attn.compressor.gate_proj.weight"),
            "layers.2.attn.compressor.wgate.weight");
  EXPECT_EQ(normal("layers.2.self_attn.compressor.indexer.gate_proj.weight"),
            "layers.2.attn.indexer.compressor.wgate.weight");
  EXPECT_EQ(normal("layers.2.mlp.experts.0.gate_proj.weight"), "layers.2.ffn.experts.0.w1.weight");
  EXPECT_EQ(normal("layers.2.self_attn.kv_norm.weight"), "layers.2.attn.kv_norm.weight");
  EXPECT_EQ(normal("layers.2.self_attn.compressor.kv_norm.weight"),
            "layers.2.attn.compressor.norm.weight");
}

TEST(NameMapTest, FusedExpertsAndCopies) {
  const NormalName gate_up = normalise_name("model.layers.5.mlp.experts.gate_up_proj", 43);
  EXPECT_EQ(gate_up.name, "layers.5.ffn.experts.");
  EXPECT_EQ(gate_up.fused, FusedExperts::kGateUp);
  EXPECT_FALSE(gate_up.fused_scale);
  const NormalName down = normalise_name("model.layers.5.mlp.experts.down_proj_scale_inv", 43);
  EXPECT_EQ(down.fused, FusedExperts::kDown);
  EXPECT_TRUE(down.fused_scale);
  EXPECT_TRUE(normalise_name("mtp.0.emb.tok_emb.weight", 43).dropped);
  EXPECT_TRUE(normalise_name("mtp.0.head.weight", 43).dropped);
  EXPECT_TRUE(normalise_name("model.layers.43.embed_tokens.weight", 43).dropped);
  EXPECT_TRUE(normalise_name("model.layers.43.shared_head.head.weight", 43).dropped);
  EXPECT_FALSE(normalise_name("mtp.0.hc_head_fn", 43).dropped);
}

}  // namespace
}  // namespace baleen::weights
