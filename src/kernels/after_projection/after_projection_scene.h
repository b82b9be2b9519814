#pragma once
// A decode or verify step on the device, for tests and benchmarks of the after-projection kernel:
// requests with histories in their rings, the projections of this pass, plans, and painted outputs.
//
//   AfterProjectionScene scene({.main = CompressorKind::kC4, .starts = {3, 255}, .tokens = 4}, 1);
//   after_projection_sm90(scene.params(), stream);

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "device/buffer.h"
#include "kernels/after_projection/after_projection.h"
#include "kernels/testing/random_values.h"

namespace baleen::kernels::testing {

struct AfterProjectionShape {
  CompressorKind main = CompressorKind::kC4;
  std::vector<int32_t> starts;  // per request: position of its first token in this pass
  int32_t tokens = 1;           // per request
  int32_t ring_size = 16;
  int32_t latent_width = 1024;
  bool compressors = true;  // false: a window layer
};

/// One compressor's inputs and outputs.
struct CompressorScene {
  CompressorKind kind = CompressorKind::kC4;
  int32_t width = 0;  // floats of a row's values, and of its scores
  std::vector<float> rows, ape, norm_weight;
  std::vector<float> ring;
  std::vector<CompressorPlanEntry> plan;
  std::vector<RingWriteEntry> writes;
  int64_t pool_bytes = 0;
  device::Buffer<float> rows_buffer, ape_buffer, norm_buffer, ring_buffer, pooled_buffer;
  device::Buffer<CompressorPlanEntry> plan_buffer;
  device::Buffer<RingWriteEntry> writes_buffer;
  device::Buffer<int32_t> counts;  // entries, writes
  device::Buffer<uint8_t> pool;

  /// Value (or score with bias) of `position` of request `r`: what the oracle pools.
  std::vector<std::vector<float>>
      history;  // per request, from `history_begin` on, rows of 2 * width
  std::vector<int32_t> history_begin;
};

class AfterProjectionScene {
 public:
  AfterProjectionScene(AfterProjectionShape wanted, uint64_t seed)
      : shape(std::move(wanted)), random_(seed) {
    const auto requests = static_cast<int32_t>(shape.starts.size());
    num_tokens = requests * shape.tokens;
    latent = random_.bf16_normals(int64_t{num_tokens} * (shape.latent_width + kKvDims), 2.0F);
    latent_weight = ones(shape.latent_width);
    kv_weight = ones(kKvDims);
    for (int i = 0; i < kRopePairs; ++i) {
      frequencies.push_back(static_cast<float>(std::pow(160000.0, -2.0 * i / 64.0)));
    }
    for (const int32_t start : shape.starts) {
      for (int32_t t = 0; t < shape.tokens; ++t) {
        positions.push_back(start + t);
      }
    }
    slots = shuffled(num_tokens + 5, num_tokens);
    index_weights = random_.bf16_normals(int64_t{num_tokens} * kIndexHeads);
    if (shape.compressors) {
      fill(main, shape.main);
      if (shape.main == CompressorKind::kC4) {
        fill(index, CompressorKind::kIndex);
      }
    }
    latent_buffer = device::Buffer<uint16_t>::from_host(latent);
    latent_weight_buffer = device::Buffer<float>::from_host(latent_weight);
    kv_weight_buffer = device::Buffer<float>::from_host(kv_weight);
    frequencies_buffer = device::Buffer<float>::from_host(frequencies);
    positions_buffer = device::Buffer<int32_t>::from_host(positions);
    slots_buffer = device::Buffer<int32_t>::from_host(slots);
    index_weights_buffer = device::Buffer<uint16_t>::from_host(index_weights);
    codes = device::Buffer<uint8_t>(int64_t{num_tokens} * shape.latent_width);
    scales = device::Buffer<uint8_t>(int64_t{num_tokens} * shape.latent_width / kLatentQuantDims);
    normalised = device::Buffer<uint16_t>(int64_t{num_tokens} * shape.latent_width);
    weights_out = device::Buffer<float>(int64_t{num_tokens} * kIndexHeads);
    window = device::Buffer<uint8_t>((num_tokens + 5 + 255) / 256 * kv_page_bytes(256));
    nan_rows = device::Buffer<uint32_t>(1);
    paint();
  }

  void paint() {
    codes.fill_bytes(0xFF);
    scales.fill_bytes(0xFF);
    normalised.fill_bytes(0xFF);
    weights_out.fill_bytes(0xFF);
    window.fill_bytes(0xA5);
    nan_rows.fill_bytes(0);
    for (CompressorScene* scene : {&main, &index}) {
      scene->pool.fill_bytes(0xA5);
      scene->pooled_buffer.fill_bytes(0xFF);
      if (!scene->ring.empty()) {
        scene->ring_buffer.copy_from_host(std::span<const float>(scene->ring));
      }
    }
    BALEEN_CUDA_CHECK(cudaDeviceSynchronize());  // painting is not ordered with other streams
  }

