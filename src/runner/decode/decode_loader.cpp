#include "runner/decode/decode_loader.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>

#include "base/check.h"
#include "base/error.h"
#include "kernels/experts/expert_packing.h"
#include "kernels/linear/linear_pack.h"
#include "kernels/step_metadata/step_metadata.h"
#include "kernels/weight_packing/weight_packing.h"
#include "numerics/bfloat16.h"
#include "runner/decode/card_packer.h"

namespace baleen::runner {
namespace {

using kernels::WeightFormat;

constexpr int64_t kC128BlockRows = 128;  // rows of a block that full pages share

/// A piece of loading, run by one of several threads.
using LoadTask = std::function<void(CardPacker&)>;

/// All of them, by as many threads as there are processors, up to a number that keeps the card
/// busy. The first exception is thrown again; the others then end early.
void run_tasks(const std::vector<LoadTask>& tasks) {
  constexpr std::size_t kMostThreads = 16;
  const std::size_t threads = std::min<std::size_t>(
      tasks.size(), std::clamp<std::size_t>(std::thread::hardware_concurrency(), 1, kMostThreads));
  int device = 0;
  BALEEN_CUDA_CHECK(cudaGetDevice(&device));
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::exception_ptr error;
  {
    std::vector<std::jthread> running;
    for (std::size_t t = 0; t < threads; ++t) {
      running.emplace_back([&] {
        try {
          CardPacker packer(device);
          for (std::size_t i = next++; i < tasks.size(); i = next++) {
            tasks[i](packer);
          }
        } catch (...) {
          const std::scoped_lock lock(mutex);
          error = error ? error : std::current_exception();
          next = tasks.size();
        }
      });
    }
  }
  if (error) {
    std::rethrow_exception(error);
  }
}

std::span<const uint8_t> as_codes(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()};
}

class Loader {
 public:
  Loader(const weights::Checkpoint& checkpoint, DecodeMemory& memory)
      : checkpoint_(checkpoint), config_(checkpoint.config()), memory_(memory) {}

  /// Everything that was asked for is in place afterwards.
  void finish() {
    run_tasks(tasks_);
    tasks_.clear();
  }

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
  /// Room for a packed matrix, and tasks that fill it. `name`: reported as read by the last one;
  /// empty where that was done. `keep`: owner of `row_major`, if any.
  DecodeMatrix packed(std::span<const uint8_t> row_major,
                      int64_t outputs,
                      int64_t inputs,
                      WeightFormat format,
                      const std::string& name,
                      const std::shared_ptr<const std::vector<uint8_t>>& keep = nullptr) {
    const kernels::WeightShape shape{outputs, inputs, format};
    uint8_t* to = memory_.filled(kernels::packed_weight_bytes(shape), {});
    // In pieces, so that a large matrix is the work of several threads.
    const int64_t row_bytes = static_cast<int64_t>(row_major.size()) / outputs;
    const int64_t piece = std::max<int64_t>(1, CardPacker::kPieceBytes / 2 / row_bytes / 128) * 128;
    for (int64_t row = 0; row < outputs; row += piece) {
      const int64_t rows = std::min(piece, outputs - row);
      const bool last = row + rows == outputs;
      tasks_.emplace_back([=, this](CardPacker& packer) {
        static_cast<void>(keep);
        packer.weight({rows, inputs, format},
                      row_major.subspan(static_cast<std::size_t>(row * row_bytes),
                                        static_cast<std::size_t>(rows * row_bytes)),
                      to + row * row_bytes);
        if (last && !name.empty()) {
          report(name);
        }
      });
    }
    DecodeMatrix matrix;
    matrix.outputs = static_cast<int32_t>(outputs);
    matrix.inputs = static_cast<int32_t>(inputs);
    matrix.format = format;
    matrix.weight = to;
    return matrix;
  }

  DecodeMatrix fp8(const std::string& name, WeightFormat format = WeightFormat::kE4m3) {
    const weights::StoredParameter& parameter = stored(name, weights::WeightFormat::kFp8);
    DecodeMatrix matrix =
        packed(as_codes(parameter.values), parameter.shape[0], parameter.shape[1], format, name);
    matrix.scales = memory_.upload(parameter.scales);
    return matrix;
  }

  /// The parameter's bf16 bytes: those of the file, or `keep` owns them.
  std::span<const uint8_t> bf16_bytes(const std::string& name,
                                      std::shared_ptr<std::vector<uint8_t>>& keep) {
    const weights::StoredParameter& parameter = checkpoint_.stored(name);
    if (parameter.format == weights::WeightFormat::kBf16) {
      report(name);
      return as_codes(parameter.values);
    }
    const std::vector<float> rows = values(name);
    keep = std::make_shared<std::vector<uint8_t>>(rows.size() * sizeof(uint16_t));
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const uint16_t code = numerics::bf16_from_float(rows[i]);
      std::memcpy(keep->data() + i * sizeof(code), &code, sizeof(code));
    }
    return *keep;
  }

