#pragma once
// One warp group multiplies a tile of 64 packed weight rows with up to 8 tokens: FP4 codes are
// moved in registers to the places of an e4m3 operand, tokens come from shared memory. Per block of
// 128 inputs four tensor instructions start from zero; FP4 products are scaled each by its group's
// exponent and added, FP8 ones run on in one accumulator; then the block is promoted with the
// exponent of the token. The code is kept small on purpose: at one token per step most of it runs
// once, and its instructions have to be fetched. Used by experts_sm90.cu.

#include <cstdint>

#include "kernels/experts/expert_work.cuh"
#include "kernels/ptx/convert.cuh"
#include "kernels/ptx/loaded_arrive.cuh"
#include "kernels/ptx/opaque.cuh"
#include "kernels/ptx/role_registers.cuh"
#include "kernels/ptx/shared_access.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace baleen::kernels::experts {

/// The register operand of four instructions and the exponent words of the lane's two rows.
struct Weights {
  uint32_t a[4][4];
  uint2 words;
};

/// Shared addresses of a lane, computed once per item.
struct LanePlaces {
  uint32_t codes;   // in stage 0
  uint32_t words;   // behind the FP4 codes of stage 0
  uint32_t scales;  // of the lane's two tokens, block 0
};

__device__ __forceinline__ LanePlaces lane_places(const GroupShared& group, uint32_t thread) {
  const uint32_t weights = ptx::shared_address(group.weights);
  return {ptx::pinned(weights + thread * 16),
          ptx::pinned(weights + 4096 + thread / 4 * 8),
          ptx::pinned(ptx::shared_address(group.scales) + thread % 4 * 4)};
}

/// What a lane holds of a block before it is expanded. FP8 codes are the operand already: nothing.
struct RawFp4 {
  uint4 low;
  uint4 high;
  uint2 words;
};

__device__ __forceinline__ void expand_raw(const RawFp4& raw, Weights& out) {
  const uint32_t codes[8] = {
      raw.low.x, raw.low.y, raw.low.z, raw.low.w, raw.high.x, raw.high.y, raw.high.z, raw.high.w};
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    expand_word(codes[2 * j], out.a[j][0], out.a[j][2]);
    expand_word(codes[2 * j + 1], out.a[j][1], out.a[j][3]);
  }
}

/// Takes blocks from the ring in order. `fetch` brings the next block's raw form into registers
/// ahead of time, `expand` makes the operand of it. A stage (an even FP4 block and the next, or one
/// FP8 block) is freed when its last block is in registers.
template <bool kFp8>
struct WeightReader {
  GroupShared& group;
  const LanePlaces lane;
  RingPosition<kStages>& stage;
  RawFp4 raw;

  __device__ __forceinline__ void wait() const {
    ptx::barrier_wait_or_leave(&group.full[stage.place], stage.parity);
  }
  /// `loaded`: a word of every load since the stage came, combined.
  __device__ __forceinline__ void release(uint32_t loaded) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      ptx::barrier_arrive_loaded(&group.empty[stage.place], loaded);
    }
    stage.advance();
  }

  __device__ __forceinline__ void fetch(bool first, bool last) {
    if constexpr (!kFp8) {
      if (first) {
        wait();
      }
      const uint32_t offset =
          static_cast<uint32_t>(stage.place) * kStageBytes + (first ? 0U : kFp4BlockBytes);
      raw.low = ptx::load_shared_16(lane.codes + offset);
      raw.high = ptx::load_shared_16(lane.codes + offset + 2048);
      raw.words = ptx::load_shared_8(lane.words + offset);
      if (last) {
        release(raw.low.x & raw.high.x & raw.words.x);
      }
    }
  }

  __device__ __forceinline__ void expand(Weights& out) {
    if constexpr (kFp8) {
      wait();
      const uint32_t offset = static_cast<uint32_t>(stage.place) * kStageBytes;
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j) {
        const uint4 codes = ptx::load_shared_16(lane.codes + offset + j * 2048);
        out.a[j][0] = codes.x;
        out.a[j][1] = codes.y;
        out.a[j][2] = codes.z;
        out.a[j][3] = codes.w;
      }
      raw.words = ptx::load_shared_8(lane.words + offset + 4096);
      release(out.a[0][0] & out.a[1][0] & out.a[2][0] & out.a[3][0] & raw.words.x);
    } else {
      expand_raw(raw, out);
    }
    out.words = raw.words;
  }
};

inline constexpr int kTokens = kExpertUnitTokens;  // columns of the tensor instruction
inline constexpr int kValues = kTokens / 2;        // accumulators of a lane
static_assert(kTokens == 8, "a lane has two tokens of two rows");

/// The same in every lane, and known to be: what follows from it stays in uniform registers.
__device__ __forceinline__ uint32_t uniform_word(uint32_t value) {
  return __shfl_sync(0xFFFFFFFFU, value, 0);
}

/// Tokens of an item in shared memory: [16 bytes of inputs][row][16 bytes], one or two rows for a
/// unit of no more tokens and eight for others. The tensor instruction reads eight rows of 16
/// bytes, 16 bytes apart: beyond the last row it finds the next inputs of the same tokens, for
/// columns that nobody looks at. So a unit of few tokens has all its inputs here at once.
template <int kRows>
struct InputTile {
  static_assert(kRows <= kFewTokens || kRows == kTokens);
  static constexpr int kBlocks = kInputBytes / (kRows * 128);  // block b stands at b % kBlocks
  static constexpr uint32_t kNextInputs = 2 * kRows;  // from one descriptor to the next 32 inputs
  uint32_t base;                                      // shared address

