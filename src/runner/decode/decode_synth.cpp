#include "runner/decode/decode_synth.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <span>

#include "base/check.h"
#include "kernels/experts/expert_packing.h"
#include "kernels/linear/linear_pack.h"
#include "kernels/step_metadata/step_metadata.h"
#include "numerics/bfloat16.h"
#include "numerics/float8.h"

namespace baleen::runner {
namespace {

constexpr int64_t kPatternBytes = 4 << 20;  // of random values that weights repeat
constexpr double kCodeSize = 32.0;          // of e4m3 codes: their scale makes a weight of them
constexpr int64_t kTokens = kernels::kPageTokens;
constexpr int64_t kC4Entries = kTokens / 4;
constexpr int64_t kC128Entries = kTokens / 128;
constexpr int32_t kC4Ring = 16;
constexpr int32_t kC128Ring = 136;
constexpr int kDistinctExperts = 4;

class Draws {
 public:
  explicit Draws(uint64_t seed) : engine_(seed) {}
  float normal(double size) { return static_cast<float>(size) * normal_(engine_); }
  uint8_t byte(int low, int high) {
    return static_cast<uint8_t>(std::uniform_int_distribution<int>(low, high)(engine_));
  }
  std::vector<uint8_t> bytes(int64_t count, int low, int high) {
    std::vector<uint8_t> values(static_cast<std::size_t>(count));
    std::generate(values.begin(), values.end(), [&] { return byte(low, high); });
    return values;
  }
  std::vector<float> normals(int64_t count, double size) {
    std::vector<float> values(static_cast<std::size_t>(count));
    std::generate(values.begin(), values.end(), [&] { return normal(size); });
    return values;
  }
  std::vector<uint8_t> e4m3(int64_t count, double size) {
    std::vector<uint8_t> values(static_cast<std::size_t>(count));
    std::generate(
        values.begin(), values.end(), [&] { return numerics::e4m3_from_float(normal(size)); });
    return values;
  }
  std::vector<uint8_t> bf16(int64_t count, double size) {
    std::vector<uint8_t> values(static_cast<std::size_t>(count) * 2);
    for (std::size_t i = 0; i < values.size(); i += 2) {
      const uint16_t code = numerics::bf16_from_float(normal(size));
      std::memcpy(values.data() + i, &code, sizeof(code));
    }
    return values;
  }

 private:
  std::mt19937_64 engine_;
  std::normal_distribution<float> normal_;
};

/// UE8M0 of the power of two nearest to 1 / (sqrt(inputs) · code_size).
uint8_t weight_scale(int64_t inputs, double code_size) {
  return static_cast<uint8_t>(
      127 - std::lround(std::log2(code_size * std::sqrt(static_cast<double>(inputs)))));
}

std::vector<float> frequencies(double theta) {
  std::vector<float> values;
  for (int i = 0; i < kernels::kRopePairs; ++i) {
    values.push_back(
        static_cast<float>(std::pow(theta, -2.0 * i / static_cast<double>(kernels::kKvRopeDims))));
  }
  return values;
}

/// A page of `rows` random KV rows in the pool's bytes.
std::vector<uint8_t> kv_page(Draws& draws, int64_t rows) {
  std::vector<uint8_t> page(static_cast<std::size_t>(kernels::kv_page_bytes(rows)), 0);
  const kernels::KvPoolView view{
      page.data(), static_cast<int64_t>(page.size()), static_cast<int32_t>(rows)};
  for (int32_t row = 0; row < rows; ++row) {
    const std::vector<uint8_t> plain = draws.e4m3(kernels::kKvNopeDims, kCodeSize);
    const std::vector<uint8_t> turned = draws.bf16(kernels::kKvRopeDims, 1.0);
    uint8_t* value = page.data() + kernels::kv_value_offset(view, row);
    std::copy(plain.begin(), plain.end(), value);
    std::copy(turned.begin(), turned.end(), value + kernels::kKvNopeDims);
    std::fill_n(page.data() + kernels::kv_scale_offset(view, row), kernels::kKvScales, 122);
  }
  return page;
}

std::vector<uint8_t> index_page(Draws& draws) {
  std::vector<uint8_t> page = draws.e4m3(kC4Entries * kernels::kIndexDims, kCodeSize);
  for (int64_t row = 0; row < kC4Entries; ++row) {
    const float scale = 1.0F / static_cast<float>(kCodeSize);
    const auto* bytes = reinterpret_cast<const uint8_t*>(&scale);
    page.insert(page.end(), bytes, bytes + sizeof(scale));
  }
  return page;
}

}  // namespace

DecodeSynth::DecodeSynth(const DecodeSynthOptions& options) : options_(options) {
  const ModelConfig& config = options.config;
  Draws draws(options.seed);
  e4m3_pattern_ = draws.e4m3(kPatternBytes, kCodeSize);
  bf16_pattern_ =
      draws.bf16(kPatternBytes / 2, 1.0 / std::sqrt(static_cast<double>(config.hidden_size)));
  // A multiple of 4 blocks, as the kernels read tables.
  table_blocks_ = static_cast<int32_t>((options.max_context + 4 * kTokens - 1) / (4 * kTokens) * 4);
  window_pages_ = options.window_blocks * options.max_requests + 1;
  model_.config = config;
  model_.num_full_pages = int64_t{options.max_requests} * table_blocks_ + 1;
  model_.embed = reinterpret_cast<const uint16_t*>(
      weights(config.vocab_size * config.hidden_size * 2, draws.bf16(kPatternBytes / 2, 1.0)));
  model_.head = bf16(config.vocab_size, config.hidden_size);
  model_.head_hyper = hyper(4);
  model_.plain_frequencies = weights_.upload(frequencies(config.rope_theta));
  model_.compressed_frequencies = weights_.upload(frequencies(config.compress_rope_theta));
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    model_.layers.push_back(layer(config.layers[static_cast<std::size_t>(i)]));
  }
  ids_ = device::Buffer<int32_t>(options.max_requests);
  lengths_ = device::Buffer<int32_t>(options.max_requests);
  num_requests_ = device::Buffer<int32_t>(1);
  page_table_ = device::Buffer<int32_t>(int64_t{options.max_requests} * table_blocks_);
  window_page_ = device::Buffer<int32_t>(model_.num_full_pages);
  set_state(options.max_requests, options.max_context - 1);
}