  /// Matrices of equal width one above the other, as bf16.
  DecodeMatrix bf16(const std::vector<std::string>& names) {
    if (names.size() == 1) {
      std::shared_ptr<std::vector<uint8_t>> keep;
      const std::vector<int64_t>& shape = checkpoint_.stored(names[0]).shape;
      const std::span<const uint8_t> bytes = bf16_bytes(names[0], keep);
      return packed(bytes, shape[0], shape[1], WeightFormat::kBf16, "", keep);
    }
    auto all = std::make_shared<std::vector<uint8_t>>();
    int64_t outputs = 0;
    int64_t inputs = 0;
    for (const std::string& name : names) {
      std::shared_ptr<std::vector<uint8_t>> keep;
      const std::span<const uint8_t> bytes = bf16_bytes(name, keep);
      outputs += checkpoint_.stored(name).shape[0];
      inputs = checkpoint_.stored(name).shape[1];
      all->insert(all->end(), bytes.begin(), bytes.end());
    }
    return packed(*all, outputs, inputs, WeightFormat::kBf16, "", all);
  }

  const uint16_t* embedding(const std::string& name) {
    std::shared_ptr<std::vector<uint8_t>> keep;
    const std::span<const uint8_t> bytes = bf16_bytes(name, keep);
    uint8_t* to = memory_.filled(static_cast<int64_t>(bytes.size()), {});
    tasks_.emplace_back([bytes, keep, to](CardPacker& packer) { packer.copy(bytes, to); });
    return reinterpret_cast<const uint16_t*>(to);
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
    return {.codes = as_codes(parameter.values),
            .scales = parameter.scales,
            .rows = parameter.shape[0],
            .inputs = parameter.shape[1]};
  }

  /// A task that packs w1 with w3 (`down`: w2) of an expert to `to`.
  void add_expert(const std::string& prefix, bool fp8, bool down, std::byte* to) {
    tasks_.emplace_back([this, prefix, fp8, down, to](CardPacker& packer) {
      const auto format = fp8 ? weights::WeightFormat::kFp8 : weights::WeightFormat::kFp4;
      const std::string name = prefix + (down ? "w2.weight" : "w1.weight");
      const kernels::ExpertMatrix first = expert(name, format);
      if (down) {
        if (kernels::usual_expert_scales(first.scales, fp8)) {
          packer.expert(first, nullptr, fp8, to);
        } else {  // says what is wrong, or packs what the card's kernel does not
          copy_packed(
              fp8 ? kernels::pack_down_fp8(first, name) : kernels::pack_down_fp4(first, name),
              packer,
              to);
        }
        report(name);
        return;
      }
      const kernels::ExpertMatrix second = expert(prefix + "w3.weight", format);
      if (kernels::usual_expert_scales(first.scales, fp8) &&
          kernels::usual_expert_scales(second.scales, fp8)) {
        packer.expert(first, &second, fp8, to);
      } else {
        const std::string both = name + ", w3";
        copy_packed(fp8 ? kernels::pack_up_fp8(first, second, both)
                        : kernels::pack_up_fp4(first, second, both),
                    packer,
                    to);
      }
      report(name);
      report(prefix + "w3.weight");
    });
  }

  static void copy_packed(const std::vector<std::byte>& bytes, CardPacker& packer, std::byte* to) {
    packer.copy(as_codes(bytes), reinterpret_cast<uint8_t*>(to));
  }

  std::byte* room_for_experts(int64_t count, int64_t rows, int64_t inputs, bool fp8) {
    return reinterpret_cast<std::byte*>(
        memory_.filled(count * kernels::packed_expert_bytes(rows, inputs, fp8), {}));
  }

  DecodeExperts experts(const std::string& prefix) {
    const int64_t count = config_.n_routed_experts;
    const int64_t hidden = config_.hidden_size;
    const int64_t width = config_.moe_intermediate_size;
    const int64_t up_bytes = kernels::packed_expert_bytes(2 * width, hidden, false);
    const int64_t down_bytes = kernels::packed_expert_bytes(hidden, width, false);
    std::byte* up = room_for_experts(count, 2 * width, hidden, false);
    std::byte* down = room_for_experts(count, hidden, width, false);
    std::byte* shared_up = room_for_experts(1, 2 * width, hidden, true);
    std::byte* shared_down = room_for_experts(1, hidden, width, true);
    for (int64_t e = 0; e < count; ++e) {
      const std::string name = prefix + "experts." + std::to_string(e) + ".";
      check_expert(name, weights::WeightFormat::kFp4);
      add_expert(name, false, false, up + e * up_bytes);
      add_expert(name, false, true, down + e * down_bytes);
    }
    const std::string shared = prefix + "shared_experts.";
    check_expert(shared, weights::WeightFormat::kFp8);
    add_expert(shared, true, false, shared_up);
    add_expert(shared, true, true, shared_down);
    return {.up = up, .down = down, .shared_up = shared_up, .shared_down = shared_down};
  }

  /// Formats and sizes, before anything is written.
  void check_expert(const std::string& prefix, weights::WeightFormat format) const {
    for (const char* matrix : {"w1.weight", "w2.weight", "w3.weight"}) {
      const kernels::ExpertMatrix found = expert(prefix + matrix, format);
      const bool down = std::string_view(matrix) == "w2.weight";
      const int64_t rows = down ? config_.hidden_size : config_.moe_intermediate_size;
      const int64_t inputs = down ? config_.moe_intermediate_size : config_.hidden_size;
      BALEEN_CHECK(found.rows == rows && found.inputs == inputs,
                   "{}{}: {} x {}",
                   prefix,
                   matrix,
                   found.rows,
                   found.inputs);
    }
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
  void report(const std::string& name) const { checkpoint_.report_read(name); }

  const weights::Checkpoint& checkpoint_;
  const ModelConfig& config_;
  DecodeMemory& memory_;
  std::vector<LoadTask> tasks_;
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
  loader.finish();
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
