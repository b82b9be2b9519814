// Rows moved by tensor operations have the bytes and the numbers of the codec that moves them one
// by one, in every format, wherever the rows lie.

#include "model/row_bytes.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "model/device_choice.h"
#include "model/device_storage.h"
#include "ops/fake_quantize.h"
#include "ops/rounding.h"

namespace baleen::model {
namespace {

using cache::EntryCodec;
using cache::IndexFormat;
using cache::IndexRounding;
using cache::KvFormat;
using cache::RowPlace;

constexpr int64_t kRows = 9;

struct Case {
  std::string name;
  EntryCodec codec;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  // Widths that end inside a block of scales, and rows without one of the two parts.
  for (const auto& [width, rope] : {std::pair<int64_t, int64_t>{512, 64},
                                    {64, 32},
                                    {72, 8},
                                    {200, 8},
                                    {64, 0},
                                    {32, 32},
                                    {70, 6}}) {
    const std::string size = std::to_string(width) + "/" + std::to_string(rope);
    all.push_back({"packed " + size, EntryCodec::kv(KvFormat::kPacked, width, rope)});
    all.push_back({"bf16 " + size, EntryCodec::kv(KvFormat::kRawBf16, width, rope)});
    all.push_back({"f32 " + size, EntryCodec::kv(KvFormat::kRawF32, width, rope)});
    all.push_back({"f64 " + size, EntryCodec::kv(KvFormat::kRawF64, width, rope)});
  }
  for (const int64_t width : {128, 32, 16, 160, 96}) {
    for (const IndexRounding rounding :
         {IndexRounding::kNone, IndexRounding::kE2m1, IndexRounding::kE4m3}) {
      all.push_back({"index " + std::to_string(width) + " rounding " +
                         std::to_string(static_cast<int>(rounding)),
                     EntryCodec::index(IndexFormat::kFp8, width, rounding)});
    }
  }
  all.push_back({"ring 4", EntryCodec::ring(24, 4)});
  all.push_back({"ring 8", EntryCodec::ring(24, 8)});
  return all;
}

/// Rows of very different sizes, rounded as the model rounds them before it stores them: exact in
/// the format, which is what its bytes are asked for.
at::Tensor rows_for(const EntryCodec& codec, at::ScalarType dtype) {
  std::mt19937 random(17);
  std::normal_distribution<double> normal;
  at::Tensor rows = at::empty({kRows, codec.width()}, at::kDouble);
  for (int64_t i = 0; i < kRows; ++i) {
    for (int64_t j = 0; j < codec.width(); ++j) {
      rows.data_ptr<double>()[i * codec.width() + j] =
          normal(random) * std::ldexp(1.0, static_cast<int>(7 * i - 30 + j % 3));
    }
  }
  rows.data_ptr<double>()[0] = 0.0;
  rows.data_ptr<double>()[1] = -0.0;
  rows.select(0, 1).zero_();
  rows = rows.to(at::kFloat).to(dtype);
  switch (codec.form()) {
    case EntryCodec::Form::kPackedKv: {
      const int64_t plain = codec.width() - codec.rope_dim();
      if (plain > 0) {
        rows.narrow(1, 0, plain)
            .copy_(ops::quantize_fp8_block(rows.narrow(1, 0, plain), cache::kKvScaleDims));
      }
      return ops::round_bf16(rows);
    }
    case EntryCodec::Form::kBf16:
      return ops::round_bf16(rows);
    case EntryCodec::Form::kIndexFp8:
      return codec.rounding() == IndexRounding::kE2m1
                 ? ops::quantize_fp4_block(rows, cache::kIndexFp4ScaleDims)
                 : ops::quantize_fp8_block(rows, cache::kIndexFp8ScaleDims);
    default:
      return rows;
  }
}

/// Memory with places of rows in random order, `gap` bytes between them, `shift` from alignment.
struct Memory {
  std::vector<uint8_t> bytes;
  std::vector<RowPlace> places;

