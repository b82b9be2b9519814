#include "weights/shard_bytes.h"

#include <fmt/format.h>

#include "base/error.h"

namespace baleen::weights {

bool is_split(const Parameter& parameter) {
  if (parameter.kind == ParameterKind::kExpertMatrix) {
    return true;
  }
  for (const char* name : {"embed.weight",
                           "head.weight",
                           ".wq_b.weight",
                           ".wo_a.weight",
                           ".wo_b.weight",
                           ".weights_proj.weight",
                           ".attn_sink"}) {
    if (parameter.name.ends_with(name)) {
      return true;
    }
  }
  return false;
}

int64_t rank_bytes(const ModelConfig& config, const CheckpointFormat& format, int64_t num_ranks) {
  const auto require_whole = [num_ranks](int64_t count, const char* key) {
    if (num_ranks < 1 || count % num_ranks != 0) {
      throw ConfigError(
          fmt::format("config: {} ranks do not divide {} ({})", num_ranks, key, count));
    }
  };
  require_whole(config.num_attention_heads, "num_attention_heads");
  require_whole(config.o_groups, "o_groups");
  require_whole(config.n_routed_experts, "n_routed_experts");
  int64_t split = 0;
  int64_t replicated = 0;
  for (const Parameter& parameter : parameter_inventory(config)) {
    for (const TensorSpec& tensor : stored_forms(parameter, format.format_of(parameter.kind))) {
      (is_split(parameter) ? split : replicated) += tensor.num_bytes();
    }
  }
  return replicated + (split + num_ranks - 1) / num_ranks;
}

}  // namespace baleen::weights
