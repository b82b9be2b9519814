#pragma once
// A small mixture of experts for tests and benchmarks: random FP4 experts and an FP8 shared expert
// in checkpoint form, their values for the oracle, their packed form on the device, routes of a
// batch.
//
//   ExpertScene scene({.hidden = 256, .width = 128, .num_experts = 8, .top = 3, .shared = true},
//   7); ExpertBatch batch = scene.batch(routes, weights, x);       // device side of a step
//   launch_experts(batch.params, stream);

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "device/buffer.h"
#include "kernels/experts/expert_packing.h"
#include "kernels/experts/expert_step_oracle.h"
#include "kernels/experts/experts.h"
#include "kernels/testing/random_values.h"
#include "numerics/weight_format.h"

namespace baleen::kernels::testing {

struct SceneShape {
  int32_t hidden = 256;
  int32_t width = 128;
  int32_t num_experts = 8;
  int32_t top = 3;
  bool shared = false;
  int scale_low = 118;  // range of the UE8M0 group scales
  int scale_high = 124;
  float limit = 10.0F;
  int32_t leaf_blocks = 1;
};

/// Many experts of few channels: with 24 tokens some groups take a second item; all forms of units.
inline SceneShape medium_shape() {
  return {.hidden = 1024,
          .width = 512,
          .num_experts = 32,
          .top = 6,
          .shared = true,
          .scale_low = 114,
          .scale_high = 120,
          .leaf_blocks = 2};
}

/// The published inputs over a few experts.
inline SceneShape published_shape(int32_t width, int32_t num_experts) {
  return {.hidden = 4096,
          .width = width,
          .num_experts = num_experts,
          .top = 2,
          .shared = true,
          .scale_low = 114,
          .scale_high = 120,
          .leaf_blocks = 2};
}

/// Activations of a batch as the kernel takes them, and as values.
struct SceneInput {
  std::vector<uint8_t> codes;
  std::vector<uint8_t> scales;
  std::vector<double> values;  // [tokens, hidden]
};

struct ExpertBatch {
  device::Buffer<uint8_t> x_codes, x_scales;
  device::Buffer<int32_t> routes, num_units;
  device::Buffer<float> weights;
  device::Buffer<ExpertUnit> units;
  device::Buffer<std::byte> y, workspace;
  ExpertListsParams lists;
  ExpertsParams params;
};

class ExpertScene {
 public:
  ExpertScene(const SceneShape& shape, uint64_t seed) : shape_(shape), random_(seed) {
    for (int32_t e = 0; e < shape.num_experts; ++e) {
      add_fp4_expert();
    }
    up_ = device::Buffer<std::byte>::from_host(packed_up_);
    down_ = device::Buffer<std::byte>::from_host(packed_down_);
    if (shape.shared) {
      add_fp8_expert();
    }
  }

  const SceneShape& shape() const { return shape_; }
  RandomValues& random() { return random_; }
  const ExpertValues& expert(int64_t e) const { return values_[static_cast<std::size_t>(e)]; }
  int32_t slots() const { return shape_.top + (shape_.shared ? 1 : 0); }
  device::Buffer<std::byte>& up() { return up_; }
  device::Buffer<std::byte>& down() { return down_; }

  SceneInput input(int64_t tokens, float scale = 1.0F) {
    SceneInput x;
    const auto hidden = static_cast<std::size_t>(shape_.hidden);
    for (int64_t t = 0; t < tokens; ++t) {
      const std::vector<float> row = random_.normals(shape_.hidden, scale);
      std::vector<uint8_t> codes(hidden);
      std::vector<uint8_t> scales(hidden / 128);
      numerics::quantize_q8(std::span<const float>(row), 128, codes, scales);
      for (std::size_t i = 0; i < hidden; ++i) {
        x.values.push_back(static_cast<double>(numerics::e4m3_to_float(codes[i])) *
                           static_cast<double>(numerics::ue8m0_to_float(scales[i / 128])));
      }
      x.codes.insert(x.codes.end(), codes.begin(), codes.end());
      x.scales.insert(x.scales.end(), scales.begin(), scales.end());
    }
    return x;
  }

