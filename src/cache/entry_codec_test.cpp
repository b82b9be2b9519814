// Rows that the model has rounded come back from every format bit for bit.

#include "cache/entry_codec.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "numerics/bfloat16.h"
#include "numerics/block_scale.h"
#include "numerics/float4.h"
#include "numerics/float8.h"

namespace baleen::cache {
namespace {

/// Bytes for one row, painted.
struct Bytes {
  std::vector<uint8_t> value = std::vector<uint8_t>(4096, 0xFF);
  std::vector<uint8_t> scales = std::vector<uint8_t>(256, 0xFF);
  RowPlace place() { return {value.data(), scales.data()}; }
};

template <class Number>
std::vector<Number> round_trip(const EntryCodec& codec, const std::vector<Number>& row) {
  Bytes bytes;
  codec.encode<Number>(row, bytes.place());
  std::vector<Number> back(row.size());
  codec.decode<Number>(bytes.place(), back);
  return back;
}

TEST(EntryCodecTest, PackedRowsKeepEveryCodeAtEveryScale) {
  const EntryCodec codec = EntryCodec::kv(KvFormat::kPacked, 64 + 8, 8);
  for (int exponent = -22; exponent <= 30; ++exponent) {
    for (int first = 0; first < 256; first += 61) {
      std::vector<double> row;
      for (int i = 0; i < 64; ++i) {
        const auto code = static_cast<uint8_t>(first + i);
        const float value = numerics::e4m3_to_float(code);
        row.push_back(std::isnan(value) ? 0.0 : std::ldexp(static_cast<double>(value), exponent));
      }
      for (int i = 0; i < 8; ++i) {
        row.push_back(numerics::round_to_bf16(std::ldexp(1.2345, i - 4)));
      }
      numerics::simulate_s8(std::span<double>(row).first(64), 64);
      EXPECT_EQ(round_trip(codec, row), row) << "exponent " << exponent << " first " << first;
      const std::vector<float> as_float(row.begin(), row.end());
      EXPECT_EQ(round_trip(codec, as_float), as_float);
    }
  }
}

TEST(EntryCodecTest, ShortLastBlockHasAScaleOfItsOwn) {
  const EntryCodec codec = EntryCodec::kv(KvFormat::kPacked, 70, 0);
  std::vector<double> row(70, 0x1p-10);
  row[3] = 300;
  numerics::simulate_s8(std::span<double>(row), 64);
  EXPECT_EQ(round_trip(codec, row), row);
  EXPECT_EQ(row[69], 0x1p-10);
}

TEST(EntryCodecTest, RoundedIndexKeysSurviveInFp8) {
  const EntryCodec codec = EntryCodec::index(IndexFormat::kFp8, 128, IndexRounding::kE2m1);
  const EntryCodec packed = EntryCodec::index(IndexFormat::kFp4, 128, IndexRounding::kE2m1);
  // Four groups whose scales differ by up to 14 powers of two.
  for (int spread = 0; spread <= 14; ++spread) {
    std::vector<double> row;
    for (int group = 0; group < 4; ++group) {
      const int exponent = group == 1 ? 0 : -(group == 2 ? spread : spread / 2);
      for (int i = 0; i < 32; ++i) {
        const auto code = static_cast<uint8_t>((i + group) % 16);
        row.push_back(std::ldexp(static_cast<double>(numerics::e2m1_to_float(code)), exponent));
      }
    }
    numerics::simulate_s4(std::span<double>(row), 32);
    EXPECT_EQ(round_trip(codec, row), row) << "spread " << spread;
    EXPECT_EQ(round_trip(packed, row), row) << "spread " << spread;
  }
}

TEST(EntryCodecTest, WiderSpreadsOfAnIndexKeyAreRoundedOnce) {
  const EntryCodec codec = EntryCodec::index(IndexFormat::kFp8, 64, IndexRounding::kE2m1);
  std::vector<double> row(64, 0.0);
  row[0] = 6.0;
  row[32] = 0.5 * 0x1p-16;
  row[33] = 6.0 * 0x1p-16;
  const std::vector<double> back = round_trip(codec, row);
  EXPECT_EQ(back[0], 6.0);
  EXPECT_EQ(back[33], row[33]);
  EXPECT_EQ(back[32], 0.0);
  EXPECT_EQ(round_trip(codec, back), back);
}

TEST(EntryCodecTest, EightBitIndexKeysSurvive) {
  const EntryCodec codec = EntryCodec::index(IndexFormat::kFp8, 130, IndexRounding::kE4m3);
  std::vector<double> row;
  for (int i = 0; i < 130; ++i) {
    row.push_back(std::sin(i) * (i < 128 ? 7.0 : 0.01));
  }
  numerics::simulate_s8(std::span<double>(row), 128);
  EXPECT_EQ(round_trip(codec, row), row);
}

TEST(EntryCodecTest, RawFormsKeepTheComputeType) {
  const std::vector<double> row{0.1, -0.0, 1e300, 0x1p-1074};
  EXPECT_EQ(round_trip(EntryCodec::kv(KvFormat::kRawF64, 4, 2), row), row);
  EXPECT_EQ(round_trip(EntryCodec::ring(4, 8), row), row);
  const std::vector<float> floats{0.1F, -0.0F, 1e30F, 0x1p-149F};
  EXPECT_EQ(round_trip(EntryCodec::index(IndexFormat::kRawF32, 4, IndexRounding::kNone), floats),
            floats);
  const std::vector<float> halves{1.5F, -0.25F, 0x1p-120F, 3e38F};
  std::vector<float> rounded;
  for (const float value : halves) {
    rounded.push_back(numerics::round_to_bf16(value));
  }
  EXPECT_EQ(round_trip(EntryCodec::kv(KvFormat::kRawBf16, 4, 2), rounded), rounded);
}

TEST(EntryCodecTest, PaintIsNotANumberInEveryForm) {
  const EntryCodec codecs[] = {EntryCodec::kv(KvFormat::kPacked, 72, 8),
                               EntryCodec::kv(KvFormat::kRawF64, 72, 8),
                               EntryCodec::kv(KvFormat::kRawF32, 72, 8),
                               EntryCodec::kv(KvFormat::kRawBf16, 72, 8),
                               EntryCodec::index(IndexFormat::kFp8, 72, IndexRounding::kE2m1),
                               EntryCodec::index(IndexFormat::kFp4, 72, IndexRounding::kE2m1),
                               EntryCodec::ring(72, 4)};
  for (const EntryCodec& codec : codecs) {
    Bytes bytes;
    std::vector<float> row(72);
    codec.decode<float>(bytes.place(), row);
    for (const float value : row) {
      EXPECT_TRUE(std::isnan(value));
    }
  }
}

}  // namespace
}  // namespace baleen::cache
