#include "ops/fake_quantize.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include "base/check.h"
#include "numerics/block_scale.h"
#include "numerics/weight_format.h"
#include "ops/block_simulation.h"
#include "ops/rounding.h"

namespace baleen::ops {
namespace {

constexpr int64_t kGrain = 16384;  // elements per task

enum class BlockFormat : uint8_t { kFp8, kFp4 };

/// Rows of a contiguous CPU tensor through the codecs, which round double once.
at::Tensor blocks_on_cpu(const at::Tensor& x, int64_t block, BlockFormat format) {
  at::Tensor y = x.clone(at::MemoryFormat::Contiguous);
  const int64_t width = x.size(-1);
  if (x.numel() == 0) {
    return y;
  }
  AT_DISPATCH_FLOATING_TYPES(y.scalar_type(), "quantize_block", [&] {
    auto* data = y.mutable_data_ptr<scalar_t>();
    const int64_t grain = std::max<int64_t>(1, kGrain / width);
    at::parallel_for(0, y.numel() / width, grain, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const std::span<scalar_t> values(data + row * width, static_cast<std::size_t>(width));
        format == BlockFormat::kFp8 ? numerics::simulate_s8(values, block)
                                    : numerics::simulate_s4(values, block);
      }
    });
  });
  return y;
}

/// One scale per tile of the last two dims, on the CPU.
at::Tensor fp8_tiles_on_cpu(const at::Tensor& weight) {
  at::Tensor y = weight.clone(at::MemoryFormat::Contiguous);
  const numerics::TileShape shape{weight.size(-2), weight.size(-1), 128, 128};
  const int64_t area = shape.rows * shape.cols;
  AT_DISPATCH_FLOATING_TYPES(y.scalar_type(), "quantize_tiles", [&] {
    auto* data = y.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, area == 0 ? 0 : y.numel() / area, 1, [&](int64_t begin, int64_t end) {
      std::vector<uint8_t> codes(static_cast<std::size_t>(area));
      std::vector<uint8_t> scales(
          static_cast<std::size_t>(shape.scale_rows() * shape.scale_cols()));
      for (int64_t matrix = begin; matrix < end; ++matrix) {
        const std::span<scalar_t> values(data + matrix * area, codes.size());
        numerics::quantize_tiles<scalar_t>(values, shape, codes, scales);
        numerics::dequantize_tiles<scalar_t>(codes, scales, shape, values);
      }
    });
  });
  return y;
}

at::Tensor simulate_blocks(const at::Tensor& x, int64_t block, BlockFormat format) {
  BALEEN_CHECK(x.dim() >= 1 && block > 0, "dims={} block={}", x.dim(), block);
  const at::Tensor source = x.detach();
  if (source.device().is_cpu()) {
    return straight_through(x, blocks_on_cpu(source, block, format));
  }
  const at::Tensor rows = source.to(at::kFloat).reshape({-1, x.size(-1)});
  const at::Tensor y = format == BlockFormat::kFp8 ? simulate_tiles_fp8(rows, 1, block)
                                                   : simulate_tiles_fp4(rows, 1, block);
  return straight_through(x, y.to(x.scalar_type()).view(x.sizes()));
}

}  // namespace

at::Tensor quantize_fp8_block(const at::Tensor& x, int64_t block) {
  return simulate_blocks(x, block, BlockFormat::kFp8);
}

at::Tensor quantize_fp4_block(const at::Tensor& x, int64_t block) {
  return simulate_blocks(x, block, BlockFormat::kFp4);
}

at::Tensor fake_quantize_weight_fp8_128x128(const at::Tensor& weight) {
  BALEEN_CHECK(weight.dim() >= 2, "a weight has at least two dims, not {}", weight.dim());
  const at::Tensor source = weight.detach();
  if (source.device().is_cpu()) {
    return straight_through(weight, fp8_tiles_on_cpu(source));
  }
  return straight_through(
      weight, simulate_tiles_fp8(source.to(at::kFloat), 128, 128).to(weight.scalar_type()));
}

at::Tensor fake_quantize_weight_fp4_group32(const at::Tensor& weight) {
  BALEEN_CHECK(weight.dim() >= 2 && weight.size(-1) % numerics::kFp4Group == 0,
               "an FP4 weight needs an input width that is a multiple of 32, not {}",
               weight.size(-1));
  return quantize_fp4_block(weight, numerics::kFp4Group);
}

at::Tensor fake_quantize_weight(const at::Tensor& weight, LinearFormat format) {
  switch (format) {
    case LinearFormat::kFp8:
      return fake_quantize_weight_fp8_128x128(weight);
    case LinearFormat::kFp4:
      return fake_quantize_weight_fp4_group32(weight);
    case LinearFormat::kPlain:
      break;
  }
  return round_bf16(weight);
}

}  // namespace baleen::ops
