#pragma once
// Small FP8 linears of at most 16 tokens, all weights on their way at once: every thread asks for
// its share of the weights straight into registers, and what follows the last weight is one chain
// of tensor instructions, one block barrier and the sum. No ring, little code (a launch runs every
// instruction once, from cold); everything that does not need weights happens while they are on
// their way.
//
// A block owns 64 / kSplit rows and all their inputs. The four warps of a group hold, as the 64
// rows of the instruction, kSplit blocks of 128 inputs of these rows side by side; the N side holds
// x of all kSplit blocks, of which each warp keeps the columns of its own. Products of every block
// of 128 inputs go to shared memory as they are, and are scaled and added there in the order of the
// ring form: the bits are the same.
//
// Inside an instruction the order of inputs is free (mma_equivalence): a lane holds 8 consecutive
// bytes of a row, and x is written to shared memory in the same order.

#include <cstdint>

#include "kernels/linear/linear_direct_sums.cuh"
#include "kernels/linear/linear_inputs.cuh"
#include "kernels/linear/linear_layout.h"
#include "kernels/linear/linear_multiply.cuh"
#include "kernels/ptx/opaque.cuh"
#include "kernels/ptx/read_only_load.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace baleen::kernels::linear_body {

/// One thread of a block.
template <int kTokens, int kSplit>
class Direct : DirectSums<kTokens, kSplit> {
  using Base = DirectSums<kTokens, kSplit>;
  using Base::find_sum;
  using Base::first_block_;
  using Base::first_sum;
  using Base::group_;
  using Base::groups;
  using Base::kBlocks;
  using Base::kQuads;
  using Base::kSideWarps;
  using Base::lane_;
  using Base::params_;
  using Base::parts_;
  using Base::reduce;
  using Base::row_;
  using Base::scales_;
  using Base::thread_;
  using Base::tokens;
  using Base::warp_;
  using Base::warp_row_;
  using Base::x_;
  using typename Base::Form;
  using typename Base::Sum;

 public:
  using Base::Base;

  __device__ __forceinline__ void run() {
    request_weights();
    request_x();
    request_scales();
    Sum sum = find_sum(first_sum(params_));
    ptx::keep_in_register(sum.part);
    ptx::keep_in_register(sum.scale);
    ptx::keep_in_register(sum.blocks);
    ptx::keep_in_register(sum.shift);
    ptx::keep_in_register(sum.y);
    keep_activations();
    ptx::fence_async_shared();
    ptx::named_barrier_sync(1 + group_, 128);  // its own x is all that a group waits for
    multiply();
    __syncthreads();
    if (first_sum(params_) < kQuads * tokens()) {
      reduce(sum);
    }
  }

 private:
  static constexpr int kSets = kDirectSets;
  static constexpr uint32_t kTokenVectors = 8 * kBlocks;  // 16 bytes of one token's x, of a group
  static constexpr uint32_t kVectors = (kTokens * kTokenVectors + 127) / 128;  // per thread

  /// Which of a set's blocks of inputs this warp multiplies, in the upper or the lower eight rows
  /// of its sixteen.
  __device__ __forceinline__ uint32_t side(uint32_t half) const {
    return kSplit == 8 ? 2 * warp_ + half : warp_ / (4 / kSideWarps);
  }

  /// 16 bytes at a time; four lanes read 64 bytes of a row, even ones of the first 32 and odd ones
  /// of the other 32, so that neighbours have what they exchange in `arrange`.
  __device__ __forceinline__ void request_weights() {
    const uint32_t row = lane_ / 4;
    const uint32_t quarter = lane_ % 4;
    const uint32_t chunk = quarter / 2 + 2 * (quarter % 2);
    // A launch of this form has less than 2^32 bytes of weights.
    const uint8_t* begin =
        params_.weight + (row_ / 64 * params_.tiles_per_row + first_block_ + side(0)) * kTileBytes +
        (row_ % 64 + warp_row_ + row) * kTileRowBytes;
    constexpr int kLowerHalf = kSplit == 8 ? kTileBytes : 8 * kTileRowBytes;
#pragma unroll
    for (int set = 0; set < kSets; ++set) {
#pragma unroll
      for (uint32_t p = 0; p < 2; ++p) {
        const uint8_t* at = begin + (((4 * p + chunk) ^ row) << 4) + set * kSplit * kTileBytes;
        weights_[set][p][0] = ptx::load_static_16(reinterpret_cast<const uint4*>(at));
        weights_[set][p][1] = ptx::load_static_16(reinterpret_cast<const uint4*>(at + kLowerHalf));
      }
    }
  }

