#include "kernels/experts/expert_packing.h"

#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "kernels/experts/expert_tiles.h"
#include "kernels/testing/random_values.h"
#include "numerics/float4.h"
#include "numerics/float8.h"

namespace baleen::kernels {
namespace {

struct Source {
  std::vector<uint8_t> codes, scales;
  ExpertMatrix matrix;
  float value(int64_t row, int64_t input) const {
    const auto at = static_cast<std::size_t>(row * matrix.inputs + input);
    const uint8_t byte = codes[at / 2];
    return numerics::e2m1_to_float(input % 2 == 0 ? numerics::low_nibble(byte)
                                                  : numerics::high_nibble(byte)) *
           numerics::ue8m0_to_float(scales[at / 32]);
  }
};

void fill(Source& source,
          int64_t rows,
          int64_t inputs,
          testing::RandomValues& random,
          int low,
          int high) {
  source.codes = random.bytes(rows * inputs / 2);
  source.scales = random.bytes(rows * inputs / 32, low, high);
  source.matrix = {source.codes, source.scales, rows, inputs};
}

template <class T>
T read(const std::byte* place) {
  T value;
  std::memcpy(&value, place, sizeof(value));
  return value;
}

/// The weight that lane `thread` holds in register `reg` (0..3), byte `k`, of instruction `j`.
float lane_value(const std::byte* block, int thread, int j, int reg, int k) {
  const uint32_t word = read<uint32_t>(block + lane_place(j / 2, thread) + j % 2 * 8 + reg % 2 * 4);
  const uint32_t exponents =
      read<uint32_t>(block + 4096 + word_place(thread / 32, thread % 32 / 4, reg % 2));
  uint32_t registers[2];
  expand_word(word, registers[0], registers[1]);
  return numerics::e4m3_to_float(static_cast<uint8_t>(registers[reg / 2] >> (8 * k))) *
         group_scale(exponents, j);
}

TEST(ExpertTilesTest, EveryCodeAtEveryPlaceIsExact) {
  for (int place = 0; place < 8; ++place) {
    for (uint32_t code = 0; code < 16; ++code) {
      for (const uint32_t others : {0U, 15U}) {
        uint32_t word = 0;
        for (int n = 0; n < 8; ++n) {
          word |= placed_code(n == place ? code : others, n);
        }
        uint32_t registers[2];
        expand_word(word, registers[0], registers[1]);
        const auto byte = static_cast<uint8_t>(registers[place / 4] >> (8 * (place % 4)));
        const float expected = numerics::e2m1_to_float(static_cast<uint8_t>(code));
        EXPECT_EQ(std::ldexp(numerics::e4m3_to_float(byte), kMagnitudeShift), expected) << code;
        EXPECT_EQ(byte >> 7, static_cast<int>(code >> 3)) << "the sign of zero is kept";
      }
    }
  }
}

TEST(ExpertTilesTest, EveryScaleOfAWordIsReadAlone) {
  for (int group = 0; group < 4; ++group) {
    for (uint32_t code = 1; code <= 254; ++code) {
      for (const uint32_t others : {0x00U, 0xFFU}) {
        const uint32_t word = (others * 0x01010101U & ~(0xFFU << (8 * group))) | code
                                                                                     << (8 * group);
        EXPECT_EQ(group_scale(word, group), numerics::ue8m0_to_float(static_cast<uint8_t>(code)));
      }
    }
  }
}

TEST(ExpertPackingTest, EveryWeightOfADownMatrixReachesItsLane) {
  testing::RandomValues random(3);
  Source w;
  fill(w, 128, 384, random, 90, 134);
  const std::vector<std::byte> packed = pack_down_fp4(w.matrix, "w2");
  ASSERT_EQ(static_cast<int64_t>(packed.size()), packed_expert_bytes(128, 384, false));
  for (int tile = 0; tile < 2; ++tile) {
    for (int b = 0; b < 3; ++b) {
      const std::byte* block = packed.data() + (tile * 3 + b) * kFp4BlockBytes;
      for (int i = 0; i < 128 * 64; ++i) {
        const int thread = i / 64;
        const int j = i / 16 % 4;
        const int reg = i / 4 % 4;
        const int k = i % 4;
        const int row = tile * 64 + thread / 32 * 16 + thread % 32 / 4 + reg % 2 * 8;
        const int input = b * 128 + j * 32 + reg / 2 * 16 + thread % 4 * 4 + k;
        ASSERT_EQ(lane_value(block, thread, j, reg, k), w.value(row, input)) << row << " " << input;
      }
    }
  }
}

TEST(ExpertPackingTest, GateAndUpOfAChannelShareALane) {
  testing::RandomValues random(4);
  Source gate;
  Source up;
  fill(gate, 64, 128, random, 118, 124);
  fill(up, 64, 128, random, 118, 124);
  const std::vector<std::byte> packed = pack_up_fp4(gate.matrix, up.matrix, "w1/w3");
  for (int channel = 0; channel < 64; ++channel) {
    const std::byte* block = packed.data() + channel / 32 * kFp4BlockBytes;
    for (int input = 0; input < 128; ++input) {
      const int thread = channel % 32 / 8 * 32 + channel % 8 * 4 + input % 16 / 4;
      const int reg = input % 32 / 16 * 2;
      ASSERT_EQ(lane_value(block, thread, input / 32, reg, input % 4), gate.value(channel, input));
      ASSERT_EQ(lane_value(block, thread, input / 32, reg + 1, input % 4),
                up.value(channel, input));
    }
  }
}

TEST(ExpertPackingTest, Fp8CodesAndScalesReachTheirLane) {
  testing::RandomValues random(5);
  const std::vector<uint8_t> codes = random.bytes(256 * 256);
  const std::vector<uint8_t> scales = random.bytes(4, 100, 130);
  const ExpertMatrix matrix{codes, scales, 256, 256};
  const std::vector<std::byte> packed = pack_down_fp8(matrix, "shared w2");
  ASSERT_EQ(static_cast<int64_t>(packed.size()), packed_expert_bytes(256, 256, true));
  for (int row = 0; row < 256; ++row) {
    for (int input = 0; input < 256; ++input) {
      const std::byte* block = packed.data() + (row / 64 * 2 + input / 128) * kFp8BlockBytes;
      const int thread = row % 64 / 16 * 32 + row % 8 * 4 + input % 16 / 4;
      const int reg = input % 32 / 16 * 2 + row % 16 / 8;
      ASSERT_EQ(read<uint8_t>(block + lane_place(input % 128 / 32, thread) + reg * 4 + input % 4),
                codes[static_cast<std::size_t>(row * 256 + input)]);
      const uint32_t word =
          read<uint32_t>(block + 8192 + word_place(row % 64 / 16, row % 8, row % 16 / 8));
      ASSERT_EQ(
          block_scale(word),
          numerics::ue8m0_to_float(scales[static_cast<std::size_t>(row / 128 * 2 + input / 128)]));
    }
  }
}

std::string refusal(const Source& w) {
  try {
    pack_down_fp4(w.matrix, "layers.3.ffn.experts.7.w2");
  } catch (const CheckpointError& error) {
    return error.what();
  }
  return "";
}

TEST(ExpertPackingTest, ScalesOutsideAFloatAreRefusedByName) {
  testing::RandomValues random(6);
  Source w;
  fill(w, 64, 256, random, 120, 120);
  const auto group = static_cast<std::size_t>(37 * 8 + 5);  // row 37, stretch 1
  w.scales[group] = 248;
  w.codes[group * 16] |= 1;  // the group is not zero
  EXPECT_EQ(refusal(w), "");
  w.scales[group] = 249;
  EXPECT_THAT(refusal(w),
              ::testing::AllOf(::testing::HasSubstr("layers.3.ffn.experts.7.w2"),
                               ::testing::HasSubstr("row 37, stretch 1"),
                               ::testing::HasSubstr("249")));
  // A group of zeros has no exponent.
  for (std::size_t i = 0; i < 16; ++i) {
    w.codes[group * 16 + i] = 0x80;
  }
  EXPECT_EQ(refusal(w), "");
  w.scales[group] = 255;
  EXPECT_THAT(refusal(w), ::testing::HasSubstr("NaN"));
}

TEST(ExpertPackingTest, EveryScaleKeepsItsValueBesideAnyOther) {
  testing::RandomValues random(7);
  for (const auto& [low, high] : {std::pair{0, 6}, std::pair{0, 248}}) {
    Source w;
    fill(w, 64, 128, random, low, high);
    const std::vector<std::byte> packed = pack_down_fp4(w.matrix, "w2");
    for (int row = 0; row < 64; ++row) {
      for (int input = 0; input < 128; ++input) {
        const int thread = row / 16 * 32 + row % 8 * 4 + input % 16 / 4;
        const int reg = input % 32 / 16 * 2 + row % 16 / 8;
        ASSERT_EQ(lane_value(packed.data(), thread, input / 32, reg, input % 4),
                  w.value(row, input));
      }
    }
  }
}

TEST(ExpertPackingTest, ShapesAreRefusedByName) {
  testing::RandomValues random(8);
  Source w;
  fill(w, 96, 128, random, 120, 120);
  EXPECT_THAT(refusal(w), ::testing::HasSubstr("96 x 128"));
  fill(w, 64, 96, random, 120, 120);
  EXPECT_THAT(refusal(w), ::testing::HasSubstr("64 x 96"));
  const std::vector<uint8_t> codes(64 * 128);
  const std::vector<uint8_t> zero_scale(1);
  EXPECT_THROW(pack_down_fp8({codes, zero_scale, 64, 128}, "shared w2"), CheckpointError);
}

}  // namespace
}  // namespace baleen::kernels
