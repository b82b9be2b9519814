// The Hugging Face port of the model as an independent oracle: logits of small configurations, made
// by tools/goldens/make_hf_goldens.py. Weights are a formula of names, so the file holds none.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "model/hash_fill.h"
#include "model/whole_model.h"
#include "weights/config_json.h"
#include "weights/safetensors.h"

namespace baleen::model {
namespace {

constexpr const char* kFile = "tests/golden/hf_port.safetensors";
constexpr double kPortTolerance = 1e-4;  // of the largest logit; the port rotates in float32

struct Case {
  std::string name;
  ModelConfig config;
  HashFill fill;
  at::Tensor ids;     // [T]
  at::Tensor logits;  // float [T, V]
};

at::Tensor read(const weights::SafetensorsFile& file,
                const std::string& name,
                at::ScalarType type) {
  const weights::StoredTensor* stored = file.find(name);
  if (stored == nullptr) {
    throw std::runtime_error("no tensor " + name);
  }
  at::Tensor tensor = at::empty(stored->shape, type);
  const auto bytes = file.bytes(*stored);
  EXPECT_EQ(bytes.size(), tensor.nbytes()) << name;
  std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

std::vector<Case> read_cases() {
  const auto file = weights::SafetensorsFile::open(kFile);
  std::vector<Case> cases;
  for (const auto& [key, text] : file.metadata()) {
    if (!key.ends_with(".config")) {
      continue;
    }
    Case& item = cases.emplace_back();
    item.name = key.substr(0, key.size() - std::strlen(".config"));
    item.config = weights::parse_config_json(text, item.name).config;
    std::istringstream scales(file.metadata().at(item.name + ".scales"));
    scales >> item.fill.norm >> item.fill.embedding >> item.fill.other;
    item.fill.salt = file.metadata().at(item.name + ".salt");
    item.ids = read(file, item.name + ".ids", at::kLong);
    item.logits = read(file, item.name + ".logits", at::kFloat);
  }
  return cases;
}

/// Lengths around every border of the case, up to its whole length.
std::vector<int64_t> lengths_of(const Case& item) {
  std::vector<int64_t> lengths = {1, 2, 3, item.ids.size(0)};
  std::vector<int64_t> borders = {item.config.sliding_window};
  for (const LayerSpec& layer : item.config.layers) {
    if (layer.ratio > 0) {
      borders.push_back(layer.ratio);
      borders.push_back(2 * layer.ratio);
    }
  }
  for (const int64_t border : borders) {
    lengths.insert(lengths.end(), {border - 1, border, border + 1});
  }
  std::sort(lengths.begin(), lengths.end());
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  std::erase_if(lengths, [&](int64_t n) { return n < 1 || n > item.ids.size(0); });
  return lengths;
}

double relative_difference(const at::Tensor& got, const at::Tensor& expected) {
  return (got - expected).abs().max().item<double>() / expected.abs().max().item<double>();
}

TEST(HfPortTest, HoldsEnoughCases) {
  EXPECT_GE(read_cases().size(), 12U);
}

TEST(HfPortTest, GivesThePortsLogitsAtEveryLength) {
  const at::NoGradGuard no_grad;
  for (const Case& item : read_cases()) {
    const ModelParameters params =
        make_hash_filled(item.config, item.fill, at::TensorOptions(at::kFloat));
    for (const int64_t length : lengths_of(item)) {
      const TrainingOutput out = forward_training(
          params, item.ids.narrow(0, 0, length).unsqueeze(0), {.numerics = ops::Numerics::plain()});
      EXPECT_LE(relative_difference(out.logits[0], item.logits.narrow(0, 0, length)),
                kPortTolerance)
          << item.name << " length " << length;
    }
  }
}

TEST(HfPortTest, GivesThePortsLogitsTokenByToken) {
  const at::NoGradGuard no_grad;
  for (const Case& item : read_cases()) {
    const ModelParameters params =
        make_hash_filled(item.config, item.fill, at::TensorOptions(at::kFloat));
    const ops::Numerics numerics = ops::Numerics::plain();
    const int64_t length = item.ids.size(0);
    const RopeTables tables = make_rope_tables(item.config, length, params.embed, numerics);
    SequenceState state(item.config, {.paint_unused = true}, params.embed.options());
    // All but the last tokens at once, so that long cases stay short in time.
    const int64_t prefill = std::max<int64_t>(1, length - 40);
    std::vector<at::Tensor> rows;
    while (state.num_tokens() < length) {
      const int64_t count = state.num_tokens() == 0 ? prefill : 1;
      rows.push_back(
          forward_step(params,
                       tables,
                       {{.state = &state, .num_tokens = count, .logits = LogitsWanted::kAll}},
                       item.ids.narrow(0, state.num_tokens(), count),
                       numerics)
              .logits);
    }
    EXPECT_LE(relative_difference(at::cat(rows, 0), item.logits), kPortTolerance) << item.name;
  }
}

}  // namespace
}  // namespace baleen::model