  /// A set as operands of the four steps of 32 inputs: every lane has 16 bytes of one step, of
  /// which it keeps 8 and gives 8 to its neighbour for 8 bytes of the other step.
  __device__ __forceinline__ void arrange(int set, uint32_t (&a)[4][4]) const {
    const bool odd = lane_ % 2 != 0;
#pragma unroll
    for (int p = 0; p < 2; ++p) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint4 own = weights_[set][p][half];
        const uint32_t first = __shfl_xor_sync(0xFFFFFFFFU, odd ? own.x : own.z, 1);
        const uint32_t second = __shfl_xor_sync(0xFFFFFFFFU, odd ? own.y : own.w, 1);
        a[2 * p][half] = odd ? first : own.x;
        a[2 * p][half + 2] = odd ? second : own.y;
        a[2 * p + 1][half] = odd ? own.z : first;
        a[2 * p + 1][half + 2] = odd ? own.w : second;
      }
    }
  }

  /// x of this group's blocks of inputs.
  __device__ __forceinline__ void request_x() {
    const uint8_t* x = params_.x + (thread_ / kTokenVectors * params_.x_stride +
                                    first_block_ * kTileRowBytes + thread_ % kTokenVectors * 16);
#pragma unroll
    for (uint32_t i = 0; i < kVectors; ++i) {
      if (token_of(i) < tokens()) {
        vectors_[i] = ptx::load_fresh_16(
            reinterpret_cast<const uint4*>(x + i * (128 / kTokenVectors) * params_.x_stride));
      }
    }
  }
  /// Scales of x and weights for one block of inputs and one token.
  __device__ __forceinline__ void request_scales() {
    const uint32_t token = thread_ / kBlocks;
    if (token < tokens()) {
      const uint32_t block = first_block_ + thread_ % kBlocks;
      x_scale_ = request_scale(
          params_.x_scales, params_.x_scale_format, token * params_.x_scale_stride + block);
      weight_scale_ = request_scale(params_.weight_scales,
                                    params_.weight_scale_format,
                                    row_ / 128 * params_.tiles_per_row + block);
    }
  }

  __device__ __forceinline__ void keep_activations() {
    const uint32_t vector = thread_ % kTokenVectors;
    const uint32_t block = group_ * kBlocks + vector / 8;
    uint8_t* x = x_ + block / kSplit * Form::kSetBytes;
#pragma unroll
    for (uint32_t i = 0; i < kVectors; ++i) {
      const uint32_t column = block % kSplit * kTokens + token_of(i);
      if (token_of(i) < tokens()) {
        // Words 2q and 2q + 1 of 32 bytes stand at q and 4 + q.
        const uint32_t place =
            column * kTileRowBytes + (((vector & 6) ^ (column & 7)) << 4) + vector % 2 * 8;
        const uint4 four = vectors_[i];
        *reinterpret_cast<uint2*>(x + place) = make_uint2(four.x, four.z);
        *reinterpret_cast<uint2*>(x + (place ^ 16)) = make_uint2(four.y, four.w);
      }
    }
    const uint32_t token = thread_ / kBlocks;
    if (token < tokens()) {
      scales_[(group_ * kBlocks + thread_ % kBlocks) * Form::kScaleStride + token] =
          scale_value(weight_scale_, params_.weight_scale_format) *
          scale_value(x_scale_, params_.x_scale_format);
    }
  }
  /// Token of this thread's i-th 16 bytes of x.
  __device__ __forceinline__ uint32_t token_of(uint32_t i) const {
    return thread_ / kTokenVectors + i * (128 / kTokenVectors);
  }

  /// Products of both sets, to shared memory.
  __device__ __forceinline__ void multiply() {
    float products[kSets][Form::kColumns / 2] = {};
    uint32_t a[kSets][4][4];
    const uint32_t b = uniform_descriptor(x_ + group_ * kSets * Form::kSetBytes);
#pragma unroll
    for (int set = 0; set < kSets; ++set) {
      arrange(set, a[set]);
      ptx::wgmma_fence();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        ptx::Wgmma<ptx::E4m3, Form::kColumns>::registers(
            products[set],
            a[set][step],
            descriptor_at(b, set * static_cast<int>(Form::kSetBytes) + 32 * step),
            step > 0);
      }
      ptx::wgmma_commit();
    }
    ptx::wgmma_wait<1>();
    ptx::pin_registers(products[0]);
    keep_parts(products[0], 0);
    ptx::wgmma_wait<0>();
    ptx::pin_registers(products[1]);
    keep_parts(products[1], 1);
  }

  /// The columns of this warp's own blocks of inputs.
  __device__ __forceinline__ void keep_parts(const float (&products)[Form::kColumns / 2],
                                             int set) const {
    float* parts =
        parts_ + (group_ * kSets + set) * kSplit * Form::kPartStride + warp_row_ + lane_ / 4;
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
      float* place = parts + side(half) * Form::kPartStride + (kSplit == 8 ? 0 : half * 8);
      const uint32_t first = side(half) * kTokens;  // column
#pragma unroll
      for (uint32_t j = 0; j < (kTokens + 7) / 8; ++j) {
        const uint32_t column = first / 8 * 8 + 8 * j + 2 * (lane_ % 4);
        float value[2];
#pragma unroll
        for (uint32_t r = 0; r < 2; ++r) {
          value[r] = ptx::opaque(products[4 * j + 2 * half + r]);
#pragma unroll
          for (uint32_t eight = (kTokens + 7) / 8; eight + j < Form::kColumns / 8;
               eight += (kTokens + 7) / 8) {
            const float other = ptx::opaque(products[4 * (eight + j) + 2 * half + r]);
            value[r] = first / 8 == eight ? other : value[r];
          }
        }
        if (kTokens >= 8 || column - first < kTokens) {
          place[(column - first) * Form::kTokenStride] = value[0];
          place[(column - first + 1) * Form::kTokenStride] = value[1];
        }
      }
    }
  }

  uint4 weights_[kSets][2][2];
  uint4 vectors_[kVectors];
  uint32_t x_scale_ = 0;
  uint32_t weight_scale_ = 0;
};

}  // namespace baleen::kernels::linear_body
