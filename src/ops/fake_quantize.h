#pragma once
// Quantise-and-dequantise with power-of-two scales ("round-up scale": 2^ceil(log2(amax * f)) taken
// from the bits of the float32 product). The result keeps shape
// and dtype and is exact on every device; the gradient is the identity, without a clamp mask.
//
//   at::Tensor kv = ops::quantize_fp8_block(kv_head, 64);
//   at::Tensor w = ops::fake_quantize_weight(master, ops::LinearFormat::kFp4);

#include <ATen/core/Tensor.h>

#include "ops/linear_format.h"

namespace baleen::ops {

/// e4m3 value times scale; amax >= 1e-4 per block of `block` along the last dim. A last block that
/// is not full is a block of its own.
at::Tensor quantize_fp8_block(const at::Tensor& x, int64_t block);

/// e2m1 value times scale; amax >= 6 * 2^-126. Blocks as above.
at::Tensor quantize_fp4_block(const at::Tensor& x, int64_t block);

/// Weights [..., out, in], one scale per 128 x 128 tile (border tiles are partial): the form that
/// writing an FP8 checkpoint rounds to.
at::Tensor fake_quantize_weight_fp8_128x128(const at::Tensor& weight);

/// Weights [..., out, in], one scale per row and 32 inputs; in must be a multiple of 32: the form
/// that writing an FP4 checkpoint rounds to.
at::Tensor fake_quantize_weight_fp4_group32(const at::Tensor& weight);

/// The one of the two that fits the format; kPlain gives the nearest bf16.
at::Tensor fake_quantize_weight(const at::Tensor& weight, LinearFormat format);

}  // namespace baleen::ops
