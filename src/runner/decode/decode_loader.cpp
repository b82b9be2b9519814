#include "runner/decode/decode_loader.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <functional>
#include <span>
#include <string>
#include <thread>

#include "base/check.h"
#include "base/error.h"
#include "kernels/experts/expert_packing.h"
#include "kernels/linear/linear_pack.h"
#include "kernels/step_metadata/step_metadata.h"
#include "numerics/bfloat16.h"

namespace baleen::runner {
namespace {

using kernels::WeightFormat;

constexpr int64_t kC128BlockRows = 128;  // rows of a block that full pages share

/// work(0 .. count - 1), spread over the processors. The first exception is thrown again.
void in_threads(int64_t count, const std::function<void(int64_t)>& work) {
  const int64_t threads = std::clamp<int64_t>(std::thread::hardware_concurrency(), 1, count);
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(threads));
  {
    std::vector<std::jthread> running;
    for (int64_t t = 0; t < threads; ++t) {
      running.emplace_back([&, t] {
        try {
          for (int64_t i = t; i < count; i += threads) {
            work(i);
          }
        } catch (...) {
          errors[static_cast<std::size_t>(t)] = std::current_exception();
        }
      });
    }
  }
  for (const std::exception_ptr& error : errors) {
    if (error) {
      std::rethrow_exception(error);
    }
  }
}

class Loader {
 public:
  Loader(const weights::Checkpoint& checkpoint, DecodeMemory& memory)
      : checkpoint_(checkpoint), config_(checkpoint.config()), memory_(memory) {}

  std::vector<float> values(const std::string& name) const {
    const std::vector<int64_t>& shape = checkpoint_.stored(name).shape;
    int64_t count = 1;
    for (const int64_t size : shape) {
      count *= size;
    }
    std::vector<float> out(static_cast<std::size_t>(count));
    checkpoint_.read_float(name, out);
    return out;
  }
  const float* floats(const std::string& name) { return memory_.upload(values(name)); }

  /// Codes and scales as the file has them.
  const weights::StoredParameter& stored(const std::string& name,
                                         weights::WeightFormat format) const {
    const weights::StoredParameter& parameter = checkpoint_.stored(name);
    if (parameter.format != format) {
      throw CheckpointError(parameter.source + ": stored as " +
                            weights::weight_format_name(parameter.format) +
                            ", the kernels read it as " + weights::weight_format_name(format));
    }
    return parameter;
  }
  static std::span<const uint8_t> codes(const weights::StoredParameter& parameter) {
    return {reinterpret_cast<const uint8_t*>(parameter.values.data()), parameter.values.size()};
  }

  DecodeMatrix packed(std::span<const uint8_t> row_major,
                      int64_t outputs,
                      int64_t inputs,
                      WeightFormat format) {
    const kernels::WeightShape shape{outputs, inputs, format};
    std::vector<uint8_t> bytes(static_cast<std::size_t>(kernels::packed_weight_bytes(shape)));
    kernels::pack_weight(shape, row_major, bytes);
    DecodeMatrix matrix;
    matrix.outputs = static_cast<int32_t>(outputs);
    matrix.inputs = static_cast<int32_t>(inputs);
    matrix.format = format;
    matrix.weight = memory_.upload(bytes);
    return matrix;
  }

  DecodeMatrix fp8(const std::string& name, WeightFormat format = WeightFormat::kE4m3) {
    const weights::StoredParameter& parameter = stored(name, weights::WeightFormat::kFp8);
    DecodeMatrix matrix = packed(codes(parameter), parameter.shape[0], parameter.shape[1], format);
    matrix.scales = memory_.upload(parameter.scales);
    checkpoint_.report_read(name);
    return matrix;
  }

  /// Matrices of equal width one above the other, as bf16.
  DecodeMatrix bf16(const std::vector<std::string>& names) {
    std::vector<uint8_t> bytes;
    int64_t outputs = 0;
    int64_t inputs = 0;
    for (const std::string& name : names) {
      const std::vector<float> rows = values(name);
      outputs += checkpoint_.stored(name).shape[0];
      inputs = checkpoint_.stored(name).shape[1];
      for (const float value : rows) {
        const uint16_t code = numerics::bf16_from_float(value);
        const auto* begin = reinterpret_cast<const uint8_t*>(&code);
        bytes.insert(bytes.end(), begin, begin + sizeof(code));
      }
    }
    return packed(bytes, outputs, inputs, WeightFormat::kBf16);
  }

  const uint16_t* embedding(const std::string& name) {
    const std::vector<float> rows = values(name);
    std::vector<uint16_t> codes(rows.size());
    std::transform(rows.begin(), rows.end(), codes.begin(), numerics::bf16_from_float);
    return memory_.upload(codes);
  }