const uint8_t* DecodeSynth::weights(int64_t bytes, const std::vector<uint8_t>& pattern) {
  return weights_.filled(bytes, pattern);
}

DecodeMatrix DecodeSynth::fp8(int64_t outputs, int64_t inputs, bool as_bf16) {
  DecodeMatrix matrix;
  matrix.outputs = static_cast<int32_t>(outputs);
  matrix.inputs = static_cast<int32_t>(inputs);
  matrix.format = as_bf16 ? kernels::WeightFormat::kE4m3AsBf16 : kernels::WeightFormat::kE4m3;
  // Packing permutes codes, so random ones need none.
  matrix.weight =
      weights(kernels::packed_weight_bytes({outputs, inputs, matrix.format}), e4m3_pattern_);
  matrix.scales = weights((outputs + 127) / 128 * (inputs / 128),
                          std::vector<uint8_t>(1, weight_scale(inputs, kCodeSize)));
  return matrix;
}

DecodeMatrix DecodeSynth::bf16(int64_t outputs, int64_t inputs) {
  DecodeMatrix matrix;
  matrix.outputs = static_cast<int32_t>(outputs);
  matrix.inputs = static_cast<int32_t>(inputs);
  matrix.format = kernels::WeightFormat::kBf16;
  matrix.weight =
      weights(kernels::packed_weight_bytes({outputs, inputs, matrix.format}), bf16_pattern_);
  return matrix;
}

DecodeHyper DecodeSynth::hyper(int64_t rows) {
  const int64_t width = options_.config.hidden_size;
  Draws draws(options_.seed + static_cast<uint64_t>(weights_.bytes()));
  DecodeHyper out;
  out.fn = weights_.upload(
      draws.normals(rows * 4 * width, 0.5 / std::sqrt(4.0 * static_cast<double>(width))));
  out.base = weights_.upload(draws.normals(rows, 0.1));
  out.scale = weights_.upload(std::vector<float>(rows == 4 ? 1 : 3, 1.0F));
  out.norm = weights_.upload(std::vector<float>(static_cast<std::size_t>(width), 1.0F));
  return out;
}

DecodeCompressor DecodeSynth::compressor(int64_t dims, bool overlap) {
  Draws draws(options_.seed + static_cast<uint64_t>(weights_.bytes()));
  const int64_t row = (overlap ? 2 : 1) * dims;
  DecodeCompressor out;
  out.rows = bf16(2 * row, options_.config.hidden_size);
  out.ape = weights_.upload(draws.normals((overlap ? 4 : 128) * row, 0.1));
  out.norm = weights_.upload(std::vector<float>(static_cast<std::size_t>(dims), 1.0F));
  out.ring_size = overlap ? kC4Ring : kC128Ring;
  const int64_t rings = overlap ? window_pages_ : options_.max_requests;
  const std::vector<float> values = draws.normals(64 * 2 * row, 1.0);
  const auto* bytes = reinterpret_cast<const uint8_t*>(values.data());
  out.ring = reinterpret_cast<float*>(pools_.filled(
      rings * out.ring_size * 2 * row * 4, std::span<const uint8_t>(bytes, values.size() * 4)));
  return out;
}

