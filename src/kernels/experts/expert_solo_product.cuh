#pragma once
// The product of the form for one token: as expert_product.cuh, of the same bits, but with results
// of the first column alone and two blocks in the tensor cores at a time. Used by
// experts_solo_sm90.cu.

#include <cstdint>
#include <type_traits>

#include "kernels/experts/expert_product.cuh"
#include "kernels/experts/expert_solo.cuh"
#include "kernels/ptx/elected_arrive.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/role_registers.cuh"
#include "kernels/ptx/shared_access.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace baleen::kernels::experts::solo {

/// A lane's part of a warp group's products, with one token: rows 16 * warp + lane / 4 and 8 more.
struct Reader {
  Group& group;
  uint32_t codes;  // shared address of the lane's codes in stage 0
  uint32_t words;
  RingPosition<kRing> stage;

  __device__ __forceinline__ explicit Reader(Group& of, uint32_t thread)
      : group(of),
        codes(ptx::pinned(ptx::shared_address(of.weights) + thread * 16)),
        words(ptx::pinned(ptx::shared_address(of.weights) + 4096 + thread / 4 * 8)) {}

  /// The next block, the first or second of its stage; `last` gives the stage back. Without `more`
  /// there is no next block: what is read then means nothing, but the registers need no copies.
  __device__ __forceinline__ void fetch(RawFp4& raw, bool first, bool last, bool more = true) {
    if (first && more) {
      ptx::barrier_wait_or_leave(&group.full[stage.place], stage.parity);
    }
    const uint32_t offset =
        static_cast<uint32_t>(stage.place) * kStageBytes + (first ? 0U : kFp4BlockBytes);
    raw.low = ptx::load_shared_16(codes + offset);
    raw.high = ptx::load_shared_16(codes + offset + 2048);
    raw.words = ptx::load_shared_8(words + offset);
    if (last && more) {
      __syncwarp();
      ptx::barrier_arrive_elected(
          &group.empty[stage.place], raw.low.x & raw.high.x & raw.words.x, threadIdx.x % 32 == 0);
      stage.advance();
    }
  }
};

/// finish_block for the first token alone: rows of this lane in sum[0] and sum[1].
template <int kPending>
__device__ __forceinline__ void finish_one(Weights& weights,
                                           Parts<false>& parts,
                                           float scale,
                                           float (&sum)[2]) {
  float factors[2][4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    factors[0][j] = group_scale(weights.words.x, j);
    factors[1][j] = group_scale(weights.words.y, j);
  }
  ptx::wgmma_wait<kPending>();
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    ptx::pin_registers(parts[j]);
  }
  pin_operand(weights);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float block = parts[0][2 * i] * factors[i][0];  // exact
#pragma unroll
    for (int j = 1; j < 4; ++j) {
      block = fmaf(parts[j][2 * i], factors[i][j], block);
    }
    sum[i] = fmaf(block, scale, sum[i]);
  }
}

/// add_leaf (expert_product.cuh) of one token's sums, with all levels in registers.
__device__ __forceinline__ void add_one_leaf(float (&pending)[3][2],
                                             uint32_t leaf,
                                             bool last,
                                             float (&sum)[2]) {
  bool carry = true;
#pragma unroll
  for (int level = 0; level < 3; ++level) {
    if (((leaf >> level) & 1U) != 0) {
      if (carry || last) {
        sum[0] = pending[level][0] + sum[0];
        sum[1] = pending[level][1] + sum[1];
      }
    } else {
      if (carry && !last) {
        pending[level][0] = sum[0];
        pending[level][1] = sum[1];
      }
      carry = false;
    }
  }
  if (!last) {
    sum[0] = 0.0F;
    sum[1] = 0.0F;
  }
}

/// Product of `length` blocks of a tile, the first of which is in `raw`, with one row of inputs at
/// shared address `inputs`; a leaf ends after every `leaf_blocks`. Two blocks are in the tensor
/// cores at a time; neither is under way over the loop's end, which ptxas would not accept.
__device__ __forceinline__ void multiply_tile(Reader& reader,
                                              RawFp4& raw,
                                              uint32_t inputs,
                                              uint32_t scales,
                                              int32_t length,
                                              int32_t leaf_blocks,
                                              float (&sum)[2]) {
  constexpr uint32_t kNextInputs = 2;
  constexpr uint32_t kNextBlock = 8;
  float pending[3][2];
  uint32_t leaf = 0;
  int32_t leaf_left = leaf_blocks;
  sum[0] = 0.0F;
  sum[1] = 0.0F;
  if (length == 0) {
    return;
  }
  Weights even;
  Weights odd;
  Parts<false> even_parts;
  Parts<false> odd_parts;
  // A shared address has the block's rank above the bits that a descriptor takes.
  uint32_t descriptor = uniform_word(((inputs & 0x3FFFFU) >> 4) + (1U << 16));
  const auto start = [&](Weights& of, Parts<false>& to) {
    expand_raw(raw, of);
    of.words = raw.words;
    start_block<false, kNextInputs>(of, uniform_word(descriptor), to);
    descriptor += kNextBlock;
  };
  const auto finish = [&](auto pending_products, Weights& of, Parts<false>& from, float(&to)[2]) {
    const float scale = __uint_as_float(ptx::load_shared_4(scales));
    scales += 4;
    finish_one<decltype(pending_products)::value>(of, from, scale, to);
  };
  const auto end_leaf = [&](bool more) {
    if (--leaf_left == 0 && more) {
      add_one_leaf(pending, leaf, false, sum);
      leaf_left = leaf_blocks;
      ++leaf;
    }
  };
  using None = std::integral_constant<int, 0>;
  using One = std::integral_constant<int, 1>;
#pragma unroll 1
  for (int32_t block = 0; block < length; block += 2) {
    const bool two = block + 1 < length;  // else the second product is for nothing
    start(even, even_parts);
    reader.fetch(raw, false, true, two);
    start(odd, odd_parts);
    const bool more = block + 2 < length;
    reader.fetch(raw, true, block + 3 == length, more);
    finish(One{}, even, even_parts, sum);
    end_leaf(two);
    float last[2] = {sum[0], sum[1]};
    finish(None{}, odd, odd_parts, last);
    sum[0] = two ? last[0] : sum[0];
    sum[1] = two ? last[1] : sum[1];
    if (two) {
      end_leaf(more);
    }
  }
  add_one_leaf(pending, leaf, true, sum);
}

}  // namespace baleen::kernels::experts::solo