  DecodeHyper hyper(const std::string& name, const std::string& norm) {
    return {.fn = floats(name + "_fn"),
            .base = floats(name + "_base"),
            .scale = floats(name + "_scale"),
            .norm = floats(norm)};
  }

  DecodeCompressor compressor(const std::string& prefix) {
    return {.rows = bf16({prefix + "wkv.weight", prefix + "wgate.weight"}),
            .ape = floats(prefix + "ape"),
            .norm = floats(prefix + "norm.weight")};
  }

  kernels::ExpertMatrix expert(const std::string& name, weights::WeightFormat format) const {
    const weights::StoredParameter& parameter = stored(name, format);
    return {.codes = codes(parameter),
            .scales = parameter.scales,
            .rows = parameter.shape[0],
            .inputs = parameter.shape[1]};
  }

  DecodeExperts experts(const std::string& prefix) {
    constexpr auto kFp4 = weights::WeightFormat::kFp4;
    constexpr auto kFp8 = weights::WeightFormat::kFp8;
    const int64_t count = config_.n_routed_experts;
    const int64_t hidden = config_.hidden_size;
    const int64_t width = config_.moe_intermediate_size;
    const int64_t up_bytes = kernels::packed_expert_bytes(2 * width, hidden, false);
    const int64_t down_bytes = kernels::packed_expert_bytes(hidden, width, false);
    std::vector<std::byte> up(static_cast<std::size_t>(count * up_bytes));
    std::vector<std::byte> down(static_cast<std::size_t>(count * down_bytes));
    in_threads(count, [&](int64_t e) {
      const std::string name = prefix + "experts." + std::to_string(e) + ".";
      const auto one_up = kernels::pack_up_fp4(expert(name + "w1.weight", kFp4),
                                               expert(name + "w3.weight", kFp4),
                                               name + "w1.weight, w3");
      const auto one_down =
          kernels::pack_down_fp4(expert(name + "w2.weight", kFp4), name + "w2.weight");
      BALEEN_CHECK(static_cast<int64_t>(one_up.size()) == up_bytes &&
                       static_cast<int64_t>(one_down.size()) == down_bytes,
                   "{}: {} and {} bytes",
                   name,
                   one_up.size(),
                   one_down.size());
      std::copy(one_up.begin(), one_up.end(), up.begin() + e * up_bytes);
      std::copy(one_down.begin(), one_down.end(), down.begin() + e * down_bytes);
      for (const char* matrix : {"w1.weight", "w2.weight", "w3.weight"}) {
        checkpoint_.report_read(name + matrix);
      }
    });
    const std::string shared = prefix + "shared_experts.";
    DecodeExperts out;
    out.up = memory_.upload(up);
    out.down = memory_.upload(down);
    for (const char* matrix : {"w1.weight", "w2.weight", "w3.weight"}) {
      checkpoint_.report_read(shared + matrix);
    }
    out.shared_up = memory_.upload(kernels::pack_up_fp8(expert(shared + "w1.weight", kFp8),
                                                        expert(shared + "w3.weight", kFp8),
                                                        shared + "w1.weight, w3"));
    out.shared_down = memory_.upload(
        kernels::pack_down_fp8(expert(shared + "w2.weight", kFp8), shared + "w2.weight"));
    return out;
  }

  DecodeDraftEntry draft_entry(const std::string& prefix) {
    return {.e_proj = fp8(prefix + "e_proj.weight"),
            .h_proj = fp8(prefix + "h_proj.weight"),
            .enorm = floats(prefix + "enorm.weight"),
            .hnorm = floats(prefix + "hnorm.weight")};
  }

  DecodeLayer layer(const LayerSpec& spec, const std::string& prefix) {
    const std::string attn = prefix + "attn.";
    const std::string ffn = prefix + "ffn.";
    DecodeLayer out;
    out.spec = spec;
    out.hc_attn = hyper(prefix + "hc_attn", prefix + "attn_norm.weight");
    out.hc_ffn = hyper(prefix + "hc_ffn", prefix + "ffn_norm.weight");
    out.wq_a = fp8(attn + "wq_a.weight");
    out.wkv = fp8(attn + "wkv.weight");
    out.wq_b = fp8(attn + "wq_b.weight");
    out.wo_a = fp8(attn + "wo_a.weight", WeightFormat::kE4m3AsBf16);
    out.wo_b = fp8(attn + "wo_b.weight");
    out.q_norm = floats(attn + "q_norm.weight");
    out.kv_norm = floats(attn + "kv_norm.weight");
    out.sink = floats(attn + "attn_sink");
    if (spec.kind != LayerKind::kSwa) {
      out.main = compressor(attn + "compressor.");
    }
    if (spec.kind == LayerKind::kC4) {
      out.index = compressor(attn + "indexer.compressor.");
      out.index_wq_b = fp8(attn + "indexer.wq_b.weight");
      out.index_weights = bf16({attn + "indexer.weights_proj.weight"});
    }
    out.gate = bf16({ffn + "gate.weight"});
    if (spec.hash_routed) {
      std::vector<int64_t> table(
          static_cast<std::size_t>(config_.vocab_size * config_.num_experts_per_tok));
      checkpoint_.read_int64(ffn + "gate.tid2eid", table);
      out.hash_table = memory_.upload(std::vector<int32_t>(table.begin(), table.end()));
    } else {
      out.gate_bias = floats(ffn + "gate.bias");
    }
    out.experts = experts(ffn);
    return out;
  }

