#pragma once
// Random inputs of the fused hyper-connection on the device, for its tests and benchmarks. Outputs
// are painted with NaN bytes before use, so that an element nobody wrote is seen.
//
//   HcScene scene({.tokens = 7, .width = 4096}, 1);
//   hc_fused_sm90(scene.params(), stream);   // then scene.outputs()

#include <cstdint>
#include <vector>

#include "device/buffer.h"
#include "kernels/hyper_connection/hyper_connection.h"
#include "kernels/testing/random_values.h"

namespace baleen::kernels::testing {

enum class HcForm { kPost, kFirstLayer, kGivenStreams, kHead };

struct HcSceneShape {
  int32_t tokens = 1;
  int32_t width = 4096;
  int32_t parts = 1;
  HcForm form = HcForm::kPost;
  float fn_scale = 0.008F;  // about 1 / sqrt(4H): mixes near one
  int32_t period = 0;       // token t has the inputs of token t % period; 0: all differ
};

struct HcOutputs {
  std::vector<uint16_t> streams, collapsed, y;
  std::vector<float> post, comb;
  std::vector<uint8_t> codes, scales;
  bool operator==(const HcOutputs&) const = default;
};

class HcScene {
 public:
  HcScene(const HcSceneShape& wanted, uint64_t seed) : shape(wanted) {
    RandomValues random(seed);
    const int64_t h = shape.width;
    const int64_t m = shape.tokens;
    const int64_t rows = shape.form == HcForm::kHead ? kHcHeadRows : kHcRows;
    const int64_t distinct = shape.period > 0 ? shape.period : m;
    const auto repeated = [&](auto values, int64_t row) {
      values.resize(static_cast<std::size_t>(distinct * row));
      auto all = values;
      all.clear();
      for (int64_t t = 0; t < m; ++t) {
        const auto begin = values.begin() + t % distinct * row;
        all.insert(all.end(), begin, begin + row);
      }
      return all;
    };
    const int64_t parts_count = shape.form == HcForm::kGivenStreams ? 0 : shape.parts;
    for (int64_t i = 0; i < parts_count; ++i) {
      parts.push_back(repeated(random.bf16_normals(distinct * h), h));
      part_buffers.push_back(device::Buffer<uint16_t>::from_host(parts.back()));
    }
    if (shape.form != HcForm::kFirstLayer) {
      residual = repeated(random.bf16_normals(distinct * 4 * h), 4 * h);
      residual_buffer = device::Buffer<uint16_t>::from_host(residual);
    }
    if (shape.form == HcForm::kPost || shape.form == HcForm::kHead) {
      std::vector<float> raw = random.normals(distinct * 4, 0.5F);
      for (float& value : raw) {
        value += 1.0F;
      }
      post = repeated(raw, 4);
      raw = random.normals(distinct * 16, 0.1F);
      for (float& value : raw) {
        value += 0.25F;
      }
      comb = repeated(raw, 16);
      post_buffer = device::Buffer<float>::from_host(post);
      comb_buffer = device::Buffer<float>::from_host(comb);
    }
    fn = random.normals(rows * 4 * h, shape.fn_scale);
    base = random.normals(rows, 0.5F);
    scale = random.normals(rows == kHcRows ? 3 : 1, 0.3F);
    for (float& value : scale) {
      value += 1.0F;
    }
    norm_weight = random.normals(h, 0.2F);
    for (float& value : norm_weight) {
      value += 1.0F;
    }
    fn_buffer = device::Buffer<float>::from_host(fn);
    base_buffer = device::Buffer<float>::from_host(base);
    scale_buffer = device::Buffer<float>::from_host(scale);
    norm_weight_buffer = device::Buffer<float>::from_host(norm_weight);
    streams_out = device::Buffer<uint16_t>(m * 4 * h);
    collapsed_out = device::Buffer<uint16_t>(m * h);
    y_out = device::Buffer<uint16_t>(m * h);
    post_out = device::Buffer<float>(m * 4);
    comb_out = device::Buffer<float>(m * 16);
    codes_out = device::Buffer<uint8_t>(m * h);
    scales_out = device::Buffer<uint8_t>(m * h / kHcQuantDims);
    paint();
  }

  void paint() {
    streams_out.fill_bytes(0xFF);
    collapsed_out.fill_bytes(0xFF);
    y_out.fill_bytes(0xFF);
    post_out.fill_bytes(0xFF);
    comb_out.fill_bytes(0xFF);
    codes_out.fill_bytes(0xFF);
    scales_out.fill_bytes(0xFF);
    BALEEN_CUDA_CHECK(cudaDeviceSynchronize());  // painting is not ordered with other streams
  }

  HcFusedParams params() {
    HcFusedParams p;
    for (std::size_t i = 0; i < part_buffers.size(); ++i) {
      p.parts[i] = part_buffers[i].data();
    }
    p.num_parts = static_cast<int32_t>(part_buffers.size());
    p.residual = residual_buffer.data();
    p.post = post_buffer.data();
    p.comb = comb_buffer.data();
    p.fn = fn_buffer.data();
    p.base = base_buffer.data();
    p.scale = scale_buffer.data();
    p.norm_weight = norm_weight_buffer.data();
    p.streams = streams_out.data();
    p.post_out = post_out.data();
    p.comb_out = comb_out.data();
    p.collapsed = collapsed_out.data();
    p.y = y_out.data();
    p.codes = codes_out.data();
    p.scales = scales_out.data();
    p.num_tokens = shape.tokens;
    p.width = shape.width;
    p.rows = shape.form == HcForm::kHead ? kHcHeadRows : kHcRows;
    p.rms_norm_eps = 1e-6F;
    p.hc_eps = 1e-6F;
    p.sinkhorn_iters = 20;
    return p;
  }

  HcOutputs outputs() const {
    return {.streams = streams_out.to_host(),
            .collapsed = collapsed_out.to_host(),
            .y = y_out.to_host(),
            .post = post_out.to_host(),
            .comb = comb_out.to_host(),
            .codes = codes_out.to_host(),
            .scales = scales_out.to_host()};
  }

  HcSceneShape shape;
  std::vector<std::vector<uint16_t>> parts;
  std::vector<uint16_t> residual;
  std::vector<float> post, comb, fn, base, scale, norm_weight;
  std::vector<device::Buffer<uint16_t>> part_buffers;
  device::Buffer<uint16_t> residual_buffer, streams_out, collapsed_out, y_out;
  device::Buffer<float> post_buffer, comb_buffer, fn_buffer, base_buffer, scale_buffer;
  device::Buffer<float> norm_weight_buffer, post_out, comb_out;
  device::Buffer<uint8_t> codes_out, scales_out;
};

}  // namespace baleen::kernels::testing