  /// `top` distinct experts per token in ascending order.
  std::vector<int32_t> routes(int64_t tokens) {
    std::vector<int32_t> all;
    for (int64_t t = 0; t < tokens; ++t) {
      std::vector<int32_t> row;
      while (static_cast<int32_t>(row.size()) < shape_.top) {
        const auto e = static_cast<int32_t>(random_.integer(0, shape_.num_experts - 1));
        if (std::find(row.begin(), row.end(), e) == row.end()) {
          row.push_back(e);
        }
      }
      std::sort(row.begin(), row.end());
      all.insert(all.end(), row.begin(), row.end());
    }
    return all;
  }
  std::vector<float> weights(int64_t tokens) {
    std::vector<float> all;
    for (int64_t i = 0; i < tokens * shape_.top; ++i) {
      all.push_back(0.05F + std::abs(random_.normal(0.3F)));
    }
    return all;
  }

  ExpertBatch batch(const SceneInput& x,
                    const std::vector<int32_t>& routes,
                    const std::vector<float>& weights,
                    MoeRound round = MoeRound::kPerExpert) {
    ExpertBatch b;
    const auto tokens = static_cast<int32_t>(routes.size() / static_cast<std::size_t>(shape_.top));
    b.x_codes = device::Buffer<uint8_t>::from_host(x.codes);
    b.x_scales = device::Buffer<uint8_t>::from_host(x.scales);
    b.routes = device::Buffer<int32_t>::from_host(routes);
    b.weights = device::Buffer<float>::from_host(weights);
    b.num_units = device::Buffer<int32_t>(1);
    b.units = device::Buffer<ExpertUnit>(std::max<int64_t>(
        1, max_expert_units(tokens, shape_.top, shape_.num_experts, shape_.shared)));
    b.num_units.fill_bytes(0xFF);
    b.units.fill_bytes(0xFF);  // the kernel leaves units beyond the last and unused places alone
    b.y = device::Buffer<std::byte>(int64_t{tokens} * shape_.hidden *
                                    (round == MoeRound::kPerExpert ? 2 : 4));
    const ExpertLists lists{b.num_units.data(), b.units.data()};
    b.lists = {.routes = b.routes.data(),
               .weights = b.weights.data(),
               .num_tokens = tokens,
               .top = shape_.top,
               .num_experts = shape_.num_experts,
               .shared_expert = shape_.shared,
               .lists = lists};
    b.params = {.x_codes = b.x_codes.data(),
                .x_scales = b.x_scales.data(),
                .lists = lists,
                .up = up_.data(),
                .down = down_.data(),
                .shared_up = shared_up_.data(),
                .shared_down = shared_down_.data(),
                .y = b.y.data(),
                .num_tokens = tokens,
                .hidden = shape_.hidden,
                .width = shape_.width,
                .slots = slots(),
                .num_experts = shape_.num_experts,
                .leaf_blocks = shape_.leaf_blocks,
                .limit = shape_.limit,
                .shared_limit = shape_.limit,
                .round = round};
    const ExpertsWorkspace place = experts_workspace(b.params);
    b.workspace = device::Buffer<std::byte>(place.bytes);
    std::vector<std::byte> zero(static_cast<std::size_t>(place.bytes), std::byte{0xFF});
    std::fill(zero.begin(), zero.begin() + place.counter_bytes, std::byte{0});
    b.workspace.copy_from_host(zero);
    paint(b.y);
    b.params.workspace = b.workspace.data();
    return b;
  }

  /// Entries in list order, as the device built them.
  static std::vector<int32_t> entries(const ExpertBatch& batch) {
    const std::vector<ExpertUnit> units = batch.units.to_host();
    std::vector<int32_t> all(static_cast<std::size_t>(batch.params.num_tokens * batch.params.slots),
                             -1);
    for (int32_t u = 0; u < batch.num_units.to_host()[0]; ++u) {
      const ExpertUnit& unit = units[static_cast<std::size_t>(u)];
      for (int32_t i = 0; i < unit.count; ++i) {
        all[static_cast<std::size_t>(unit.begin + i)] = unit.entries[i];
      }
    }
    return all;
  }

