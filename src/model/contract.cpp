#include "model/contract.h"

#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "weights/digest.h"
#include "weights/weight_stream.h"

namespace baleen::model {
namespace {

// To be raised with a change of the operator's values, be it in the last bit.
constexpr std::array<std::pair<std::string_view, int>, 14> kOperators = {{
    {"linear", 1},
    {"rms_norm", 1},
    {"hyper_connection", 1},
    {"sinkhorn", 1},
    {"rope", 1},
    {"compressor_pool", 1},
    {"indexer_scores", 1},
    {"indexer_topk", 1},
    {"sparse_attention", 1},
    {"grouped_projection", 1},
    {"router", 1},
    {"experts", 1},
    {"quantisers", 1},
    {"log_softmax", 1},
}};

const char* name_of(ops::LinearFormat format) {
  switch (format) {
    case ops::LinearFormat::kPlain:
      return "plain";
    case ops::LinearFormat::kFp8:
      return "fp8_128x128_ue8m0";
    case ops::LinearFormat::kFp4:
      return "fp4_1x32_ue8m0";
  }
  return "";
}

const char* instructions() {
#if defined(__AVX512F__)
  return "x86_avx512";
#elif defined(__AVX2__)
  return "x86_avx2";
#elif defined(__x86_64__)
  return "x86_64";
#elif defined(__aarch64__)
  return "arm64";
#else
  return "other";
#endif
}

class Lines {
 public:
  void add(std::string_view key, std::string_view value) {
    text_.append(key).append(" ").append(value).append("\n");
  }
  void add(std::string_view key, int value) { add(key, std::to_string(value)); }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

void add_numerics(const ops::Numerics& numerics, Lines& lines) {
  lines.add("round_activations", numerics.round_activations);
  lines.add("shared_expert_clamp", numerics.shared_expert_clamp);
  lines.add("linear_activation", static_cast<int>(numerics.linear_activation));
  lines.add("kv_s8", numerics.kv_s8);
  lines.add("indexer_quant", static_cast<int>(numerics.indexer_quant));
  lines.add("indexer_hadamard", numerics.indexer_hadamard);
  lines.add("index_score", static_cast<int>(numerics.index_score));
  lines.add("query_norm", static_cast<int>(numerics.query_norm));
  lines.add("routing_weight", static_cast<int>(numerics.routing_weight));
  lines.add("wo_a_activation", static_cast<int>(numerics.wo_a_activation));
  lines.add("router_denominator_eps", std::to_string(numerics.router_denominator_eps));
  lines.add("rope_table", static_cast<int>(numerics.rope_table));
}

}  // namespace

std::string execution_contract(const ModelParameters& params, const ops::Numerics& numerics) {
  Lines lines;
  const bool is_cpu = !params.embed.defined() || params.embed.device().is_cpu();
  lines.add("backend", is_cpu ? "cpu" : "cuda");
  lines.add("instructions", instructions());
  lines.add("compute",
            params.embed.defined() && params.embed.scalar_type() == at::kDouble ? "f64" : "f32");
  // Eight partial sums folded as a balanced tree, or as the matrix library likes.
  lines.add("sums", numerics.invariant() ? "lanes_8_tree" : "library");
  lines.add("ties", "higher_first_then_lower_index_nan_last");
  lines.add("attention_order", "window_oldest_first_then_entries_ascending_then_sink");
  lines.add("expert_order", "ascending_then_shared");
  for (const auto& [op, version] : kOperators) {
    lines.add(op, version);
  }
  add_numerics(numerics, lines);
  // Whether MTP blocks are there changes no token of the main model.
  ModelParameters shown = params;
  shown.mtp.clear();
  for_each_matrix_or_tensor(shown,
                            [&](const ParameterInfo& info, at::Tensor&, ops::LinearFormat* format) {
                              if (format != nullptr) {
                                lines.add(info.name, name_of(*format));
                              }
                            });
  lines.add("config", weights::model_digest(params.config));
  return lines.take();
}

std::string contract_digest(const ModelParameters& params, const ops::Numerics& numerics) {
  return weights::text_digest(execution_contract(params, numerics));
}

}  // namespace baleen::model