  AfterProjectionParams params() {
    const int64_t stride = shape.latent_width + kKvDims;
    AfterProjectionParams p;
    p.num_tokens = num_tokens;
    p.eps = 1e-6F;
    p.latent = {.rows = latent_buffer.data(),
                .stride = stride,
                .width = shape.latent_width,
                .weight = latent_weight_buffer.data(),
                .codes = codes.data(),
                .scales = scales.data(),
                .normalised = normalised.data()};
    p.kv = {.rows = latent_buffer.data() + shape.latent_width,
            .stride = stride,
            .weight = kv_weight_buffer.data(),
            .frequencies = frequencies_buffer.data(),
            .positions = positions_buffer.data(),
            .slots = slots_buffer.data(),
            .pool = {window.data(), kv_page_bytes(256), 256}};
    p.nan_rows = nan_rows.data();
    p.main.kind = shape.main;
    p.main_ring.kind = shape.main;
    p.index.kind = CompressorKind::kIndex;
    p.index_ring.kind = CompressorKind::kIndex;
    if (!main.plan.empty()) {
      fill_params(main, p.main, p.main_ring);
    }
    if (!index.plan.empty()) {
      fill_params(index, p.index, p.index_ring);
      p.index_weights = {.rows = index_weights_buffer.data(),
                         .stride = kIndexHeads,
                         .constant = 0.0110485435F,
                         .out = weights_out.data()};
    }
    return p;
  }

  AfterProjectionShape shape;
  int32_t num_tokens = 0;
  std::vector<uint16_t> latent, index_weights;
  std::vector<float> latent_weight, kv_weight, frequencies;
  std::vector<int32_t> positions, slots;
  CompressorScene main, index;
  device::Buffer<uint16_t> latent_buffer, index_weights_buffer, normalised;
  device::Buffer<float> latent_weight_buffer, kv_weight_buffer, frequencies_buffer, weights_out;
  device::Buffer<int32_t> positions_buffer, slots_buffer;
  device::Buffer<uint8_t> codes, scales, window;
  device::Buffer<uint32_t> nan_rows;

 private:
  std::vector<float> ones(int64_t count) {
    std::vector<float> values = random_.normals(count, 0.2F);
    for (float& value : values) {
      value += 1.0F;
    }
    return values;
  }

  /// Normals cut from one table at random places: drawing each anew would take seconds.
  std::vector<float> noise(int64_t count) {
    if (table_.empty()) {
      table_ = random_.normals(1 << 18, 2.0F);
    }
    std::vector<float> values;
    while (static_cast<int64_t>(values.size()) < count) {
      const int64_t left = count - static_cast<int64_t>(values.size());
      const int64_t length = std::min<int64_t>(left, 4099);
      const auto from =
          table_.begin() + random_.integer(0, static_cast<int64_t>(table_.size()) - length);
      values.insert(values.end(), from, from + length);
    }
    return values;
  }

  std::vector<int32_t> shuffled(int32_t rows, int32_t count) {
    std::vector<int32_t> order(static_cast<std::size_t>(rows));
    std::iota(order.begin(), order.end(), 0);
    for (std::size_t i = order.size() - 1; i > 0; --i) {
      std::swap(order[i],
                order[static_cast<std::size_t>(random_.integer(0, static_cast<int64_t>(i)))]);
    }
    order.resize(static_cast<std::size_t>(count));
    return order;
  }