  __device__ __forceinline__ explicit InputTile(const GroupShared& group)
      : base(ptx::shared_address(group.input)) {}

  /// Address of 16 bytes: inputs from 16 * chunk of `row`, chunks counted over all blocks that fit.
  __device__ __forceinline__ uint32_t place(int chunk, int row) const {
    return base + static_cast<uint32_t>((chunk * kRows + row) * 16);
  }
  static constexpr uint32_t kNextBlock = 8 * kRows;  // from one block to the next
  /// Low word of the descriptor of block `block`, the same in every lane and known to be (the high
  /// word is 0). Blocks up to the end of the tile follow in steps of kNextBlock.
  __device__ __forceinline__ uint32_t descriptor(int block) const {
    const auto at = static_cast<uint32_t>(block % kBlocks * 8 * kRows);
    return uniform_word((base >> 4) + at + (uint32_t{kRows} << 16));
  }
};

/// Sums of a block: of each group (FP4), or of the block (FP8).
template <bool kFp8>
using Parts = float[kFp8 ? 1 : 4][kValues];

__device__ __forceinline__ void pin_operand(Weights& weights) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      ptx::keep_in_register(weights.a[j][r]);
    }
  }
}

/// Starts the product of one block with its tokens: four instructions, for FP8 in one chain.
template <bool kFp8, uint32_t kNextInputs>
__device__ __forceinline__ void start_block(Weights& weights,
                                            uint32_t descriptor,
                                            Parts<kFp8>& parts) {
#pragma unroll
  for (int j = 0; j < (kFp8 ? 1 : 4); ++j) {
    ptx::pin_registers(parts[j]);
  }
  pin_operand(weights);  // ready before the fence, not when its instruction comes
  ptx::wgmma_fence();
#pragma unroll
  for (uint32_t j = 0; j < 4; ++j) {
    ptx::Wgmma<ptx::E4m3, kTokens>::registers(parts[kFp8 ? 0 : j],
                                              weights.a[j],
                                              uint64_t{descriptor + kNextInputs * j},
                                              kFp8 ? static_cast<int>(j) : 0);
  }
  ptx::wgmma_commit();
}

/// Waits for the block and adds it to `sum`. `token_scales`: bf16 of the lane's two tokens.
template <bool kFp8>
__device__ __forceinline__ void finish_block(Weights& weights,
                                             Parts<kFp8>& parts,
                                             uint32_t token_scales,
                                             float (&sum)[kValues]) {
  float upper[4];
  float lower[4];
#pragma unroll
  for (int j = 0; j < (kFp8 ? 1 : 4); ++j) {
    upper[j] = kFp8 ? block_scale(weights.words.x) : group_scale(weights.words.x, j);
    lower[j] = kFp8 ? block_scale(weights.words.y) : group_scale(weights.words.y, j);
  }
  ptx::wgmma_wait<0>();
#pragma unroll
  for (int j = 0; j < (kFp8 ? 1 : 4); ++j) {
    ptx::pin_registers(parts[j]);
  }
  pin_operand(weights);  // it is read until here
  float block[kValues];
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    block[i] = parts[0][i] * (i < 2 ? upper[0] : lower[0]);  // exact
#pragma unroll
    for (int j = 1; j < (kFp8 ? 1 : 4); ++j) {
      block[i] = fmaf(parts[j][i], i < 2 ? upper[j] : lower[j], block[i]);
    }
    sum[i] = fmaf(
        block[i], i % 2 == 0 ? ptx::low_bf16(token_scales) : ptx::high_bf16(token_scales), sum[i]);
  }
}

/// Sum of an up product's leaves as add_leaf does it; those that do not exist are not added.
template <class T, class Add>
__device__ __forceinline__ T add_up_leaves(const T (&value)[kUpLeaves], int leaves, Add add) {
  T total = leaves > 1 ? add(value[0], value[1]) : value[0];
  if (leaves > 2) {
    total = add(total, leaves > 3 ? add(value[2], value[3]) : value[2]);
  }
  return total;
}

/// Sums of up to eight leaves by a balanced binary tree: leaf l waits at the level of its trailing
/// ones; the last leaf meets all that wait (when their number is no power of two, smaller trees
/// join the larger ones). The lower levels are registers (spills would go past the small L1 that is
/// left); the third, which only sums of more than four leaves need, is in shared memory.
__device__ __forceinline__ void add_leaf(float (&pending)[2][kValues],
                                         float4* far_pending,
                                         uint32_t leaf,
                                         bool last,
                                         float (&sum)[kValues]) {
  bool carry = true;
#pragma unroll
  for (int level = 0; level < 2; ++level) {
    if (((leaf >> level) & 1U) != 0) {
      if (carry || last) {
#pragma unroll
        for (int i = 0; i < kValues; ++i) {
          sum[i] = pending[level][i] + sum[i];
        }
      }
    } else {
      if (carry && !last) {
#pragma unroll
        for (int i = 0; i < kValues; ++i) {
          pending[level][i] = sum[i];
        }
      }
      carry = false;
    }
  }
  if (leaf == 3 && !last) {
    *far_pending = make_float4(sum[0], sum[1], sum[2], sum[3]);
  } else if (leaf >= 4 && last) {
    const float4 half = *far_pending;
    sum[0] = half.x + sum[0];
    sum[1] = half.y + sum[1];
    sum[2] = half.z + sum[2];
    sum[3] = half.w + sum[3];
  }
  if (!last) {
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      sum[i] = 0.0F;
    }
  }
}

}  // namespace baleen::kernels::experts
