// Weights packed on the card have the bytes of those packed on the host.

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "device/buffer.h"
#include "kernels/experts/expert_packing.h"
#include "kernels/testing/gpu_test.h"
#include "kernels/testing/random_values.h"
#include "kernels/weight_packing/weight_packing.h"

namespace baleen::kernels::testing {
namespace {

class WeightPackingGpuSmall : public GpuTest {
 protected:
  struct Source {
    std::vector<uint8_t> codes, scales;
    device::Buffer<uint8_t> device_codes, device_scales;
    ExpertMatrix matrix;
  };

  /// Some groups are all zero, of either sign.
  static Source expert(int64_t rows, int64_t inputs, bool fp8, RandomValues& random) {
    Source out;
    out.codes = random.bytes(fp8 ? rows * inputs : rows * inputs / 2);
    if (!fp8) {
      for (std::size_t i = 0; i < out.codes.size(); ++i) {
        if (i / 16 % 5 == 2) {
          out.codes[i] = i % 3 == 0 ? 0x80 : 0x08;
        }
      }
    }
    out.scales = fp8 ? random.bytes((rows + 127) / 128 * (inputs / 128), 1, 254)
                     : random.bytes(rows * inputs / 32, 0, 248);
    out.device_codes = device::Buffer<uint8_t>::from_host(out.codes);
    out.device_scales = device::Buffer<uint8_t>::from_host(out.scales);
    out.matrix = {out.codes, out.scales, rows, inputs};
    return out;
  }
};

TEST_F(WeightPackingGpuSmall, LinearsHaveTheBytesOfTheHost) {
  RandomValues random(51);
  for (const WeightFormat format :
       {WeightFormat::kE4m3, WeightFormat::kE4m3AsBf16, WeightFormat::kBf16}) {
    for (const auto& [rows, cols] :
         {std::pair<int64_t, int64_t>{1, 128}, {64, 256}, {100, 128}, {192, 384}, {576, 1024}}) {
      const WeightShape shape{rows, cols, format};
      const int64_t bytes = rows * cols * (format == WeightFormat::kBf16 ? 2 : 1);
      const std::vector<uint8_t> row_major = random.bytes(bytes);
      std::vector<uint8_t> expected(static_cast<std::size_t>(packed_weight_bytes(shape)));
      pack_weight(shape, row_major, expected);
      const auto source = device::Buffer<uint8_t>::from_host(row_major);
      device::Buffer<uint8_t> packed(packed_weight_bytes(shape));
      packed.fill_bytes(0);
      launch_pack_weight(shape, source.data(), packed.data(), stream());
      synchronize();
      EXPECT_EQ(packed.to_host(), expected)
          << rows << " x " << cols << " format " << static_cast<int>(format);
    }
  }
}

TEST_F(WeightPackingGpuSmall, ExpertsHaveTheBytesOfTheHost) {
  RandomValues random(52);
  for (const bool fp8 : {false, true}) {
    for (const auto& [rows, inputs] :
         {std::pair<int64_t, int64_t>{64, 128}, {128, 256}, {320, 640}, {512, 1024}}) {
      const Source first = expert(rows, inputs, fp8, random);
      const Source second = expert(rows, inputs, fp8, random);
      const std::string what =
          std::to_string(rows) + " x " + std::to_string(inputs) + (fp8 ? " FP8" : " FP4");
      device::Buffer<std::byte> up(packed_expert_bytes(2 * rows, inputs, fp8));
      up.fill_bytes(0xFF);
      launch_pack_expert({.codes = {first.device_codes.data(), second.device_codes.data()},
                          .scales = {first.device_scales.data(), second.device_scales.data()},
                          .packed = up.data(),
                          .rows = rows,
                          .inputs = inputs,
                          .fp8 = fp8},
                         stream());
      device::Buffer<std::byte> down(packed_expert_bytes(rows, inputs, fp8));
      down.fill_bytes(0xFF);
      launch_pack_expert({.codes = {first.device_codes.data(), nullptr},
                          .scales = {first.device_scales.data(), nullptr},
                          .packed = down.data(),
                          .rows = rows,
                          .inputs = inputs,
                          .fp8 = fp8},
                         stream());
      synchronize();
      EXPECT_EQ(up.to_host(),
                fp8 ? pack_up_fp8(first.matrix, second.matrix, what)
                    : pack_up_fp4(first.matrix, second.matrix, what))
          << what;
      EXPECT_EQ(down.to_host(),
                fp8 ? pack_down_fp8(first.matrix, what) : pack_down_fp4(first.matrix, what))
          << what;
    }
  }
}

TEST(WeightPackingTest, TellsScalesThatTheHostMustLookAt) {
  EXPECT_TRUE(usual_expert_scales(std::vector<uint8_t>{0, 127, 248}, false));
  EXPECT_FALSE(usual_expert_scales(std::vector<uint8_t>{127, 249}, false));
  EXPECT_FALSE(usual_expert_scales(std::vector<uint8_t>{255}, false));
  EXPECT_TRUE(usual_expert_scales(std::vector<uint8_t>{1, 254}, true));
  EXPECT_FALSE(usual_expert_scales(std::vector<uint8_t>{127, 0}, true));
  EXPECT_FALSE(usual_expert_scales(std::vector<uint8_t>{255, 127}, true));
}

}  // namespace
}  // namespace baleen::kernels::testing
