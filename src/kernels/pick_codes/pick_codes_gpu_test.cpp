#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "device/buffer.h"
#include "kernels/pick_codes/pick_codes.h"
#include "kernels/pick_codes/pick_codes_oracle.h"
#include "kernels/testing/gpu_test.h"

namespace baleen::kernels {
namespace {

constexpr uint8_t kPaint = 0xEE;

std::vector<int32_t> some_picks(int32_t visible, int32_t topk, std::mt19937& random) {
  std::vector<int32_t> all(static_cast<std::size_t>(visible));
  std::iota(all.begin(), all.end(), 0);
  std::shuffle(all.begin(), all.end(), random);
  all.resize(static_cast<std::size_t>(topk));
  std::sort(all.begin(), all.end());
  return all;
}

class PickCodesGpuSmall : public testing::GpuTest {
 protected:
  struct Coded {
    std::vector<uint8_t> codes;
    uint32_t errors = 0;
  };
  Coded run(const std::vector<int32_t>& picks,
            const std::vector<int32_t>& visible,
            int32_t layers,
            int32_t topk,
            int64_t stride) {
    const auto tokens = static_cast<int32_t>(visible.size());
    const auto picks_buffer = device::Buffer<int32_t>::from_host(picks);
    const auto visible_buffer = device::Buffer<int32_t>::from_host(visible);
    device::Buffer<uint8_t> codes(tokens * stride);
    device::Buffer<uint32_t> errors(1);
    codes.fill_bytes(kPaint);
    errors.fill_bytes(0);
    pick_codes({.picks = picks_buffer.data(),
                .layer_stride = int64_t{tokens} * topk,
                .visible = visible_buffer.data(),
                .codes = codes.data(),
                .token_stride = stride,
                .errors = errors.data(),
                .num_layers = layers,
                .num_tokens = tokens,
                .topk = topk},
               stream());
    synchronize();
    return {codes.to_host(), errors.to_host()[0]};
  }
};

TEST_F(PickCodesGpuSmall, WritesTheBytesOfTheFormatAndNothingBehindThem) {
  std::mt19937 random(8);
  constexpr int32_t kLayers = 3;
  for (const int32_t topk : {1, 3, 64, 512, 2048}) {
    // None left out, bitmaps, and every number of low bits with its edges; the first and the last.
    std::vector<int32_t> visible = {0, topk, topk + 1, topk + 7, 2 * topk - 1, 2 * topk};
    for (int32_t entries = 4 * topk; entries <= 17 * 2048; entries *= 2) {
      visible.insert(visible.end(), {entries - 1, entries, entries + 1});
    }
    const auto tokens = visible.size();
    std::vector<int32_t> picks(static_cast<std::size_t>(kLayers * topk) * tokens, -1);
    std::vector<std::vector<uint8_t>> expected(tokens);
    for (std::size_t layer = 0; layer < kLayers; ++layer) {
      for (std::size_t t = 0; t < tokens; ++t) {
        if (visible[t] <= topk) {
          continue;
        }
        std::vector<int32_t> set = some_picks(visible[t], topk, random);
        if (layer == 1) {  // the two ends
          std::iota(set.begin(), set.end(), t % 2 == 0 ? 0 : visible[t] - topk);
        }
        const std::size_t at = (layer * tokens + t) * static_cast<std::size_t>(topk);
        std::copy(set.begin(), set.end(), picks.begin() + static_cast<std::ptrdiff_t>(at));
        const std::vector<uint8_t> bytes = pick_codes_oracle(set, visible[t]);
        expected[t].insert(expected[t].end(), bytes.begin(), bytes.end());
      }
    }
    std::size_t stride = 1;
    for (const std::vector<uint8_t>& bytes : expected) {
      stride = std::max(stride, bytes.size() + 1);
    }
    const Coded coded = run(picks, visible, kLayers, topk, static_cast<int64_t>(stride));
    EXPECT_EQ(coded.errors, 0U);
    for (std::size_t t = 0; t < tokens; ++t) {
      expected[t].resize(stride, kPaint);
      const auto begin = coded.codes.begin() + static_cast<std::ptrdiff_t>(t * stride);
      EXPECT_TRUE(std::equal(expected[t].begin(), expected[t].end(), begin))
          << topk << " of " << visible[t];
    }
  }
}

TEST_F(PickCodesGpuSmall, CountsPicksThatAreNoAscendingSetOfVisibleEntries) {
  const std::vector<int32_t> visible = {9, 9, 9, 9};
  const std::vector<int32_t> picks = {0, 3, 3, 1, 2, 9, -1, 4, 5, 2, 7, 8};
  EXPECT_EQ(run(picks, visible, 1, 3, 8).errors, 3U);
  EXPECT_EQ(run({}, {}, 1, 3, 8).errors, 0U);
}

}  // namespace
}  // namespace baleen::kernels
