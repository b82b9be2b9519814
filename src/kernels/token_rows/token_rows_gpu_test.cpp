#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "device/buffer.h"
#include "kernels/testing/gpu_test.h"
#include "kernels/testing/random_values.h"
#include "kernels/token_rows/token_rows.h"

namespace baleen::kernels {
namespace {

using TokenRowsGpuSmall = testing::GpuTest;

TEST_F(TokenRowsGpuSmall, CopiesTheRowsOfKnownIdsAndZeroesOthers) {
  testing::RandomValues random(4);
  const int32_t vocab = 40;
  for (const int32_t width : {8, 24, 2056}) {
    const std::vector<uint16_t> table = random.bf16_normals(int64_t{vocab} * width);
    const std::vector<int32_t> ids = {0, 39, -1, 7, 7, 40, 12};
    const auto table_buffer = device::Buffer<uint16_t>::from_host(table);
    const auto id_buffer = device::Buffer<int32_t>::from_host(ids);
    device::Buffer<uint16_t> out(static_cast<int64_t>(ids.size()) * width);
    out.fill_bytes(0xFF);
    token_rows({.table = table_buffer.data(),
                .ids = id_buffer.data(),
                .out = out.data(),
                .vocab = vocab,
                .width = width,
                .num_tokens = static_cast<int32_t>(ids.size())},
               stream());
    synchronize();
    std::vector<uint16_t> expected(static_cast<std::size_t>(out.count()), 0);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] >= 0 && ids[i] < vocab) {
        std::copy_n(table.begin() + ids[i] * width,
                    width,
                    expected.begin() + static_cast<std::ptrdiff_t>(i) * width);
      }
    }
    EXPECT_EQ(out.to_host(), expected) << "width " << width;
  }
}

}  // namespace
}  // namespace baleen::kernels
