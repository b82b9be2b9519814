#pragma once
// Block simulation as tensor code, for devices without an own kernel: float only, exact, no
// gradient. fake_quantize.h is what models call; this header exists so that the tensor code is
// tested on the CPU.
//
//   at::Tensor y = simulate_tiles_fp8(x, 1, 128);   // one scale per row and 128 columns

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace baleen::ops {

/// x float [..., rows, cols]; one scale per tile of tile_rows x tile_cols, partial tiles at the
/// border.
at::Tensor simulate_tiles_fp8(const at::Tensor& x, int64_t tile_rows, int64_t tile_cols);
at::Tensor simulate_tiles_fp4(const at::Tensor& x, int64_t tile_rows, int64_t tile_cols);

/// Scale of a block from its largest magnitude, float in and out: a power of two, the one that the
/// codecs of numerics/block_scale.h choose.
at::Tensor block_scale_fp8(const at::Tensor& amax);
at::Tensor block_scale_fp4(const at::Tensor& amax);

}  // namespace baleen::ops
