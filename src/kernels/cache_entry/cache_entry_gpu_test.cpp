#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "device/buffer.h"
#include "kernels/cache_entry/cache_entry.h"
#include "kernels/cache_entry/cache_entry_oracle.h"
#include "kernels/testing/gpu_test.h"
#include "kernels/testing/random_values.h"

namespace baleen::kernels {
namespace {

using CacheEntryGpuSmall = testing::GpuTest;
constexpr uint8_t kPaint = 0xA5;
constexpr float kEps = 1e-6F;

std::vector<float> frequencies(double base) {
  std::vector<float> table;
  for (int i = 0; i < kRopePairs; ++i) {
    table.push_back(static_cast<float>(std::pow(base, -2.0 * i / 64.0)));
  }
  return table;
}

/// Distinct rows of a pool of `rows` rows, in random order.
std::vector<int32_t> random_slots(testing::RandomValues& random, int32_t count, int32_t rows) {
  std::vector<int32_t> slots(static_cast<std::size_t>(rows));
  std::iota(slots.begin(), slots.end(), 0);
  for (std::size_t i = slots.size() - 1; i > 0; --i) {
    std::swap(slots[i],
              slots[static_cast<std::size_t>(random.integer(0, static_cast<int64_t>(i)))]);
  }
  slots.resize(static_cast<std::size_t>(count));
  return slots;
}

std::vector<double> doubles(std::span<const float> values) {
  return {values.begin(), values.end()};
}

/// bf16 rows whose blocks of 32 range from subnormal to huge, with zeros, infinities and NaN.
std::vector<float> wild_rows(testing::RandomValues& random,
                             int32_t rows,
                             int32_t width,
                             bool infinite) {
  std::vector<float> values;
  for (int32_t i = 0; i < rows * width; i += 32) {
    const int exponent = static_cast<int>(random.integer(-30, 30));
    for (int32_t j = 0; j < 32; ++j) {
      values.push_back(numerics::round_to_bf16(std::ldexp(random.normal(), exponent)));
    }
  }
  std::fill(values.begin(), values.begin() + width, 0.0F);  // row 0
  if (infinite) {
    values[static_cast<std::size_t>(width) + 5] = std::numeric_limits<float>::infinity();
  }
  values[static_cast<std::size_t>(width) + 70] = -0.0F;
  values[static_cast<std::size_t>(2 * width) + 3] = std::numeric_limits<float>::quiet_NaN();
  return values;
}

/// e4m3 NaN codes may differ in sign.
bool same_code(uint8_t a, uint8_t b) {
  return a == b || ((a & 0x7F) == 0x7F && (b & 0x7F) == 0x7F);
}

TEST_F(CacheEntryGpuSmall, StoresFinishedKvRowsWithTheOraclesBytes) {
  testing::RandomValues random(1);
  for (const int32_t page_rows : {2, 64, 128, 256}) {
    const int32_t pool_rows = 512;
    const int32_t count = 61;
    const int64_t page_bytes = kv_page_bytes(page_rows);
    std::vector<float> rows = wild_rows(random, count, kKvDims, true);
    std::vector<int32_t> slots = random_slots(random, count, pool_rows);
    slots[7] = -1;
    const auto rows_buffer = device::Buffer<float>::from_host(rows);
    const auto slots_buffer = device::Buffer<int32_t>::from_host(slots);
    device::Buffer<uint8_t> pool(pool_rows / page_rows * page_bytes);
    pool.fill_bytes(kPaint);
    BALEEN_CUDA_CHECK(cudaDeviceSynchronize());
    auto nan_rows = device::Buffer<uint32_t>::from_host(std::vector<uint32_t>{0});
    store_kv_rows({.rows = rows_buffer.data(),
                   .slots = slots_buffer.data(),
                   .pool = {pool.data(), page_bytes, page_rows},
                   .nan_rows = nan_rows.data(),
                   .num_rows = count},
                  stream());
    synchronize();
    EXPECT_EQ(nan_rows.to_host()[0], 1U);
    std::vector<uint8_t> expected(static_cast<std::size_t>(pool.count()), kPaint);
    const KvPoolView view{expected.data(), page_bytes, page_rows};
    for (int32_t i = 0; i < count; ++i) {
      if (slots[static_cast<std::size_t>(i)] < 0) {
        continue;
      }
      const EntryBytes entry = kv_entry_oracle(doubles(
          std::span<const float>(rows).subspan(static_cast<std::size_t>(i) * kKvDims, kKvDims)));
      const int32_t slot = slots[static_cast<std::size_t>(i)];
      std::copy(
          entry.values.begin(), entry.values.end(), expected.begin() + kv_value_offset(view, slot));
      std::copy(
          entry.scales.begin(), entry.scales.end(), expected.begin() + kv_scale_offset(view, slot));
    }
    const std::vector<uint8_t> found = pool.to_host();
    for (std::size_t i = 0; i < found.size(); ++i) {
      ASSERT_TRUE(same_code(found[i], expected[i]))
          << "page rows " << page_rows << " byte " << i << " found " << int{found[i]}
          << " expected " << int{expected[i]};
    }
  }
}

TEST_F(CacheEntryGpuSmall, StoresFinishedIndexKeysWithTheOraclesBytes) {
  testing::RandomValues random(2);
  for (const IndexKeyFormat format :
       {IndexKeyFormat::kFp4InFp8, IndexKeyFormat::kFp4, IndexKeyFormat::kFp8}) {
    const int32_t page_rows = 64;
    const int32_t pool_rows = 256;
    const int32_t count = 77;
    const int64_t page_bytes = index_page_bytes(format, page_rows);
    std::vector<float> rows = wild_rows(random, count, kIndexDims, false);
    const std::vector<int32_t> slots = random_slots(random, count, pool_rows);
    const auto rows_buffer = device::Buffer<float>::from_host(rows);
    const auto slots_buffer = device::Buffer<int32_t>::from_host(slots);
    device::Buffer<uint8_t> pool(pool_rows / page_rows * page_bytes);
    pool.fill_bytes(kPaint);
    BALEEN_CUDA_CHECK(cudaDeviceSynchronize());
    store_index_keys({.rows = rows_buffer.data(),
                      .slots = slots_buffer.data(),
                      .pool = {pool.data(), page_bytes, page_rows, format},
                      .num_rows = count},
                     stream());
    synchronize();
    std::vector<uint8_t> expected(static_cast<std::size_t>(pool.count()), kPaint);
    const IndexPoolView view{expected.data(), page_bytes, page_rows, format};
    for (int32_t i = 0; i < count; ++i) {
      const EntryBytes entry =
          index_key_entry_oracle(doubles(std::span<const float>(rows).subspan(
                                     static_cast<std::size_t>(i) * kIndexDims, kIndexDims)),
                                 format);
      const int32_t slot = slots[static_cast<std::size_t>(i)];
      std::copy(entry.values.begin(),
                entry.values.end(),
                expected.begin() + index_value_offset(view, slot));
      std::copy(entry.scales.begin(),
                entry.scales.end(),
                expected.begin() + index_scale_offset(view, slot));
    }
    const std::vector<uint8_t> found = pool.to_host();
    for (std::size_t i = 0; i < found.size(); ++i) {
      ASSERT_TRUE(same_code(found[i], expected[i]))
          << "format " << static_cast<int>(format) << " byte " << i << " found " << int{found[i]}
          << " expected " << int{expected[i]};
    }
  }
}

/// A norm in FP32 is within 3e-7 of the exact one and a bf16 step is 2^-8: a value lands on the
/// other side of a tie about once in 10,000 elements, and moves its code by at most one step.
class FinishCounter {
 public:
  void compare(double found, double expected, double step) {
    ++total_;
    if (found != expected) {
      ++different_;
      EXPECT_LE(std::abs(found - expected), 1.01 * step)
          << "found " << found << " expected " << expected;
    }
  }
  void expect_few() const { EXPECT_LE(different_, total_ / 500) << "of " << total_; }

