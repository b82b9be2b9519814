#pragma once
// One thread of the direct form of small linears: where it stands, and how products in shared
// memory become results, leaf by leaf. Included by linear_direct.cuh.

#include <cstdint>

#include "kernels/linear/linear_direct.h"
#include "kernels/linear/linear_epilogue.cuh"
#include "kernels/ptx/convert.cuh"
#include "kernels/ptx/shared_access.cuh"

namespace baleen::kernels::linear_body {

template <int kTokens, int kSplit>
class DirectSums {
 public:
  using Form = DirectForm<kTokens, kSplit>;
  static constexpr uint32_t kRows = Form::kRows;
  static constexpr uint32_t kQuads = Form::kQuads;
  static constexpr uint32_t kBlocks = kSplit * kDirectSets;        // of 128 inputs, of one group
  static constexpr uint32_t kSideWarps = kSplit < 4 ? kSplit : 4;  // blocks of inputs of the warps
  static constexpr uint32_t kBlocksAtOnce = 4;                     // of a leaf's sum

  __device__ DirectSums(const DirectDeviceParams& params, uint8_t* shared)
      : params_(params),
        row_(blockIdx.x * kRows),
        group_(threadIdx.x / 128),
        thread_(threadIdx.x % 128),
        lane_(threadIdx.x % 32),
        warp_(thread_ / 32),
        warp_row_(kSplit < 4 ? warp_ % (4 / kSideWarps) * 16 : 0),
        first_block_(group_ * kBlocks),
        x_(shared),
        parts_(reinterpret_cast<float*>(shared + Form::x_bytes(groups() * kBlocks))),
        scales_(parts_ + groups() * kBlocks * Form::kPartStride) {}

 protected:
  __device__ __forceinline__ uint32_t tokens() const { return params_.num_tokens; }
  /// Groups of four warps.
  __device__ __forceinline__ static uint32_t groups() { return blockDim.x / 128; }

  /// What a thread adds in one round: four rows of one token and one leaf. The leaves of a sum lie
  /// in lanes 2^shift apart.
  struct Sum {
    uint32_t part;  // shared addresses
    uint32_t scale;
    uint32_t blocks;  // of 128 inputs, of a leaf
    uint32_t shift;
    bool stores;
    uint64_t y;  // of the four rows
  };
  __device__ __forceinline__ static uint32_t first_sum(const DirectDeviceParams& params) {
    return threadIdx.x / 32 << (5 - params.leaf_shift);
  }
  __device__ __forceinline__ Sum find_sum(uint32_t begin) const {
    Sum sum;
    sum.shift = 5 - params_.leaf_shift;
    sum.blocks = params_.tiles_per_leaf;
    const uint32_t leaf = lane_ >> sum.shift;
    const uint32_t index = begin + (lane_ & ((1U << sum.shift) - 1));
    const bool inside = index < kQuads * tokens();
    const uint32_t token = inside ? index / kQuads : 0;
    const uint32_t quad = index % kQuads;
    sum.part = ptx::shared_address(parts_ + leaf * sum.blocks * Form::kPartStride +
                                   token * Form::kTokenStride + 4 * quad);
    sum.scale = ptx::shared_address(scales_ + leaf * sum.blocks * Form::kScaleStride + token);
    sum.stores = inside && leaf == 0;
    sum.y = place_of(token, quad);
    return sum;
  }
  __device__ __forceinline__ uint64_t place_of(uint32_t token, uint32_t quad) const {
    const uint64_t at = uint64_t{token} * params_.y_stride + row_ + 4 * quad;
    return reinterpret_cast<uint64_t>(params_.y) +
           at * (params_.output == LinearOutput::kFloat32 ? 4 : 2);
  }

  /// Leaves in ascending blocks of 128 inputs, then their balanced tree, by the lanes of a warp.
  __device__ __forceinline__ void reduce(Sum sum) const {
    const uint32_t step = groups() * 4 << sum.shift;
    uint32_t begin = first_sum(params_);
    while (true) {
      float4 value = make_float4(0, 0, 0, 0);
      uint32_t block = 0;
      do {
        uint4 four[kBlocksAtOnce] = {};
        float by[kBlocksAtOnce] = {};
#pragma unroll
        for (uint32_t i = 0; i < kBlocksAtOnce; ++i) {
          if (block + i < sum.blocks) {
            four[i] = ptx::load_shared_16(sum.part + i * (Form::kPartStride * 4));
            by[i] = __uint_as_float(ptx::load_shared_4(sum.scale + i * (Form::kScaleStride * 4)));
          }
        }
#pragma unroll
        for (uint32_t i = 0; i < kBlocksAtOnce; ++i) {
          if (block + i < sum.blocks) {
            value.x = fmaf(__uint_as_float(four[i].x), by[i], value.x);
            value.y = fmaf(__uint_as_float(four[i].y), by[i], value.y);
            value.z = fmaf(__uint_as_float(four[i].z), by[i], value.z);
            value.w = fmaf(__uint_as_float(four[i].w), by[i], value.w);
          }
        }
        sum.part += kBlocksAtOnce * Form::kPartStride * 4;
        sum.scale += kBlocksAtOnce * Form::kScaleStride * 4;
        block += kBlocksAtOnce;
      } while (block < sum.blocks);
#pragma unroll 1
      for (uint32_t distance = 1U << sum.shift; distance < 32; distance *= 2) {
        value = add(value,
                    make_float4(__shfl_xor_sync(0xFFFFFFFFU, value.x, distance),
                                __shfl_xor_sync(0xFFFFFFFFU, value.y, distance),
                                __shfl_xor_sync(0xFFFFFFFFU, value.z, distance),
                                __shfl_xor_sync(0xFFFFFFFFU, value.w, distance)));
      }
      if (sum.stores) {
        store(sum.y, value);
      }
      begin += step;
      if (begin >= kQuads * tokens()) {
        break;
      }
      sum = find_sum(begin);
    }
  }

  __device__ __forceinline__ void store(uint64_t y, float4 value) const {
    if (params_.output == LinearOutput::kFloat32) {
      *reinterpret_cast<float4*>(y) = value;
    } else {
      *reinterpret_cast<uint2*>(y) =
          make_uint2(ptx::pack_bf16(value.x, value.y), ptx::pack_bf16(value.z, value.w));
    }
  }

  const DirectDeviceParams& params_;
  const uint32_t row_;  // first of this block's
  const uint32_t group_;
  const uint32_t thread_;
  const uint32_t lane_;
  const uint32_t warp_;
  const uint32_t warp_row_;     // first of its 16 rows in the block's
  const uint32_t first_block_;  // of 128 inputs, of this group
  uint8_t* const x_;            // [set][side][token][128 bytes], 128-byte swizzle
  float* const parts_;          // [block of inputs][token][row], padded
  float* const scales_;         // [block of inputs][token], padded
};

}  // namespace baleen::kernels::linear_body