DecodeExperts DecodeSynth::experts() {
  const ModelConfig& config = options_.config;
  const int64_t hidden = config.hidden_size;
  const int64_t width = config.moe_intermediate_size;
  const int64_t up_bytes = kernels::packed_expert_bytes(2 * width, hidden, false);
  const int64_t down_bytes = kernels::packed_expert_bytes(hidden, width, false);
  if (expert_up_.empty()) {
    Draws draws(options_.seed + 77);
    constexpr double kFp4Size = 2.5;  // of a random E2M1 code
    const auto matrix = [&](int64_t rows,
                            int64_t inputs,
                            std::vector<uint8_t>& codes,
                            std::vector<uint8_t>& scales) {
      codes = draws.bytes(rows * inputs / 2, 0, 255);
      const int scale = weight_scale(inputs, kFp4Size);
      scales = draws.bytes(rows * inputs / 32, scale - 1, scale);
      return kernels::ExpertMatrix{
          .codes = codes, .scales = scales, .rows = rows, .inputs = inputs};
    };
    const auto as_bytes = [](const std::vector<std::byte>& packed) {
      const auto* begin = reinterpret_cast<const uint8_t*>(packed.data());
      return std::vector<uint8_t>(begin, begin + packed.size());
    };
    for (int i = 0; i < kDistinctExperts; ++i) {
      std::vector<uint8_t> codes[3];
      std::vector<uint8_t> scales[3];
      const auto gate = matrix(width, hidden, codes[0], scales[0]);
      const auto up = matrix(width, hidden, codes[1], scales[1]);
      const auto down = matrix(hidden, width, codes[2], scales[2]);
      expert_up_.push_back(as_bytes(kernels::pack_up_fp4(gate, up, "synthetic w1, w3")));
      expert_down_.push_back(as_bytes(kernels::pack_down_fp4(down, "synthetic w2")));
    }
  }
  const auto stack = [&](const std::vector<std::vector<uint8_t>>& distinct, int64_t bytes) {
    std::vector<uint8_t> pattern;
    for (const std::vector<uint8_t>& one : distinct) {
      BALEEN_CHECK(static_cast<int64_t>(one.size()) == bytes, "{} bytes", one.size());
      pattern.insert(pattern.end(), one.begin(), one.end());
    }
    return reinterpret_cast<const std::byte*>(weights(config.n_routed_experts * bytes, pattern));
  };
  DecodeExperts out;
  out.up = stack(expert_up_, up_bytes);
  out.down = stack(expert_down_, down_bytes);
  Draws draws(options_.seed + static_cast<uint64_t>(weights_.bytes()));
  const auto shared =
      [&](int64_t rows, int64_t inputs, std::vector<uint8_t>& codes, std::vector<uint8_t>& scales) {
        codes = draws.e4m3(rows * inputs, kCodeSize);
        scales.assign(static_cast<std::size_t>((rows + 127) / 128 * (inputs / 128)),
                      weight_scale(inputs, kCodeSize));
        return kernels::ExpertMatrix{
            .codes = codes, .scales = scales, .rows = rows, .inputs = inputs};
      };
  if (shared_up_.empty()) {
    std::vector<uint8_t> codes[3];
    std::vector<uint8_t> scales[3];
    const auto gate = shared(width, hidden, codes[0], scales[0]);
    const auto up = shared(width, hidden, codes[1], scales[1]);
    const auto down = shared(hidden, width, codes[2], scales[2]);
    shared_up_ = kernels::pack_up_fp8(gate, up, "synthetic shared w1, w3");
    shared_down_ = kernels::pack_down_fp8(down, "synthetic shared w2");
  }
  out.shared_up = weights_.upload(shared_up_);
  out.shared_down = weights_.upload(shared_down_);
  return out;
}

