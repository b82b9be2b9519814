#pragma once
// One warp group multiplies a tile of 64 packed weight rows with up to 8 tokens: FP4 codes are
// expanded in registers to the e4m3 operand, tokens come from shared memory. Per block of 128
// inputs four tensor instructions start from zero, then their sum is promoted to FP32 with the
// exponents of row and token. The code is kept small on purpose: at one token per step most of it
// runs once, and its instructions have to be fetched. Used by experts_sm90.cu.

#include <cstdint>

#include "kernels/experts/expert_schedule.cuh"
#include "kernels/ptx/convert.cuh"
#include "kernels/ptx/shared_access.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace baleen::kernels::experts {

/// The register operand of four instructions and the scales of the lane's two rows.
struct Weights {
  uint32_t a[4][4];
  float scale[2];
};

/// Shared addresses of a lane, computed once per item.
struct LanePlaces {
  uint32_t codes;   // in stage 0
  uint32_t words;   // behind the FP4 codes of stage 0
  uint32_t scales;  // of the lane's two tokens, block 0
  uint32_t table;
};

__device__ __forceinline__ LanePlaces lane_places(const GroupShared& group,
                                                  const ExpertMagnitudes* table,
                                                  uint32_t thread) {
  const uint32_t weights = ptx::shared_address(group.weights);
  return {ptx::pinned(weights + thread * 16),
          ptx::pinned(weights + 4096 + thread / 4 * 8),
          ptx::pinned(ptx::shared_address(group.scales) + thread % 4 * 4),
          ptx::shared_address(table)};
}

template <bool kWide>
__device__ __forceinline__ ExpertMagnitudes magnitudes(uint32_t table, uint32_t word, int group) {
  const uint32_t biased = word_offset(word, group);
  if constexpr (kWide) {
    const uint2 entry = ptx::load_shared_8(table + biased * 8);
    return {entry.x, entry.y};
  } else {
    return shifted_magnitudes(biased);
  }
}

/// What a lane holds of a block before it is expanded. FP8 codes are the operand already: nothing.
struct RawFp4 {
  uint4 low;
  uint4 high;
  uint2 words;
};

/// Takes blocks from the ring in order. `fetch` brings the next block's raw form into registers
/// ahead of time, `expand` makes the operand of it. A stage (an even FP4 block and the next, or one
/// FP8 block) is freed when its last block is in registers.
template <bool kFp8, bool kWide>
struct WeightReader {
  GroupShared& group;
  const LanePlaces lane;
  RingPosition<kStages>& stage;
  RawFp4 raw;

  __device__ __forceinline__ void wait() const {
    ptx::barrier_wait(&group.full[stage.place], stage.parity);
  }
  __device__ __forceinline__ void release() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      ptx::barrier_arrive(&group.empty[stage.place]);
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
        release();
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
      release();
    } else {
      const uint32_t codes[8] = {raw.low.x,
                                 raw.low.y,
                                 raw.low.z,
                                 raw.low.w,
                                 raw.high.x,
                                 raw.high.y,
                                 raw.high.z,
                                 raw.high.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        expand_word(
            codes[2 * j], magnitudes<kWide>(lane.table, raw.words.x, j), out.a[j][0], out.a[j][2]);
        expand_word(codes[2 * j + 1],
                    magnitudes<kWide>(lane.table, raw.words.y, j),
                    out.a[j][1],
                    out.a[j][3]);
      }
    }
    out.scale[0] = word_scale(raw.words.x);
    out.scale[1] = word_scale(raw.words.y);
  }
};

inline constexpr int kTokens = kExpertUnitTokens;  // columns of the tensor instruction
inline constexpr int kValues = kTokens / 2;        // accumulators of a lane
inline constexpr int kTokenBlockBytes = kTokens * 128;
inline constexpr int kInputBlocks = kInputBytes / kTokenBlockBytes;  // held in shared memory
static_assert(kTokens == 8, "a lane has two tokens of two rows");

/// Starts the product of one block with its tokens: four chained instructions from zero.
__device__ __forceinline__ void start_block(const Weights& weights,
                                            uint32_t descriptor_low,
                                            uint32_t descriptor_high,
                                            float (&part)[kValues]) {
  ptx::wgmma_fence();
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const uint64_t tokens = (static_cast<uint64_t>(descriptor_high) << 32) |
                            (descriptor_low + static_cast<uint32_t>(2 * j));
    ptx::Wgmma<ptx::E4m3, kTokens>::registers(part, weights.a[j], tokens, j);
  }
  ptx::wgmma_commit();
}

__device__ __forceinline__ void finish_block(Weights& weights, float (&part)[kValues]) {
  ptx::wgmma_wait<0>();
  ptx::pin_registers(part);
#pragma unroll
  for (int j = 0; j < 4; ++j) {  // the operand is read until here
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      asm volatile("" : "+r"(weights.a[j][r]));
    }
  }
}

/// Sums of up to eight leaves by a balanced binary tree: leaf l waits at the level of its trailing
/// ones; the last leaf meets all that wait (when their number is no power of two, smaller trees
/// join the larger ones). Levels are registers: spills would go past the small L1 that is left.
__device__ __forceinline__ void add_leaf(float (&pending)[3][kValues],
                                         uint32_t leaf,
                                         bool last,
                                         float (&sum)[kValues]) {
  bool carry = true;
#pragma unroll
  for (int level = 0; level < 3; ++level) {
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
  if (!last) {
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      sum[i] = 0.0F;
    }
  }
}

}  // namespace baleen::kernels::experts