  /// Slots of one token for the oracle.
  std::vector<ExpertSlot> oracle_slots(const std::vector<int32_t>& routes,
                                       const std::vector<float>& weights,
                                       int64_t token) const {
    std::vector<ExpertSlot> slots;
    for (int64_t s = 0; s < shape_.top; ++s) {
      const auto at = static_cast<std::size_t>(token * shape_.top + s);
      slots.push_back({&expert(routes[at]),
                       static_cast<double>(weights[at]),
                       static_cast<double>(shape_.limit)});
    }
    if (shape_.shared) {
      slots.push_back({&expert(shape_.num_experts), 1.0, static_cast<double>(shape_.limit)});
    }
    return slots;
  }

  /// Paints with NaN; the fill must have landed before a kernel of another stream writes.
  static void paint(device::Buffer<std::byte>& buffer) {
    buffer.fill_bytes(0xFF);
    BALEEN_CUDA_CHECK(cudaDeviceSynchronize());
  }

 private:
  struct Fp4Source {
    std::vector<uint8_t> codes, scales;
    std::vector<double> values;
    ExpertMatrix matrix;
  };

  Fp4Source fp4(int64_t rows, int64_t inputs) {
    Fp4Source source;
    source.codes = random_.bytes(rows * inputs / 2);
    source.scales = random_.bytes(rows * inputs / 32, shape_.scale_low, shape_.scale_high);
    source.values.resize(static_cast<std::size_t>(rows * inputs));
    for (std::size_t i = 0; i < source.values.size(); ++i) {
      const uint8_t byte = source.codes[i / 2];
      source.values[i] =
          static_cast<double>(numerics::e2m1_to_float(i % 2 == 0 ? numerics::low_nibble(byte)
                                                                 : numerics::high_nibble(byte))) *
          static_cast<double>(numerics::ue8m0_to_float(source.scales[i / 32]));
    }
    source.matrix = {source.codes, source.scales, rows, inputs};
    return source;
  }

  Fp4Source fp8(int64_t rows, int64_t inputs) {
    Fp4Source source;
    source.codes = random_.e4m3_codes(rows * inputs, 30.0F);
    source.scales = random_.bytes((rows + 127) / 128 * (inputs / 128), 114, 117);
    source.values.resize(static_cast<std::size_t>(rows * inputs));
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < inputs; ++i) {
        const auto at = static_cast<std::size_t>(r * inputs + i);
        source.values[at] =
            static_cast<double>(numerics::e4m3_to_float(source.codes[at])) *
            static_cast<double>(numerics::ue8m0_to_float(
                source.scales[static_cast<std::size_t>(r / 128 * (inputs / 128) + i / 128)]));
      }
    }
    source.matrix = {source.codes, source.scales, rows, inputs};
    return source;
  }

  void add_fp4_expert() {
    Fp4Source w1 = fp4(shape_.width, shape_.hidden);
    Fp4Source w3 = fp4(shape_.width, shape_.hidden);
    Fp4Source w2 = fp4(shape_.hidden, shape_.width);
    const auto up = pack_up_fp4(w1.matrix, w3.matrix, "w1/w3");
    const auto down = pack_down_fp4(w2.matrix, "w2");
    packed_up_.insert(packed_up_.end(), up.begin(), up.end());
    packed_down_.insert(packed_down_.end(), down.begin(), down.end());
    values_.push_back({std::move(w1.values), std::move(w3.values), std::move(w2.values)});
  }

  void add_fp8_expert() {
    Fp4Source w1 = fp8(shape_.width, shape_.hidden);
    Fp4Source w3 = fp8(shape_.width, shape_.hidden);
    Fp4Source w2 = fp8(shape_.hidden, shape_.width);
    shared_up_ =
        device::Buffer<std::byte>::from_host(pack_up_fp8(w1.matrix, w3.matrix, "shared w1/w3"));
    shared_down_ = device::Buffer<std::byte>::from_host(pack_down_fp8(w2.matrix, "shared w2"));
    values_.push_back({std::move(w1.values), std::move(w3.values), std::move(w2.values)});
  }

  SceneShape shape_;
  RandomValues random_;
  std::vector<std::byte> packed_up_, packed_down_;
  std::vector<ExpertValues> values_;
  device::Buffer<std::byte> up_, down_, shared_up_, shared_down_;
};

}  // namespace baleen::kernels::testing