DecodeLayer DecodeSynth::layer(const LayerSpec& spec) {
  const ModelConfig& config = options_.config;
  const int64_t hidden = config.hidden_size;
  const int64_t group = config.num_attention_heads * config.head_dim / config.o_groups;
  Draws draws(options_.seed + static_cast<uint64_t>(weights_.bytes()));
  const auto ones = [&](int64_t count) {
    return weights_.upload(std::vector<float>(static_cast<std::size_t>(count), 1.0F));
  };
  DecodeLayer out;
  out.spec = spec;
  out.hc_attn = hyper(24);
  out.hc_ffn = hyper(24);
  out.wq_a = fp8(config.q_lora_rank, hidden);
  out.wkv = fp8(config.head_dim, hidden);
  out.wq_b = fp8(config.num_attention_heads * config.head_dim, config.q_lora_rank);
  out.wo_a = fp8(config.o_groups * config.o_lora_rank, group, /*as_bf16=*/true);
  out.wo_b = fp8(hidden, config.o_groups * config.o_lora_rank);
  out.q_norm = ones(config.q_lora_rank);
  out.kv_norm = ones(config.head_dim);
  out.sink = weights_.upload(draws.normals(config.num_attention_heads, 1.0));
  out.gate = bf16(config.n_routed_experts, hidden);
  if (spec.hash_routed) {
    std::vector<int32_t> table;
    for (int64_t id = 0; id < config.vocab_size; ++id) {
      // Distinct experts: steps of an odd stride.
      const int32_t first = draws.byte(0, 255);
      for (int64_t k = 0; k < config.num_experts_per_tok; ++k) {
        table.push_back(static_cast<int32_t>((first + k * 37) % config.n_routed_experts));
      }
    }
    out.hash_table = weights_.upload(table);
  } else {
    out.gate_bias = weights_.upload(draws.normals(config.n_routed_experts, 0.01));
  }
  out.experts = experts();
  const auto kv_pool = [&](int64_t pages, int64_t rows) {
    const std::vector<uint8_t> page = kv_page(draws, rows);
    const auto bytes = static_cast<int64_t>(page.size());
    return kernels::KvPoolView{
        pools_.filled(pages * bytes, page), bytes, static_cast<int32_t>(rows)};
  };
  out.window = kv_pool(window_pages_, kTokens);
  if (spec.kind == LayerKind::kC4) {
    out.main = compressor(config.head_dim, true);
    out.index = compressor(config.index_head_dim, true);
    out.index_wq_b = fp8(config.index_n_heads * config.index_head_dim, config.q_lora_rank);
    out.index_weights = bf16(config.index_n_heads, hidden);
    out.entries = kv_pool(model_.num_full_pages, kC4Entries);
    const std::vector<uint8_t> page = index_page(draws);
    const auto bytes = static_cast<int64_t>(page.size());
    out.index_keys = {pools_.filled(model_.num_full_pages * bytes, page),
                      bytes,
                      static_cast<int32_t>(kC4Entries),
                      kernels::IndexKeyFormat::kFp4InFp8};
  } else if (spec.kind == LayerKind::kC128) {
    out.main = compressor(config.head_dim, false);
    // Blocks of 128 rows that 64 full pages share.
    out.entries = kv_pool((model_.num_full_pages * kC128Entries + 127) / 128, 128);
  }
  return out;
}

DecodeInputs DecodeSynth::inputs() const {
  return {.ids = ids_.data(),
          .lengths = lengths_.data(),
          .num_requests = num_requests_.data(),
          .slot_table = page_table_.data(),
          .row_table = page_table_.data(),
          .table_blocks = table_blocks_,
          .window_pages = window_page_.data()};
}

void DecodeSynth::set_state(int32_t requests, int64_t length) {
  BALEEN_CHECK(requests >= 0 && requests <= options_.max_requests && length >= 0 &&
                   length < options_.max_context,
               "requests={} length={}",
               requests,
               length);
  Draws draws(options_.seed + 3);
  std::vector<int32_t> ids;
  std::vector<int32_t> table(static_cast<std::size_t>(page_table_.count()), 0);
  std::vector<int32_t> windows(static_cast<std::size_t>(window_page_.count()), 0);
  const auto last = static_cast<int32_t>(length / kTokens);
  for (int32_t r = 0; r < options_.max_requests; ++r) {
    ids.push_back(static_cast<int32_t>(
        (int64_t{draws.byte(0, 255)} * 65536 + draws.byte(0, 255) * 256 + draws.byte(0, 255)) %
        options_.config.vocab_size));
    for (int32_t block = 0; block <= last; ++block) {
      // Neighbouring blocks of a sequence lie apart, as after some hours of serving.
      const int32_t page = 1 + block * options_.max_requests + r;
      table[static_cast<std::size_t>(r) * static_cast<std::size_t>(table_blocks_) +
            static_cast<std::size_t>(block)] = page;
      if (block > last - options_.window_blocks) {
        windows[static_cast<std::size_t>(page)] =
            1 + options_.window_blocks * r + block % options_.window_blocks;
      }
    }
  }
  ids_.copy_from_host(std::span<const int32_t>(ids));
  lengths_.copy_from_host(
      std::span<const int32_t>(std::vector<int32_t>(ids.size(), static_cast<int32_t>(length))));
  num_requests_.copy_from_host(std::span<const int32_t>(std::vector<int32_t>{requests}));
  page_table_.copy_from_host(std::span<const int32_t>(table));
  window_page_.copy_from_host(std::span<const int32_t>(windows));
}

}  // namespace baleen::runner