  Memory(const EntryCodec& codec, int64_t gap, int64_t shift, unsigned seed) {
    const int64_t value = codec.value_bytes() + gap;
    const int64_t scale = codec.scale_bytes() + gap;
    bytes.assign(static_cast<std::size_t>(shift + 2 * kRows * (value + scale)), 0xA5);
    std::vector<int64_t> order(2 * kRows);
    for (std::size_t i = 0; i < order.size(); ++i) {
      order[i] = static_cast<int64_t>(i);
    }
    std::shuffle(order.begin(), order.end(), std::mt19937(seed));
    for (int64_t i = 0; i < kRows; ++i) {
      const int64_t at = order[static_cast<std::size_t>(i)];
      places.push_back({bytes.data() + shift + at * value,
                        codec.scale_bytes() == 0
                            ? nullptr
                            : bytes.data() + shift + 2 * kRows * value + at * scale});
    }
  }
};

void encode_one_by_one(const EntryCodec& codec, const at::Tensor& rows, const Memory& memory) {
  const auto width = static_cast<std::size_t>(codec.width());
  for (int64_t i = 0; i < kRows; ++i) {
    const RowPlace place = memory.places[static_cast<std::size_t>(i)];
    if (rows.scalar_type() == at::kDouble) {
      codec.encode(std::span<const double>(rows[i].const_data_ptr<double>(), width), place);
    } else {
      codec.encode(std::span<const float>(rows[i].const_data_ptr<float>(), width), place);
    }
  }
}

at::Tensor decode_one_by_one(const EntryCodec& codec, at::ScalarType dtype, const Memory& memory) {
  at::Tensor rows = at::empty({kRows, codec.width()}, dtype);
  const auto width = static_cast<std::size_t>(codec.width());
  for (int64_t i = 0; i < kRows; ++i) {
    const RowPlace place = memory.places[static_cast<std::size_t>(i)];
    if (dtype == at::kDouble) {
      codec.decode(place, std::span<double>(rows[i].data_ptr<double>(), width));
    } else {
      codec.decode(place, std::span<float>(rows[i].data_ptr<float>(), width));
    }
  }
  return rows;
}

TEST(RowBytesTest, WritesAndReadsWhatTheCodecDoes) {
  for (const Case& test : cases()) {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
      const at::Tensor rows = rows_for(test.codec, dtype);
      for (const auto& [gap, shift] : {std::pair<int64_t, int64_t>{0, 0}, {8, 0}, {3, 1}, {4, 4}}) {
        Memory expected(test.codec, gap, shift, 3);
        Memory written(test.codec, gap, shift, 3);
        encode_one_by_one(test.codec, rows, expected);
        write_rows(test.codec, rows, written.places);
        ASSERT_EQ(written.bytes, expected.bytes) << test.name << " gap " << gap;
        const at::Tensor read = read_rows(test.codec, written.places, rows.options());
        ASSERT_TRUE(at::equal(read, decode_one_by_one(test.codec, dtype, expected)))
            << test.name << " gap " << gap;
      }
    }
  }
}

TEST(RowBytesTest, PaintedMemoryReadsAsNotANumber) {
  for (const Case& test : cases()) {
    Memory memory(test.codec, 0, 0, 1);
    std::fill(memory.bytes.begin(), memory.bytes.end(), uint8_t{0xFF});
    EXPECT_TRUE(read_rows(test.codec, memory.places, at::kFloat).isnan().all().item<bool>())
        << test.name;
    const at::Tensor nan = at::full(
        {kRows, test.codec.width()}, std::numeric_limits<double>::quiet_NaN(), at::kDouble);
    write_rows(test.codec, nan, memory.places);
    EXPECT_TRUE(read_rows(test.codec, memory.places, at::kDouble).isnan().all().item<bool>())
        << test.name;
  }
}

TEST(RowBytesTest, NoRowsAreNoRows) {
  const EntryCodec codec = EntryCodec::kv(KvFormat::kPacked, 64, 32);
  write_rows(codec, at::empty({0, 64}), {});
  EXPECT_EQ(read_rows(codec, {}, at::kFloat).sizes(), (std::vector<int64_t>{0, 64}));
}

TEST(DeviceStorageTest, ZeroesFillsAndGathersCopies) {
  const std::shared_ptr<cache::PoolStorage> storage = device_storage(at::kCPU);
  const std::shared_ptr<uint8_t> memory = storage->allocate(64);
  uint8_t* bytes = memory.get();
  EXPECT_EQ(std::vector<uint8_t>(bytes, bytes + 64), std::vector<uint8_t>(64, 0));
  storage->fill(bytes + 8, 7, 4);
  for (uint8_t i = 0; i < 12; ++i) {
    bytes[i] = static_cast<uint8_t>(bytes[i] + i);
  }
  // Two runs that grow in turn, one of them in two parts that do not touch.
  for (int64_t i = 0; i < 3; ++i) {
    storage->copy(bytes + i, bytes + 20 + i, 1);
    storage->copy(bytes + 4 + 2 * i, bytes + 40 + 2 * i, 2);
  }
  storage->copy(bytes + 10, bytes + 60, 2);
  storage->finish_copies();
  std::vector<uint8_t> expected(64, 0);
  for (uint8_t i = 0; i < 12; ++i) {
    expected[i] = static_cast<uint8_t>(i + (i >= 8 ? 7 : 0));
  }
  std::copy_n(expected.begin(), 3, expected.begin() + 20);
  std::copy_n(expected.begin() + 4, 6, expected.begin() + 40);
  std::copy_n(expected.begin() + 10, 2, expected.begin() + 60);
  EXPECT_EQ(std::vector<uint8_t>(bytes, bytes + 64), expected);
}

TEST(DeviceChoiceTest, NamesDevicesAndRefusesOthers) {
  EXPECT_EQ(device_by_name("cpu"), at::Device(at::kCPU));
  for (const char* name : {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cuda:1000"}) {
    EXPECT_THROW(
        {
          try {
            device_by_name(name);
          } catch (const ConfigError& error) {
            EXPECT_NE(std::string(error.what()).find("known are cpu, cuda and cuda:N"),
                      std::string::npos)
                << error.what();
            throw;
          }
        },
        ConfigError)
        << name;
  }
  EXPECT_THROW(device_by_name("cuda:99"), ConfigError);  // without CUDA, or without 100 cards
}

}  // namespace
}  // namespace baleen::model