 private:
  int64_t total_ = 0;
  int64_t different_ = 0;
};

TEST_F(CacheEntryGpuSmall, FinishesRowsAtEveryPosition) {
  testing::RandomValues random(3);
  const std::vector<int32_t> positions = {0, 1, 127, 128, 65535, 65536, 262143, 1048575};
  const auto count = static_cast<int32_t>(positions.size());
  for (const double base : {10000.0, 160000.0}) {
    const std::vector<float> table = frequencies(base);
    const std::vector<float> rows = random.normals(int64_t{count} * kKvDims, 3.0F);
    std::vector<float> weight = random.normals(kKvDims, 0.3F);
    for (float& value : weight) {
      value += 1.0F;
    }
    std::vector<int32_t> slots(positions.size());
    std::iota(slots.begin(), slots.end(), 0);
    const auto rows_buffer = device::Buffer<float>::from_host(rows);
    const auto weight_buffer = device::Buffer<float>::from_host(weight);
    const auto table_buffer = device::Buffer<float>::from_host(table);
    const auto position_buffer = device::Buffer<int32_t>::from_host(positions);
    const auto slots_buffer = device::Buffer<int32_t>::from_host(slots);
    device::Buffer<uint8_t> kv(kv_page_bytes(64));
    device::Buffer<uint8_t> keys(index_page_bytes(IndexKeyFormat::kFp4InFp8, 64));
    kv.fill_bytes(kPaint);
    keys.fill_bytes(kPaint);
    store_kv_rows({.rows = rows_buffer.data(),
                   .norm_weight = weight_buffer.data(),
                   .frequencies = table_buffer.data(),
                   .positions = position_buffer.data(),
                   .slots = slots_buffer.data(),
                   .pool = {kv.data(), kv_page_bytes(64), 64},
                   .num_rows = count,
                   .eps = kEps},
                  stream());
    store_index_keys({.rows = rows_buffer.data(),
                      .row_stride = kKvDims,
                      .norm_weight = weight_buffer.data(),
                      .frequencies = table_buffer.data(),
                      .positions = position_buffer.data(),
                      .slots = slots_buffer.data(),
                      .pool = {keys.data(), keys.count(), 64, IndexKeyFormat::kFp4InFp8},
                      .num_rows = count,
                      .eps = kEps},
                     stream());
    synchronize();
    const std::vector<uint8_t> kv_bytes = kv.to_host();
    const std::vector<uint8_t> key_bytes = keys.to_host();
    FinishCounter nope;
    FinishCounter rope;
    FinishCounter key;
    for (int32_t i = 0; i < count; ++i) {
      const auto row =
          std::span<const float>(rows).subspan(static_cast<std::size_t>(i) * kKvDims, kKvDims);
      const int32_t position = positions[static_cast<std::size_t>(i)];
      const EntryBytes entry = kv_entry_oracle(finish_kv_oracle(
          doubles(row), doubles(weight), table, position, static_cast<double>(kEps)));
      const KvPoolView view{nullptr, kv_page_bytes(64), 64};
      for (int32_t d = 0; d < kKvNopeDims; ++d) {
        const auto at = static_cast<std::size_t>(d);
        const double scale = static_cast<double>(numerics::ue8m0_to_float(entry.scales[at / 64]));
        const auto found_scale =
            kv_bytes[static_cast<std::size_t>(kv_scale_offset(view, i)) + at / 64];
        const uint8_t code = kv_bytes[static_cast<std::size_t>(kv_value_offset(view, i)) + at];
        const double expected =
            static_cast<double>(numerics::e4m3_to_float(entry.values[at])) * scale;
        nope.compare(static_cast<double>(numerics::e4m3_to_float(code)) *
                         static_cast<double>(numerics::ue8m0_to_float(found_scale)),
                     expected,
                     std::max(std::abs(expected) / 8, scale / 256));
      }
      for (int32_t d = 0; d < kKvRopeDims; ++d) {
        const auto at = static_cast<std::size_t>(kKvNopeDims + 2 * d);
        const auto decode = [&](const uint8_t* bytes) {
          return static_cast<double>(
              numerics::bf16_to_float(static_cast<uint16_t>(bytes[0] | bytes[1] << 8)));
        };
        const double expected = decode(&entry.values[at]);
        // A difference of products may cancel: the step is that of the factors.
        rope.compare(decode(&kv_bytes[static_cast<std::size_t>(kv_value_offset(view, i)) + at]),
                     expected,
                     std::max(std::abs(expected), 0.25) / 128);
      }
      const std::vector<double> finished =
          finish_index_key_oracle(doubles(row.first(kIndexDims)),
                                  doubles(std::span<const float>(weight).first(kIndexDims)),
                                  table,
                                  position,
                                  static_cast<double>(kEps));
      const EntryBytes expected_key = index_key_entry_oracle(finished, IndexKeyFormat::kFp4InFp8);
      float scale = 0;
      float found_scale = 0;
      std::memcpy(&scale, expected_key.scales.data(), 4);
      std::memcpy(&found_scale, &key_bytes[static_cast<std::size_t>(64 * kIndexDims + 4 * i)], 4);
      for (int32_t d = 0; d < kIndexDims; ++d) {
        const auto at = static_cast<std::size_t>(d);
        const double expected =
            static_cast<double>(numerics::e4m3_to_float(expected_key.values[at]) * scale);
        key.compare(
            static_cast<double>(
                numerics::e4m3_to_float(key_bytes[static_cast<std::size_t>(i * kIndexDims) + at]) *
                found_scale),
            expected,
            std::max(std::abs(expected) / 2, static_cast<double>(scale) * 32));
      }
    }
    nope.expect_few();
    rope.expect_few();
    key.expect_few();
  }
}

TEST_F(CacheEntryGpuSmall, TinyRowsTakeTheLeastScale) {
  std::vector<float> rows(kKvDims, 1e-6F);  // amax below 1e-4
  const auto rows_buffer = device::Buffer<float>::from_host(rows);
  const auto slots = device::Buffer<int32_t>::from_host(std::vector<int32_t>{0});
  device::Buffer<uint8_t> pool(kv_page_bytes(2));
  pool.fill_bytes(kPaint);
  store_kv_rows({.rows = rows_buffer.data(),
                 .slots = slots.data(),
                 .pool = {pool.data(), kv_page_bytes(2), 2},
                 .num_rows = 1},
                stream());
  synchronize();
  EXPECT_EQ(pool.to_host()[2 * kKvValueBytes], 127 - 22);
}

TEST_F(CacheEntryGpuSmall, ZeroRowsAreLegal) {
  store_kv_rows({.num_rows = 0}, stream());
  store_index_keys({.num_rows = 0}, stream());
}

}  // namespace
}  // namespace baleen::kernels
