#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/after_projection/after_projection.h"
#include "kernels/after_projection/after_projection_scene.h"
#include "kernels/cache_entry/cache_entry.h"
#include "kernels/cache_entry/cache_entry_oracle.h"
#include "kernels/rms_norm/rms_norm_oracle.h"
#include "kernels/testing/gpu_test.h"

namespace baleen::kernels {
namespace {

using testing::AfterProjectionScene;
using testing::AfterProjectionShape;
using testing::CompressorScene;
using AfterProjectionGpu = testing::GpuTest;
using AfterProjectionGpuSmall = testing::GpuTest;

struct Outputs {
  std::vector<uint8_t> codes, scales, window, main_pool, index_pool;
  std::vector<uint16_t> normalised;
  std::vector<float> weights, main_ring, index_ring, main_pooled, index_pooled;
  uint32_t nan_rows = 0;
};

Outputs outputs(const AfterProjectionScene& scene) {
  return {.codes = scene.codes.to_host(),
          .scales = scene.scales.to_host(),
          .window = scene.window.to_host(),
          .main_pool = scene.main.pool.to_host(),
          .index_pool = scene.index.pool.to_host(),
          .normalised = scene.normalised.to_host(),
          .weights = scene.weights_out.to_host(),
          .main_ring = scene.main.ring_buffer.to_host(),
          .index_ring = scene.index.ring_buffer.to_host(),
          .main_pooled = scene.main.pooled_buffer.to_host(),
          .index_pooled = scene.index.pooled_buffer.to_host(),
          .nan_rows = scene.nan_rows.to_host()[0]};
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

void expect_same(const Outputs& a, const Outputs& b) {
  EXPECT_TRUE(same_bits(a.codes, b.codes)) << "codes";
  EXPECT_TRUE(same_bits(a.scales, b.scales)) << "scales";
  EXPECT_TRUE(same_bits(a.normalised, b.normalised)) << "normalised";
  EXPECT_TRUE(same_bits(a.window, b.window)) << "window";
  EXPECT_TRUE(same_bits(a.weights, b.weights)) << "weights";
  EXPECT_TRUE(same_bits(a.main_ring, b.main_ring)) << "main ring";
  EXPECT_TRUE(same_bits(a.main_pool, b.main_pool)) << "main pool";
  EXPECT_TRUE(same_bits(a.main_pooled, b.main_pooled)) << "main pooled";
  EXPECT_TRUE(same_bits(a.index_ring, b.index_ring)) << "index ring";
  EXPECT_TRUE(same_bits(a.index_pool, b.index_pool)) << "index pool";
  EXPECT_TRUE(same_bits(a.index_pooled, b.index_pooled)) << "index pooled";
  EXPECT_EQ(a.nan_rows, b.nan_rows);
}

std::vector<double> bf16_doubles(std::span<const uint16_t> values) {
  std::vector<double> out;
  for (const uint16_t value : values) {
    out.push_back(static_cast<double>(numerics::bf16_to_float(value)));
  }
  return out;
}

void expect_latent(const AfterProjectionScene& scene, const Outputs& out) {
  const auto width = static_cast<std::size_t>(scene.shape.latent_width);
  const std::vector<double> weight(scene.latent_weight.begin(), scene.latent_weight.end());
  int64_t different = 0;
  for (std::size_t t = 0; t < static_cast<std::size_t>(scene.num_tokens); ++t) {
    const std::vector<double> y =
        rms_norm_oracle(bf16_doubles(std::span(scene.latent).subspan(t * (width + kKvDims), width)),
                        weight,
                        static_cast<double>(1e-6F));
    std::vector<float> row;
    for (std::size_t i = 0; i < width; ++i) {
      const double expected = numerics::round_to_bf16(y[i]);
      const float found = numerics::bf16_to_float(out.normalised[t * width + i]);
      different += static_cast<double>(found) != expected ? 1 : 0;
      ASSERT_NEAR(static_cast<double>(found), expected, std::abs(expected) / 127) << t << " " << i;
      row.push_back(found);
    }
    std::vector<uint8_t> codes(width);
    std::vector<uint8_t> scales(width / kLatentQuantDims);
    numerics::quantize_q8(std::span<const float>(row), kLatentQuantDims, codes, scales);
    ASSERT_TRUE(std::equal(
        codes.begin(), codes.end(), out.codes.begin() + static_cast<int64_t>(t * width)));
    ASSERT_TRUE(std::equal(scales.begin(),
                           scales.end(),
                           out.scales.begin() + static_cast<int64_t>(t * scales.size())));
  }
  // FP32 norms are within 3e-7 and bf16 steps are 2^-8: about one in 10,000 lies beyond a tie.
  EXPECT_LE(different, static_cast<int64_t>(out.normalised.size()) / 1000 + 1);
}

void expect_weights(const AfterProjectionScene& scene, const Outputs& out) {
  for (std::size_t i = 0; i < scene.index_weights.size(); ++i) {
    const float w = numerics::bf16_to_float(scene.index_weights[i]);
    ASSERT_EQ(out.weights[i], numerics::round_to_bf16(w * 0.0110485435F)) << i;
  }
}

/// Rings: written rows hold value and score with bias, all others what they held.
void expect_ring(const CompressorScene& scene, const std::vector<float>& found) {
  std::vector<float> expected = scene.ring;
  const auto width = static_cast<std::size_t>(scene.width);
  const auto ratio = static_cast<std::size_t>(compressor_ratio(scene.kind));
  for (const RingWriteEntry& write : scene.writes) {
    for (std::size_t i = 0; i < 2 * width; ++i) {
      const float raw = scene.rows[static_cast<std::size_t>(write.row) * 2 * width + i];
      const float bias =
          i < width
              ? 0.0F
              : scene.ape[static_cast<std::size_t>(write.position) % ratio * width + i - width];
      expected[static_cast<std::size_t>(write.ring_row) * 2 * width + i] =
          i < width ? raw : raw + bias;
    }
  }
  EXPECT_TRUE(same_bits(found, expected));
}

/// Pooled channels against the double loop over stored rows. FP32 weights are within 2^-21 and
/// there are at most 128 of them.
void expect_pooled(const CompressorScene& scene, const std::vector<float>& found) {
  const auto dims = static_cast<std::size_t>(compressor_dims(scene.kind));
  const auto width = static_cast<std::size_t>(scene.width);
  const int32_t ratio = compressor_ratio(scene.kind);
  for (std::size_t e = 0; e < scene.plan.size(); ++e) {
    const CompressorPlanEntry& plan = scene.plan[e];
    if (plan.destination < 0) {
      continue;
    }
    const auto& history = scene.history[static_cast<std::size_t>(plan.request)];
    const int32_t begin = scene.history_begin[static_cast<std::size_t>(plan.request)];
    for (std::size_t c = 0; c < dims; ++c) {
      std::vector<double> scores;
      std::vector<double> values;
      for (int32_t back = compressor_window(scene.kind) - 1; back >= 0; --back) {
        const int32_t position = plan.end_position - back;
        if (position < 0) {
          continue;
        }
        const bool carry = back >= ratio;
        const std::size_t half = scene.kind == CompressorKind::kC128 || carry ? 0 : dims;
        const auto row = static_cast<std::size_t>(position - begin) * 2 * width;
        values.push_back(static_cast<double>(history[row + half + c]));
        scores.push_back(static_cast<double>(
            history[row + width + half + c] +
            scene.ape[static_cast<std::size_t>(position % ratio) * width + half + c]));
      }
      const double maximum = *std::max_element(scores.begin(), scores.end());
      double sum = 0;
      double weighted = 0;
      for (std::size_t s = 0; s < scores.size(); ++s) {
        sum += std::exp(scores[s] - maximum);
        weighted += std::exp(scores[s] - maximum) * values[s];
      }
      const double expected = weighted / sum;
      ASSERT_NEAR(
          static_cast<double>(found[e * dims + c]), expected, 2e-6 + 1e-5 * std::abs(expected))
          << "entry " << e << " channel " << c << " end " << plan.end_position;
    }
  }
}

/// The stored bytes are those of the stand-alone writer on the same pooled rows.
void expect_stored(CompressorScene& scene,
                   const float* frequencies,
                   const std::vector<uint8_t>& found,
                   cudaStream_t stream) {
  std::vector<int32_t> first;
  std::vector<int32_t> slots;
  for (const CompressorPlanEntry& plan : scene.plan) {
    first.push_back(plan.end_position + 1 - compressor_ratio(scene.kind));
    slots.push_back(plan.destination);
  }
  const auto first_buffer = device::Buffer<int32_t>::from_host(first);
  const auto slots_buffer = device::Buffer<int32_t>::from_host(slots);
  device::Buffer<uint8_t> pool(scene.pool_bytes);
  pool.fill_bytes(0xA5);
  BALEEN_CUDA_CHECK(cudaDeviceSynchronize());
  if (scene.kind == CompressorKind::kIndex) {
    store_index_keys({.rows = scene.pooled_buffer.data(),
                      .norm_weight = scene.norm_buffer.data(),
                      .frequencies = frequencies,
                      .positions = first_buffer.data(),
                      .slots = slots_buffer.data(),
                      .pool = {pool.data(),
                               index_page_bytes(IndexKeyFormat::kFp4InFp8, 64),
                               64,
                               IndexKeyFormat::kFp4InFp8},
                      .num_rows = static_cast<int32_t>(slots.size()),
                      .eps = 1e-6F},
                     stream);
  } else {
    store_kv_rows({.rows = scene.pooled_buffer.data(),
                   .norm_weight = scene.norm_buffer.data(),
                   .frequencies = frequencies,
                   .positions = first_buffer.data(),
                   .slots = slots_buffer.data(),
                   .pool = {pool.data(), kv_page_bytes(64), 64},
                   .num_rows = static_cast<int32_t>(slots.size()),
                   .eps = 1e-6F},
                  stream);
  }
  BALEEN_CUDA_CHECK(cudaStreamSynchronize(stream));
  EXPECT_TRUE(same_bits(pool.to_host(), found));
}

void expect_window(AfterProjectionScene& scene, const Outputs& out, cudaStream_t stream) {
  const auto width = static_cast<std::size_t>(scene.shape.latent_width);
  std::vector<float> rows;
  for (std::size_t t = 0; t < static_cast<std::size_t>(scene.num_tokens); ++t) {
    for (std::size_t i = 0; i < kKvDims; ++i) {
      rows.push_back(numerics::bf16_to_float(scene.latent[t * (width + kKvDims) + width + i]));
    }
  }
  const auto rows_buffer = device::Buffer<float>::from_host(rows);
  device::Buffer<uint8_t> pool(scene.window.count());
  pool.fill_bytes(0xA5);
  BALEEN_CUDA_CHECK(cudaDeviceSynchronize());
  store_kv_rows({.rows = rows_buffer.data(),
                 .norm_weight = scene.kv_weight_buffer.data(),
                 .frequencies = scene.frequencies_buffer.data(),
                 .positions = scene.positions_buffer.data(),
                 .slots = scene.slots_buffer.data(),
                 .pool = {pool.data(), kv_page_bytes(256), 256},
                 .num_rows = scene.num_tokens,
                 .eps = 1e-6F},
                stream);
  BALEEN_CUDA_CHECK(cudaStreamSynchronize(stream));
  EXPECT_TRUE(same_bits(pool.to_host(), out.window));
}

void expect_everything(AfterProjectionScene& scene, cudaStream_t stream) {
  after_projection_sm90(scene.params(), stream);
  BALEEN_CUDA_CHECK(cudaStreamSynchronize(stream));
  const Outputs out = outputs(scene);
  expect_latent(scene, out);
  expect_window(scene, out, stream);
  for (CompressorScene* compressor : {&scene.main, &scene.index}) {
    if (compressor->plan.empty()) {
      continue;
    }
    const bool is_index = compressor == &scene.index;
    expect_ring(*compressor, is_index ? out.index_ring : out.main_ring);
    expect_pooled(*compressor, is_index ? out.index_pooled : out.main_pooled);
    expect_stored(*compressor,
                  scene.frequencies_buffer.data(),
                  is_index ? out.index_pool : out.main_pool,
                  stream);
  }
  if (!scene.index.plan.empty()) {
    expect_weights(scene, out);
  }
  scene.paint();
  after_projection_portable(scene.params(), stream);
  BALEEN_CUDA_CHECK(cudaStreamSynchronize(stream));
  expect_same(out, outputs(scene));
}

const std::vector<int32_t> kStarts = {
    0, 1, 3, 4, 7, 127, 128, 255, 256, 65535, 65536, 262143, 1048575};

TEST_F(AfterProjectionGpuSmall, RatioFourAtEveryPosition) {
  for (const int32_t tokens : {1, 4, 9}) {
    SCOPED_TRACE(tokens);
    AfterProjectionScene scene({.starts = kStarts, .tokens = tokens},
                               static_cast<uint64_t>(tokens));
    expect_everything(scene, stream());
  }
  AfterProjectionScene tight({.starts = {7, 8, 11, 255}, .tokens = 1, .ring_size = 8}, 4);
  expect_everything(tight, stream());
}

TEST_F(AfterProjectionGpu, Ratio128AtEveryPosition) {
  for (const auto& [tokens, ring] : {std::pair{1, 128}, {4, 136}, {9, 136}}) {
    SCOPED_TRACE(tokens);
    AfterProjectionScene scene({.main = CompressorKind::kC128,
                                .starts = {0, 1, 124, 126, 127, 128, 250, 255, 1048575},
                                .tokens = tokens,
                                .ring_size = ring},
                               static_cast<uint64_t>(tokens));
    expect_everything(scene, stream());
  }
}

TEST_F(AfterProjectionGpu, MoreDenseEntriesThanClusters) {
  std::vector<int32_t> starts(37, 127);
  AfterProjectionScene scene(
      {.main = CompressorKind::kC128, .starts = starts, .tokens = 1, .ring_size = 128}, 6);
  expect_everything(scene, stream());
}

TEST_F(AfterProjectionGpuSmall, WindowLayersHaveNoCompressor) {
  AfterProjectionScene scene(
      {.starts = {5, 90}, .tokens = 2, .latent_width = 1536, .compressors = false}, 7);
  expect_everything(scene, stream());
}

TEST_F(AfterProjectionGpu, ATokenHasTheSameBitsInEveryBatch) {
  std::vector<int32_t> starts;
  for (int32_t i = 0; i < 64; ++i) {
    starts.push_back(100 + 3 * i);
  }
  AfterProjectionScene scene({.starts = starts, .tokens = 1}, 8);
  after_projection_sm90(scene.params(), stream());
  synchronize();
  const Outputs all = outputs(scene);
  for (const int32_t batch : {1, 2, 7, 16, 64}) {
    scene.paint();
    AfterProjectionParams params = scene.params();
    params.num_tokens = batch;
    params.main_ring.max_writes = batch;
    params.index_ring.max_writes = batch;
    after_projection_sm90(params, stream());
    synchronize();
    const Outputs out = outputs(scene);
    EXPECT_TRUE(std::equal(out.codes.begin(), out.codes.begin() + batch * 1024, all.codes.begin()));
    EXPECT_TRUE(
        std::equal(out.weights.begin(), out.weights.begin() + batch * 64, all.weights.begin()));
    const KvPoolView view{nullptr, kv_page_bytes(256), 256};
    for (int32_t t = 0; t < batch; ++t) {
      const int64_t at = kv_value_offset(view, scene.slots[static_cast<std::size_t>(t)]);
      EXPECT_TRUE(std::equal(
          out.window.begin() + at, out.window.begin() + at + 576, all.window.begin() + at));
    }
  }
}

TEST_F(AfterProjectionGpuSmall, NanStaysInItsRowAndIsCounted) {
  AfterProjectionScene scene({.starts = {10, 20, 30}, .tokens = 1}, 9);
  after_projection_sm90(scene.params(), stream());
  synchronize();
  const Outputs clean = outputs(scene);
  std::vector<uint16_t> rows = scene.latent;
  rows[(1024 + 512) + 1024 + 70] = 0x7FC0;  // kv row of token 1
  scene.latent_buffer.copy_from_host(std::span<const uint16_t>(rows));
  scene.paint();
  after_projection_sm90(scene.params(), stream());
  synchronize();
  const Outputs out = outputs(scene);
  EXPECT_EQ(clean.nan_rows, 0U);
  EXPECT_EQ(out.nan_rows, 1U);
  EXPECT_TRUE(same_bits(out.codes, clean.codes));
  const KvPoolView view{nullptr, kv_page_bytes(256), 256};
  for (int32_t t = 0; t < 3; ++t) {
    const int64_t at = kv_value_offset(view, scene.slots[static_cast<std::size_t>(t)]);
    const bool same = std::equal(
        out.window.begin() + at, out.window.begin() + at + 576, clean.window.begin() + at);
    EXPECT_EQ(same, t != 1) << t;
  }
  const int64_t at = kv_value_offset(view, scene.slots[1]);
  EXPECT_EQ(out.window[static_cast<std::size_t>(at)] & 0x7F, 0x7F);
}

TEST_F(AfterProjectionGpu, AThousandLaunchesGiveEqualBits) {
  for (const CompressorKind kind : {CompressorKind::kC4, CompressorKind::kC128}) {
    AfterProjectionScene scene({.main = kind,
                                .starts = {124, 251, 379},
                                .tokens = 4,
                                .ring_size = kind == CompressorKind::kC4 ? 16 : 136},
                               10);
    after_projection_sm90(scene.params(), stream());
    synchronize();
    const Outputs expected = outputs(scene);
    for (int round = 0; round < 10; ++round) {
      scene.paint();
      for (int i = 0; i < 100; ++i) {  // the ring is rewritten with the same rows
        AfterProjectionParams params = scene.params();
        params.nan_rows = nullptr;
        params.programmatic = i % 2 == 1;
        after_projection_sm90(params, stream());
      }
      synchronize();
      expect_same(outputs(scene), expected);
    }
  }
}

TEST_F(AfterProjectionGpuSmall, ZeroTokensAreLegal) {
  AfterProjectionParams params;
  after_projection_sm90(params, stream());
  after_projection_portable(params, stream());
}

}  // namespace
}  // namespace baleen::kernels