 private:
  const weights::Checkpoint& checkpoint_;
  const ModelConfig& config_;
  DecodeMemory& memory_;
};

}  // namespace

DecodeWeights load_decode_weights(const weights::Checkpoint& checkpoint,
                                  const DecodeFrequencies& frequencies,
                                  bool with_draft) {
  const ModelConfig& config = checkpoint.config();
  if (const std::string reason = decode_unsupported(config); !reason.empty()) {
    throw ConfigError(checkpoint.folder().string() + ": decode on kernels: " + reason);
  }
  DecodeWeights out;
  Loader loader(checkpoint, out.memory);
  DecodeModel& model = out.model;
  model.config = config;
  model.embed = loader.embedding("embed.weight");
  model.head = loader.bf16({"head.weight"});
  model.head_hyper = loader.hyper("hc_head", "norm.weight");
  const auto narrowed = [](const std::vector<double>& values) {
    return std::vector<float>(values.begin(), values.end());
  };
  model.plain_frequencies = out.memory.upload(narrowed(frequencies.plain));
  model.compressed_frequencies = out.memory.upload(narrowed(frequencies.compressed));
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    model.layers.push_back(loader.layer(config.layers[static_cast<std::size_t>(i)],
                                        "layers." + std::to_string(i) + "."));
  }
  if (with_draft) {
    const std::string prefix = "mtp.0.";
    DecodeModel& draft = out.draft.emplace(model);
    draft.config.layers = {config.mtp_layer(0)};
    draft.config.num_hidden_layers = 1;
    draft.head_hyper = loader.hyper(prefix + "hc_head", prefix + "norm.weight");
    draft.layers = {loader.layer(config.mtp_layer(0), prefix)};
    draft.draft_entry = loader.draft_entry(prefix);
  }
  return out;
}

void add_empty_pools(DecodeWeights& weights, const DecodePoolSizes& sizes) {
  DecodeMemory& memory = weights.memory;
  const ModelConfig& config = weights.model.config;
  const auto kv_pool = [&](int64_t pages, int64_t rows) {
    const int64_t bytes = kernels::kv_page_bytes(rows);
    return kernels::KvPoolView{memory.filled(pages * bytes, {}), bytes, static_cast<int32_t>(rows)};
  };
  const auto ring = [&](DecodeCompressor& compressor, int64_t rings, int32_t rows, int64_t width) {
    compressor.ring_size = rows;
    compressor.ring = reinterpret_cast<float*>(memory.filled(rings * rows * 2 * width * 4, {}));
  };
  weights.model.num_full_pages = sizes.full_pages;
  for (DecodeLayer& layer : weights.model.layers) {
    layer.window = kv_pool(sizes.window_pages, kernels::kPageTokens);
    if (layer.spec.kind == LayerKind::kC4) {
      layer.entries = kv_pool(sizes.full_pages, kC4PageEntries);
      const int64_t bytes =
          kernels::index_page_bytes(kernels::IndexKeyFormat::kFp4InFp8, kC4PageEntries);
      layer.index_keys = {memory.filled(sizes.full_pages * bytes, {}),
                          bytes,
                          static_cast<int32_t>(kC4PageEntries),
                          kernels::IndexKeyFormat::kFp4InFp8};
      ring(layer.main, sizes.window_pages, sizes.c4_ring, 2 * config.head_dim);
      ring(layer.index, sizes.window_pages, sizes.c4_ring, 2 * config.index_head_dim);
    } else if (layer.spec.kind == LayerKind::kC128) {
      layer.entries =
          kv_pool((sizes.full_pages * kC128PageEntries + kC128BlockRows - 1) / kC128BlockRows,
                  kC128BlockRows);
      ring(layer.main, sizes.max_requests, sizes.c128_ring, config.head_dim);
    }
  }
}

}  // namespace baleen::runner