  void fill(CompressorScene& scene, CompressorKind kind) {
    scene.kind = kind;
    scene.width = compressor_row_width(kind);
    const int32_t ratio = compressor_ratio(kind);
    const int32_t window_rows = compressor_window(kind);
    const int64_t row = 2 * scene.width;
    const auto requests = static_cast<int32_t>(shape.starts.size());
    scene.ape = random_.normals(int64_t{ratio} * scene.width);
    scene.norm_weight = ones(compressor_dims(kind));
    // Two rings per request, for even and odd pages of 256 positions.
    scene.ring.assign(static_cast<std::size_t>(2 * requests * shape.ring_size * row),
                      std::nanf(""));
    const auto ring_base = [&](int32_t request, int32_t position) {
      return (2 * request + position / 256 % 2) * shape.ring_size;
    };
    const int32_t max_entries = requests * ((shape.tokens + ratio - 1) / ratio);
    const std::vector<int32_t> destinations = shuffled(max_entries + 3, max_entries);
    for (int32_t r = 0; r < requests; ++r) {
      const int32_t start = shape.starts[static_cast<std::size_t>(r)];
      const int32_t begin = std::max(0, start - window_rows + 1);
      scene.history_begin.push_back(begin);
      const std::vector<float> history = noise((start + shape.tokens - begin) * row);
      scene.history.push_back(history);
      for (int32_t position = begin; position < start + shape.tokens; ++position) {
        const auto from = history.begin() + (position - begin) * row;
        if (position >= start) {
          const auto at = static_cast<int32_t>(scene.rows.size() / static_cast<std::size_t>(row));
          scene.rows.insert(scene.rows.end(), from, from + row);
          scene.writes.push_back({.row = at,
                                  .ring_row = ring_base(r, position) + position % shape.ring_size,
                                  .position = position});
          if ((position + 1) % ratio == 0) {
            const int32_t carry_end = std::max(0, position - ratio);
            scene.plan.push_back({.end_row = at,
                                  .rows_from_pass = std::min(window_rows, position - start + 1),
                                  .end_position = position,
                                  .destination = destinations[scene.plan.size()],
                                  .carry_ring_base = ring_base(r, carry_end),
                                  .own_ring_base = ring_base(r, position),
                                  .request = r});
          }
        } else {
          const auto ring_row =
              static_cast<int64_t>(ring_base(r, position)) + position % shape.ring_size;
          for (int64_t i = 0; i < row; ++i) {
            const float bias = i < scene.width
                                   ? 0.0F
                                   : scene.ape[static_cast<std::size_t>(
                                         position % ratio * scene.width + i - scene.width)];
            scene.ring[static_cast<std::size_t>(ring_row * row + i)] = from[i] + bias;
          }
        }
      }
    }
    const std::vector<int32_t> counts = {static_cast<int32_t>(scene.plan.size()),
                                         static_cast<int32_t>(scene.writes.size())};
    scene.counts = device::Buffer<int32_t>::from_host(counts);
    // Captured batch larger than the real one: padding is marked, and counted out as well.
    scene.plan.resize(static_cast<std::size_t>(std::max(max_entries, 1)));
    scene.pool_bytes =
        kind == CompressorKind::kIndex
            ? (max_entries + 66) / 64 * index_page_bytes(IndexKeyFormat::kFp4InFp8, 64)
            : (max_entries + 66) / 64 * kv_page_bytes(64);
    scene.rows_buffer = device::Buffer<float>::from_host(scene.rows);
    scene.ape_buffer = device::Buffer<float>::from_host(scene.ape);
    scene.norm_buffer = device::Buffer<float>::from_host(scene.norm_weight);
    scene.ring_buffer = device::Buffer<float>::from_host(scene.ring);
    scene.pooled_buffer =
        device::Buffer<float>(static_cast<int64_t>(scene.plan.size()) * compressor_dims(kind));
    scene.plan_buffer = device::Buffer<CompressorPlanEntry>::from_host(scene.plan);
    scene.writes_buffer = device::Buffer<RingWriteEntry>::from_host(scene.writes);
    scene.pool = device::Buffer<uint8_t>(scene.pool_bytes);
  }

  void fill_params(CompressorScene& scene, CompressorPoolParams& pool, CompressorRingParams& ring) {
    pool.rows = scene.rows_buffer.data();
    pool.num_rows = num_tokens;
    pool.row_stride = 2 * scene.width;
    pool.ape = scene.ape_buffer.data();
    pool.ring = scene.ring_buffer.data();
    pool.ring_size = shape.ring_size;
    pool.plan = scene.plan_buffer.data();
    pool.num_entries = scene.counts.data();
    pool.max_entries = static_cast<int32_t>(scene.plan.size());
    pool.norm_weight = scene.norm_buffer.data();
    pool.frequencies = frequencies_buffer.data();
    pool.eps = 1e-6F;
    pool.pooled = scene.pooled_buffer.data();
    if (scene.kind == CompressorKind::kIndex) {
      pool.index_pool = {scene.pool.data(),
                         index_page_bytes(IndexKeyFormat::kFp4InFp8, 64),
                         64,
                         IndexKeyFormat::kFp4InFp8};
    } else {
      pool.kv_pool = {scene.pool.data(), kv_page_bytes(64), 64};
    }
    ring.rows = pool.rows;
    ring.row_stride = pool.row_stride;
    ring.ape = pool.ape;
    ring.ring = scene.ring_buffer.data();
    ring.writes = scene.writes_buffer.data();
    ring.num_writes = scene.counts.data() + 1;
    ring.max_writes = static_cast<int32_t>(scene.writes.size());
  }

  RandomValues random_;
  std::vector<float> table_;
};

}  // namespace baleen::kernels::testing
